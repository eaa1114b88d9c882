#pragma once

#include <cstdint>

#include "kvant/core/status.h"
#include "ops/decoder_ops.h"

// The CUDA side of ops/decoder_ops.h. `stream` is a cudaStream_t. In a build without CUDA all calls fail.
namespace kvant::ops::cuda {

struct EmbedArgs {
  const void* table = nullptr;  ///< [vocabulary, width] bf16
  const int32_t* tokens = nullptr;
  int64_t num_tokens = 0;
  int64_t width = 0;
  float scale = 1.0f;
  float* out = nullptr;  ///< [num_tokens, width]
};
Status embed(const EmbedArgs& args, void* stream);
Status normalise(const NormArgs& args, void* stream);
Status normalise_add(const NormAddArgs& args, void* stream);
Status add_bias(float* x, int64_t num_rows, int64_t width, const float* bias, void* stream);
Status soft_cap(float* x, int64_t count, float cap, void* stream);
Status apply_gate(const GateArgs& args, void* stream);

struct ArgmaxArgs {
  const float* logits = nullptr;  ///< [num_rows, vocabulary]
  int64_t num_rows = 0;
  int64_t vocabulary = 0;
  int32_t* out = nullptr;   ///< [num_rows]
  void* scratch = nullptr;  ///< argmax_scratch_bytes(max_rows), zero between calls
  int64_t max_rows = 0;
};
constexpr int64_t argmax_scratch_bytes(int64_t max_rows) {
  return max_rows * static_cast<int64_t>(sizeof(uint64_t) + sizeof(uint32_t));
}
Status argmax(const ArgmaxArgs& args, void* stream);
/// `before` [kMaxLogitChanges] receives the logits that are changed, as they were.
Status change_logits(const DrawArgs& args, float* before, void* stream);
/// Before logits are changed: alternatives, and `log_sums` [num_rows].
Status find_logprobs(const DrawArgs& args, double* log_sums, void* stream);
/// After the draw.
Status find_drawn_logprobs(const DrawArgs& args, const float* before, const double* log_sums, void* stream);
/// Replaces the tokens of rows with a temperature; `argmax` of the same rows comes before.
Status draw(const DrawArgs& args, void* stream);

struct RopeTableArgs {
  const double* frequencies = nullptr;  ///< [num_pairs]
  int64_t num_pairs = 0;
  const int32_t* positions = nullptr;  ///< [num_tokens]
  int64_t num_tokens = 0;
  float* cosines = nullptr;  ///< [num_tokens, num_pairs]
  float* sines = nullptr;
  double scale = 1.0;  ///< Of both.
};
Status fill_rope_tables(const RopeTableArgs& args, void* stream);

}  // namespace kvant::ops::cuda
