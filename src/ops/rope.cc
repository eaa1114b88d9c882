#include "ops/rope.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "kvant/core/status.h"
#include "ops/cuda/decoder_kernels.h"

namespace kvant::ops {

std::vector<float> llama3_frequency_factors(int32_t dim, double theta, const Llama3Scaling& scaling) {
  std::vector<float> factors(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
    const double turns = scaling.original_context * frequency / (2.0 * std::numbers::pi);
    const double range = scaling.high_frequency_factor - scaling.low_frequency_factor;
    const double smooth = std::clamp((turns - scaling.low_frequency_factor) / range, 0.0, 1.0);
    // The published rule interpolates the frequency itself: f (smooth + (1 - smooth) / factor).
    factors[i] = static_cast<float>(1.0 / (smooth + (1.0 - smooth) / scaling.factor));
  }
  return factors;
}

std::vector<float> yarn_frequency_factors(int32_t dim, double theta, const YarnScaling& scaling) {
  // The pair that turns this often in the original context.
  const auto pair_of = [&](double turns) {
    return dim * std::log(scaling.original_context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  };
  double low = pair_of(scaling.fast_turns), high = pair_of(scaling.slow_turns);
  if (scaling.whole_pairs) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<float> factors(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < factors.size(); ++i) {
    const double kept = 1.0 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    factors[i] = static_cast<float>(1.0 / (kept + (1.0 - kept) / scaling.factor));
  }
  return factors;
}

Rope::Rope(RopeParams params) : params_(std::move(params)), frequencies_(static_cast<size_t>(params_.dim / 2)) {
  KVANT_CHECK(params_.dim >= 0 && params_.dim % 2 == 0);
  KVANT_CHECK(params_.frequency_factors.empty() || params_.frequency_factors.size() == frequencies_.size());
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(params_.theta, -2.0 * static_cast<double>(i) / params_.dim);
    if (!params_.frequency_factors.empty()) frequencies_[i] /= static_cast<double>(params_.frequency_factors[i]);
  }
}

Result<Rope> Rope::create(RopeParams params, int64_t max_tokens, Stream stream) {
  Rope rope(std::move(params));
  rope.max_tokens_ = max_tokens;
  if (stream.cuda == nullptr || rope.frequencies_.empty()) return rope;
  const auto frequency_bytes = static_cast<int64_t>(rope.frequencies_.size() * sizeof(double));
  KVANT_ASSIGN_OR_FAIL(
      rope.device_,
      DeviceBuffer::create(MemoryKind::kCuda, frequency_bytes + 2 * rope.table_size() * int64_t{sizeof(float)},
                           "sines of positions"));
  KVANT_FAIL_IF_ERROR(copy_bytes(rope.device_.data(), rope.frequencies_.data(), frequency_bytes, stream));
  KVANT_FAIL_IF_ERROR(synchronise(stream));
  return rope;
}

Status Rope::set_positions(const int32_t* positions, int64_t num_tokens, Stream stream) {
  if (stream.cuda == nullptr) {
    set_positions({positions, static_cast<size_t>(num_tokens)});
    return {};
  }
  KVANT_CHECK(num_tokens <= max_tokens_);
  return cuda::fill_rope_tables({.frequencies = device_.as<double>(),
                                 .num_pairs = num_pairs(),
                                 .positions = positions,
                                 .num_tokens = num_tokens,
                                 .cosines = device_cosines(),
                                 .sines = device_cosines() + table_size(),
                                 .scale = params_.scale},
                                stream.cuda);
}

void Rope::set_positions(std::span<const int32_t> positions) {
  const size_t num_pairs = frequencies_.size();
  cosines_.resize(std::max(cosines_.size(), positions.size() * num_pairs));
  sines_.resize(cosines_.size());
  for (size_t token = 0; token < positions.size(); ++token) {
    for (size_t i = 0; i < num_pairs; ++i) {
      const double angle = positions[token] * frequencies_[i];
      cosines_[token * num_pairs + i] = static_cast<float>(params_.scale * std::cos(angle));
      sines_[token * num_pairs + i] = static_cast<float>(params_.scale * std::sin(angle));
    }
  }
}

}  // namespace kvant::ops
