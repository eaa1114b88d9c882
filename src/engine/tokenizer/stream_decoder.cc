#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

std::string StreamDecoder::push(std::string_view bytes) {
  held_.append(bytes);
  std::string out;
  const std::string_view all = held_;
  size_t at = 0;
  while (at < all.size()) {
    const Utf8Step step = utf8_step(all.substr(at));
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    out.append(step.kind == Utf8Step::Kind::kCharacter ? all.substr(at, step.length) : kReplacement);
    at += step.length;
  }
  held_.erase(0, at);
  return out;
}

std::string StreamDecoder::flush() {
  std::string out;
  if (!held_.empty()) out = kReplacement;
  held_.clear();
  return out;
}

}  // namespace kvant::engine
