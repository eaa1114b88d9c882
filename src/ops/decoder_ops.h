#pragma once

#include <cstdint>
#include <memory>

#include "core/device_memory.h"
#include "kvant/core/dtype.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "ops/activation.h"
#include "ops/draw.h"
#include "ops/linear.h"

// The steps of a decoder between its matrix products, on the device that the stream names. All pointers are memory of
// that device. Activations, written `void*`, are f32 on the CPU and bf16 on CUDA; the residual stream, weights of
// norms, biases and logits are f32 on both. On CUDA calls are asynchronous, can be captured, and need rows of whole 16
// bytes: sizes that are multiples of 8.
namespace kvant::ops {

constexpr DType activation_dtype(Stream stream) { return stream.cuda != nullptr ? DType::kBf16 : DType::kF32; }

/// The token embedding. On the CPU rows are read when a token needs them; on CUDA they are in memory, shared with a
/// tied head.
class Embedding {
 public:
  /// `rows` and `tied`, the head's layer when it has the same weight or null, must outlive the embedding.
  static Result<Embedding> create(int64_t vocabulary, int64_t width, const WeightRows& rows, const Linear* tied,
                                  Stream stream, LinearContext* context);
  /// out [num_tokens, width] = rows times `scale`; tokens in [0, vocabulary) are trusted.
  Status run(const int32_t* tokens, int64_t num_tokens, float scale, float* out, Stream stream) const;
  /// Of memory that the embedding itself holds.
  int64_t bytes() const { return own_ == nullptr ? 0 : own_->weight_bytes(); }

 private:
  int64_t width_ = 0;
  WeightRows rows_;
  std::unique_ptr<Linear> own_;  ///< Holds the table on CUDA, unless the head does.
  const void* table_ = nullptr;
};

struct NormArgs {
  const float* x = nullptr;              ///< [num_rows or more, dim]
  const int32_t* row_indices = nullptr;  ///< [num_rows] rows of x to take; null = the first ones.
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* weight = nullptr;  ///< [dim]
  float epsilon = 0.0f;
  void* out = nullptr;  ///< [num_rows, dim] activations
};
/// out = x / sqrt(mean(x^2) + epsilon) * weight, row by row.
Status normalise(const NormArgs& args, Stream stream);

struct NormAddArgs {
  float* x = nullptr;  ///< [num_rows, dim]; overwritten.
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* weight = nullptr;  ///< [dim]
  float epsilon = 0.0f;
  float* sum = nullptr;  ///< [num_rows, dim]
};
/// sum += x / sqrt(mean(x^2) + epsilon) * weight, row by row: blocks whose output is normed before it joins the
/// residual stream.
Status normalise_add(const NormAddArgs& args, Stream stream);

/// Adds `bias` [width] to each row of x [num_rows, width], fp32.
Status add_bias(float* x, int64_t num_rows, int64_t width, const float* bias, Stream stream);

/// x = cap * tanh(x / cap) over logits [num_rows, width].
Status soft_cap(float* x, int64_t num_rows, int64_t width, float cap, Stream stream);

struct GateArgs {
  Gate gate;
  const void* gate_up = nullptr;  ///< [num_rows, 2 * size] activations, gate channels first
  int64_t num_rows = 0;
  int64_t size = 0;
  void* out = nullptr;  ///< [num_rows, size] activations
};
/// out = act(gate) * up.
Status apply_gate(const GateArgs& args, Stream stream);

struct DrawArgs {
  float* logits = nullptr;  ///< [num_rows, vocabulary]; changed where `changes` are given.
  int64_t num_rows = 0;
  int64_t vocabulary = 0;
  const Draw* draws = nullptr;           ///< How tokens are drawn, by row index.
  const int32_t* row_indices = nullptr;  ///< [num_rows]; null = 0, 1, ...
  int32_t* out = nullptr;                ///< [num_rows]
  /// What `draws` change of the logits; null = nothing, whatever they say. At most kMaxLogitChanges.
  const LogitChange* changes = nullptr;
  DrawnLogprobs* logprobs = nullptr;  ///< [num_rows], of rows that want some; null = none do.
};
/// Of all rows that are drawn at once.
inline constexpr int64_t kMaxLogitChanges = int64_t{1} << 18;

/// Draws tokens where the logits are. Made once: holds what a draw needs.
class DeviceSampler {
 public:
  static Result<DeviceSampler> create(int64_t max_rows, Stream stream);
  /// out[row] = a token drawn from the row. Without temperature it is the index of the largest logit, the lowest one on
  /// ties; NaN counts as minus infinity. With one, the same logits and draw give the same token on one kind of device;
  /// the CPU's differs from the GPU's. Changed logits are the same bits on both.
  Status run(const DrawArgs& args, Stream stream) const;

 private:
  DeviceBuffer scratch_;   ///< CUDA: best so far and blocks done, per row; zero between calls.
  DeviceBuffer before_;    ///< CUDA: logits as they were before each change.
  DeviceBuffer log_sums_;  ///< CUDA: [max_rows] double
  int64_t max_rows_ = 0;
};

}  // namespace kvant::ops
