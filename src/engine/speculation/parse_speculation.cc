#include <charconv>

#include <fmt/format.h>

#include "kvant/engine/engine.h"

namespace kvant::engine {
namespace {

constexpr int32_t kMostDrafts = 64;

}  // namespace

Result<Speculation> parse_speculation(std::string_view text) {
  const auto refuse = [&] {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("speculation '{}' is not known; give none, ngram:K or draft:MODEL:K with K from 1 to {}",
                               text, kMostDrafts));
  };
  if (text == "none") return Speculation{};
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse();
  Speculation out;
  const std::string_view number = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out.max_drafts);
  if (error != std::errc() || end != number.data() + number.size() || out.max_drafts < 1 ||
      out.max_drafts > kMostDrafts)
    return refuse();
  constexpr std::string_view kDraftPrefix = "draft:";
  const std::string_view how = text.substr(0, colon);
  if (how == "ngram") {
    out.kind = Speculation::Kind::kNgram;
  } else if (how.starts_with(kDraftPrefix) && how.size() > kDraftPrefix.size()) {
    out.kind = Speculation::Kind::kDraft;
    out.draft_model = how.substr(kDraftPrefix.size());
  } else {
    return refuse();
  }
  return out;
}

}  // namespace kvant::engine
