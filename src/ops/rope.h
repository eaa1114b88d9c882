#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/core/stream.h"

namespace kvant::ops {

/// Which channels of a head form the pair that RoPE turns.
enum class RopePairs : uint8_t {
  kHalves,       ///< (i, i + dim / 2)
  kInterleaved,  ///< (2 i, 2 i + 1)
};

struct RopeParams {
  int32_t dim = 0;  ///< Leading channels of a head that are turned; even.
  double theta = 10000.0;
  RopePairs pairs = RopePairs::kHalves;
  std::vector<float> frequency_factors = {};  ///< [dim / 2], divides each pair's frequency; empty = 1.
};

/// Frequency factors of llama3 scaling: 1 above the high, `factor` below the low frequency bound, smooth between.
struct Llama3Scaling {
  double factor = 8.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  double original_context = 8192.0;
};
std::vector<float> llama3_frequency_factors(int32_t dim, double theta, const Llama3Scaling& scaling);

/// Rotary position embedding of one step: sines and cosines are computed once per step and serve all layers.
class Rope {
 public:
  explicit Rope(RopeParams params);

  /// Positions of the step's tokens. Allocates only when a step has more tokens than any before.
  void set_positions(std::span<const int32_t> positions);

  /// Turns x [num_tokens, num_heads, head_dim] in place; rows are `token_stride` elements apart. The number of tokens
  /// is that of `set_positions`.
  void apply(float* x, int64_t num_heads, int64_t head_dim, int64_t token_stride, Stream stream) const;

 private:
  RopeParams params_;
  std::vector<double> frequencies_;  // [dim / 2]
  std::vector<float> cosines_;       // [num_tokens, dim / 2]
  std::vector<float> sines_;
  int64_t num_tokens_ = 0;
};

}  // namespace kvant::ops
