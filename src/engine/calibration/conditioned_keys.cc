#include "engine/calibration/conditioned_keys.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "kvant/attn/append.h"

namespace kvant::engine {
namespace {

/// Most channels that the Hadamard transform mixes.
constexpr size_t kMostMixed = 64;

/// Mean squares of conditioned queries: q z per channel, spread evenly over what is mixed.
std::vector<double> conditioned_mean_squares(std::span<const double> mean_squares, std::span<const float> z,
                                             size_t head_dim) {
  const size_t mixed = std::gcd(kMostMixed, head_dim);
  std::vector<double> out(mean_squares.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = mean_squares[i] * z[i] * z[i];
  for (size_t first = 0; first < out.size(); first += mixed) {
    const auto block = std::span(out).subspan(first, mixed);
    std::fill(block.begin(), block.end(),
              std::accumulate(block.begin(), block.end(), 0.0) / static_cast<double>(mixed));
  }
  return out;
}

}  // namespace

Result<std::vector<float>> conditioned_keys(const LayerConfig& config, const attn::KeyConditioner& conditioner,
                                            attn::KvFormat format, std::span<const float> scales,
                                            std::span<const float> keys, Stream stream) {
  constexpr int32_t kPage = attn::kCpuKvLimits.max_page_size;
  const attn::KvLayout layout{.k_format = format,
                              .v_format = format,
                              .head_dim_k = config.head_dim_k,
                              .head_dim_v = config.head_dim_k,
                              .num_kv_heads = config.num_kv_heads,
                              .page_size = kPage};
  std::vector<std::byte> page(static_cast<size_t>(layout.page_bytes()));
  std::vector<int64_t> slots(kPage);
  std::iota(slots.begin(), slots.end(), int64_t{0});
  attn::KvCacheView cache{.layout = layout,
                          .base = {.data = page.data(), .num_pages = 1, .page_stride = layout.page_bytes()},
                          .exact = {},
                          .scales = {},
                          .conditioner = conditioner};
  if (!scales.empty()) cache.scales = {.k = scales.data(), .v = scales.data(), .count = config.num_kv_heads};
  const int64_t channels = int64_t{config.num_kv_heads} * config.head_dim_k;
  const int64_t tokens = std::ssize(keys) / channels;
  std::vector<float> out(keys.size()), values(static_cast<size_t>(kPage * channels));
  for (int64_t first = 0; first < tokens; first += kPage) {
    const int64_t count = std::min<int64_t>(kPage, tokens - first);
    const float* rows = keys.data() + first * channels;
    KVANT_FAIL_IF_ERROR(attn::append({.cache = cache,
                                      .policy = attn::ScalePolicy::kFourOverSix,
                                      .k = rows,
                                      .v = rows,
                                      .slots = slots.data(),
                                      .num_tokens = count},
                                     stream));
    KVANT_FAIL_IF_ERROR(attn::dequantise(cache, std::span(slots).first(static_cast<size_t>(count)),
                                         out.data() + first * channels, values.data(), stream));
  }
  return out;
}

Result<float> score_noise(const LayerConfig& config, const LayerProfile& profile, std::span<const float> keys,
                          std::span<const double> query_mean_squares, Stream stream) {
  constexpr attn::KeyConditioning kFull = attn::KeyConditioning::kFull;
  const attn::KeyConditioner conditioner{
      .kind = kFull, .mu = profile.mu.data(), .z = profile.z.data(), .zi = profile.zi.data()};
  KVANT_ASSIGN_OR_FAIL(const std::vector<float> exact,
                       conditioned_keys(config, conditioner, attn::KvFormat::kF32, {}, keys, stream));
  KVANT_ASSIGN_OR_FAIL(const std::vector<float> rounded,
                       conditioned_keys(config, conditioner, attn::KvFormat::kNvfp4,
                                        profile.g_k[static_cast<size_t>(kFull)], keys, stream));
  const std::vector<double> weights =
      conditioned_mean_squares(query_mean_squares, profile.z, static_cast<size_t>(config.head_dim_k));
  double squares = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = static_cast<double>(rounded[i]) - exact[i];
    squares += error * error * weights[i % weights.size()];
  }
  const size_t rows = exact.size() / static_cast<size_t>(config.head_dim_k);
  return static_cast<float>(config.softmax_scale * std::sqrt(squares / std::max(1.0, static_cast<double>(rows))));
}

}  // namespace kvant::engine
