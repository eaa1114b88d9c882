#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "attn/cpu/cpu_attention.h"
#include "attn/cpu/finish.h"

namespace kvant::attn::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A part without keys has weight 0 and its output is not looked at. One part alone keeps its bits.
void merge_one_row(const MergeArgs& args, int64_t row) {
  float max = kMinusInfinity;
  for (const float* lse : args.lses) max = std::max(max, lse[row]);
  float sum = 0.0f;
  for (const float* lse : args.lses)
    if (lse[row] != kMinusInfinity) sum += std::exp(lse[row] - max);
  const bool empty = max == kMinusInfinity && sum == 0.0f;
  if (args.lse != nullptr) args.lse[row] = empty ? kMinusInfinity : max + std::log(sum);

  float scale = empty ? 0.0f : 1.0f / sum;
  if (!empty && args.sinks != nullptr) {
    const float sink = args.sinks[row % args.num_q_heads];
    const float common = std::max(max, sink);
    scale = std::exp(max - common) / (sum * std::exp(max - common) + std::exp(sink - common));
  }
  constexpr int32_t kChunk = 128;
  for (int32_t first = 0; first < args.head_dim_v; first += kChunk) {
    const int32_t count = std::min(kChunk, args.head_dim_v - first);
    const int64_t at = row * args.head_dim_v + first;
    float values[kChunk] = {};
    for (size_t part = 0; part < args.outs.size(); ++part) {
      const float lse = args.lses[part][row];
      if (lse == kMinusInfinity) continue;
      const float weight = std::exp(lse - max);
      for (int32_t i = 0; i < count; ++i) values[i] += weight * args.outs[part][at + i];
    }
    store_values(values, scale, args.out_dtype, at, count, args.out);
  }
}

}  // namespace

Status merge_parts(const MergeArgs& args, ThreadPool& pool) {
  const auto merge_token = [&](int64_t token, int) {
    for (int32_t head = 0; head < args.num_q_heads; ++head) merge_one_row(args, token * args.num_q_heads + head);
  };
  pool.parallel_for(args.num_tokens, std::ref(merge_token));
  return {};
}

}  // namespace kvant::attn::cpu
