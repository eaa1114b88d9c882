#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvant::attn {

/// Element encoding of a K or V plane. The arithmetic is defined to the bit in docs/kv_formats/.
enum class KvFormat : uint8_t { kF32, kF16, kBf16, kE4m3, kE5m2, kNvfp4 };

/// One row per format: all that code outside a codec may ask about it.
struct KvFormatInfo {
  KvFormat format;
  std::string_view name;
  int32_t data_bits;    ///< Bits per element in the data plane.
  int32_t scale_block;  ///< Elements that share one scale byte; 0 = no scale plane.
  bool quantised;       ///< Has a global scale g, may have exact edges and conditioned keys.
};

inline constexpr KvFormatInfo kKvFormats[] = {
    {KvFormat::kF32, "f32", 32, 0, false},   {KvFormat::kF16, "f16", 16, 0, false},
    {KvFormat::kBf16, "bf16", 16, 0, false}, {KvFormat::kE4m3, "e4m3", 8, 0, true},
    {KvFormat::kE5m2, "e5m2", 8, 0, true},   {KvFormat::kNvfp4, "nvfp4", 4, 16, true},
};

constexpr const KvFormatInfo& info(KvFormat format) { return kKvFormats[static_cast<int>(format)]; }
constexpr std::string_view to_string(KvFormat format) { return info(format).name; }

/// Accepts the names above and `fp8` for e4m3.
constexpr std::optional<KvFormat> parse_kv_format(std::string_view name) {
  if (name == "fp8") return KvFormat::kE4m3;
  for (const KvFormatInfo& row : kKvFormats)
    if (row.name == name) return row.format;
  return std::nullopt;
}

/// How the NVFP4 quantiser picks a block scale. Every policy writes bytes that every NVFP4 reader understands.
enum class ScalePolicy : uint8_t { kAmax, kFourOverSix, kSearch };

constexpr std::string_view to_string(ScalePolicy policy) {
  switch (policy) {
    case ScalePolicy::kAmax: return "amax";
    case ScalePolicy::kFourOverSix: return "four_over_six";
    case ScalePolicy::kSearch: return "search";
  }
  return "?";
}

/// What is done to a key, after RoPE, before it is stored (docs/kv_formats/conditioning.md).
enum class KeyConditioning : uint8_t {
  kNone,
  kMean,  ///< Subtract a static mean per KV head and channel.
  kFull,  ///< Mean, channel balance and an orthonormal Hadamard rotation.
};

constexpr std::string_view to_string(KeyConditioning conditioning) {
  switch (conditioning) {
    case KeyConditioning::kNone: return "none";
    case KeyConditioning::kMean: return "mean";
    case KeyConditioning::kFull: return "full";
  }
  return "?";
}

}  // namespace kvant::attn
