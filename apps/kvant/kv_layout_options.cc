#include "kv_layout_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace kvant::cli {

Result<attn::KvFormat> format_from(const std::string& text) {
  if (const std::optional<attn::KvFormat> format = attn::parse_kv_format(text)) return *format;
  std::vector<std::string_view> names;
  for (const attn::KvFormatInfo& row : attn::kKvFormats) names.push_back(row.name);
  return failure(StatusCode::kInvalidArgument,
                 fmt::format("KV format '{}' is not known; choose one of {}", text, fmt::join(names, ", ")));
}

Result<attn::ScalePolicy> policy_from(const std::string& text) {
  using attn::ScalePolicy;
  for (const ScalePolicy policy : {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch})
    if (to_string(policy) == text) return policy;
  return failure(StatusCode::kInvalidArgument,
                 fmt::format("scale policy '{}' is not known; choose amax, four_over_six or search", text));
}

Result<attn::CodeOrder> code_order_from(const std::string& text) {
  if (text == "linear") return attn::CodeOrder::kLinear;
  if (text == "packed") return attn::CodeOrder::kPacked;
  return failure(StatusCode::kInvalidArgument,
                 fmt::format("code order '{}' is not known; choose linear or packed", text));
}

}  // namespace kvant::cli
