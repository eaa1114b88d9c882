#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "kvant/engine/engine.h"

namespace kvant::engine {
namespace {

struct Suffix {
  std::string_view text;
  KvMemory::Unit unit;
  double factor;
};

constexpr double kKib = 1024.0;
constexpr std::array<Suffix, 7> kSuffixes = {{{"KiB", KvMemory::Unit::kBytes, kKib},
                                              {"MiB", KvMemory::Unit::kBytes, kKib* kKib},
                                              {"GiB", KvMemory::Unit::kBytes, kKib* kKib* kKib},
                                              {"TiB", KvMemory::Unit::kBytes, kKib* kKib* kKib* kKib},
                                              {"B", KvMemory::Unit::kBytes, 1.0},
                                              {"t", KvMemory::Unit::kTokens, 1.0},
                                              {"", KvMemory::Unit::kFraction, 1.0}}};

}  // namespace

Result<KvMemory> parse_kv_memory(std::string_view text) {
  if (text == "auto") return KvMemory{};
  const auto refuse = [&](std::string_view why) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("KV memory '{}' {}; give auto, bytes (2GiB, 500MiB, 800000000B), tokens (40000t) or a "
                               "fraction of the free memory (0.8)",
                               text, why));
  };
  double number = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return refuse("does not start with a number");
  const std::string_view suffix(rest, static_cast<size_t>(text.data() + text.size() - rest));
  for (const Suffix& known : kSuffixes) {
    if (suffix != known.text) continue;
    const double value = number * known.factor;
    // Written so that NaN fails.
    if (!(value > 0.0 && value < 0x1p62)) return refuse("is out of range");
    if (known.unit == KvMemory::Unit::kFraction && value > 1.0) return refuse("is more than the free memory");
    if (known.unit == KvMemory::Unit::kTokens && !(value >= 1.0 && value < 0x1p31)) return refuse("is out of range");
    return KvMemory{.unit = known.unit, .value = value};
  }
  return refuse(fmt::format("has an unknown unit '{}'", suffix));
}

}  // namespace kvant::engine
