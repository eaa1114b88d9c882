#include "ops/cuda/decoder_kernels.h"

namespace kvant::ops::cuda {
namespace {

Status unsupported() {
  return {StatusCode::kUnsupported, "this build has no CUDA; use the CPU, or build the preset cuda-sm90"};
}

}  // namespace

Status embed(const EmbedArgs&, void*) { return unsupported(); }
Status normalise(const NormArgs&, void*) { return unsupported(); }
Status normalise_add(const NormAddArgs&, void*) { return unsupported(); }
Status add_bias(float*, int64_t, int64_t, const float*, void*) { return unsupported(); }
Status soft_cap(float*, int64_t, float, void*) { return unsupported(); }
Status apply_gate(const GateArgs&, void*) { return unsupported(); }
Status argmax(const ArgmaxArgs&, void*) { return unsupported(); }
Status change_logits(const DrawArgs&, float*, void*) { return unsupported(); }
Status find_logprobs(const DrawArgs&, double*, void*) { return unsupported(); }
Status find_drawn_logprobs(const DrawArgs&, const float*, const double*, void*) { return unsupported(); }
Status draw(const DrawArgs&, void*) { return unsupported(); }
Status fill_rope_tables(const RopeTableArgs&, void*) { return unsupported(); }

}  // namespace kvant::ops::cuda
