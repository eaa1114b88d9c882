#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device_memory.h"
#include "kvant/core/rope_pairs.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant::ops {

struct RopeParams {
  int32_t dim = 0;  ///< Leading channels of a head that are turned; even.
  double theta = 10000.0;
  RopePairs pairs = RopePairs::kHalves;
  std::vector<float> frequency_factors = {};  ///< [dim / 2], divides each pair's frequency; empty = 1.
  double scale = 1.0;                         ///< Of turned channels.
};

/// Frequency factors of llama3 scaling: 1 above the high, `factor` below the low frequency bound, smooth between.
struct Llama3Scaling {
  double factor = 8.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  double original_context = 8192.0;
};
std::vector<float> llama3_frequency_factors(int32_t dim, double theta, const Llama3Scaling& scaling);

/// Frequency factors of YaRN: 1 for pairs that turn more than `fast_turns` times in the original context, `factor` for
/// those that turn less than `slow_turns` times, a ramp over the pairs between.
struct YarnScaling {
  double factor = 1.0;
  double original_context = 4096.0;
  double fast_turns = 32.0;
  double slow_turns = 1.0;
  bool whole_pairs = true;  ///< The ramp starts and ends at whole pairs.
};
std::vector<float> yarn_frequency_factors(int32_t dim, double theta, const YarnScaling& scaling);

/// Rotary position embedding of one step: sines and cosines are computed once per step and serve all layers.
class Rope {
 public:
  explicit Rope(RopeParams params);
  /// For a stream's device. On CUDA the tables are made there, for at most `max_tokens` tokens a step.
  static Result<Rope> create(RopeParams params, int64_t max_tokens, Stream stream);

  /// Positions of the step's tokens, in memory of the stream's device.
  Status set_positions(const int32_t* positions, int64_t num_tokens, Stream stream);
  /// Positions of the step's tokens. Allocates only when a step has more tokens than any before.
  void set_positions(std::span<const int32_t> positions);

  int64_t num_pairs() const { return static_cast<int64_t>(frequencies_.size()); }
  RopePairs pairs() const { return params_.pairs; }
  /// [num_tokens, num_pairs] in memory of the device.
  const float* cosines() const { return device_.data() == nullptr ? cosines_.data() : device_cosines(); }
  const float* sines() const { return device_.data() == nullptr ? sines_.data() : device_cosines() + table_size(); }

 private:
  // On CUDA: frequencies (double), cosines, sines.
  float* device_cosines() const { return reinterpret_cast<float*>(device_.as<double>() + frequencies_.size()); }
  int64_t table_size() const { return max_tokens_ * num_pairs(); }

  RopeParams params_;
  std::vector<double> frequencies_;  // [dim / 2]
  std::vector<float> cosines_;       // [num_tokens, dim / 2]
  std::vector<float> sines_;
  DeviceBuffer device_;
  int64_t max_tokens_ = 0;
};

}  // namespace kvant::ops
