#include "ops/rope.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "core/simd_targets.h"
#include "kvant/core/status.h"
#include "ops/cuda/decoder_kernels.h"
#include "ops/row_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void turn_halves(float* head, const float* cosines, const float* sines, int64_t num_pairs) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float* first = head;
  float* second = head + num_pairs;
  int64_t i = 0;
  for (; i + lanes <= num_pairs; i += lanes) {
    const auto a = hn::LoadU(d, first + i);
    const auto b = hn::LoadU(d, second + i);
    const auto c = hn::LoadU(d, cosines + i);
    const auto s = hn::LoadU(d, sines + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, first + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, second + i);
  }
  for (; i < num_pairs; ++i) {
    const float a = first[i];
    const float b = second[i];
    first[i] = a * cosines[i] - b * sines[i];
    second[i] = b * cosines[i] + a * sines[i];
  }
}

void turn_interleaved(float* head, const float* cosines, const float* sines, int64_t num_pairs) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= num_pairs; i += lanes) {
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, head + 2 * i, a, b);
    const auto c = hn::LoadU(d, cosines + i);
    const auto s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d, head + 2 * i);
  }
  for (; i < num_pairs; ++i) {
    const float a = head[2 * i];
    const float b = head[2 * i + 1];
    head[2 * i] = a * cosines[i] - b * sines[i];
    head[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace kvant::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::ops {

HWY_EXPORT(turn_halves);
HWY_EXPORT(turn_interleaved);

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
  num_tokens_ = num_tokens;
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
  num_tokens_ = static_cast<int64_t>(positions.size());
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

void Rope::apply(float* x, int64_t num_heads, int64_t head_dim, int64_t token_stride, Stream stream) const {
  const auto num_pairs = static_cast<int64_t>(frequencies_.size());
  if (num_pairs == 0) return;
  KVANT_CHECK(params_.dim <= head_dim);
  const auto turn = params_.pairs == RopePairs::kHalves ? &HWY_DYNAMIC_DISPATCH(turn_halves)
                                                        : &HWY_DYNAMIC_DISPATCH(turn_interleaved);
  for_row_blocks(num_tokens_, num_heads * params_.dim, stream, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < num_heads; ++head) {
        turn(x + token * token_stride + head * head_dim, cosines_.data() + token * num_pairs,
             sines_.data() + token * num_pairs, num_pairs);
      }
    }
  });
}

}  // namespace kvant::ops
#endif
