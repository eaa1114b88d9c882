#include "ops/cuda/decoder_kernels.h"

#include <string>

#include "ops/cuda/argmax.cuh"
#include "ops/cuda/change_logits.cuh"
#include "ops/cuda/draw.cuh"
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/logprobs.cuh"
#include "ops/cuda/norm.cuh"

namespace kvant::ops::cuda {

Status embed(const EmbedArgs& args, void* stream) {
  const EmbedParams params{.table = static_cast<const __nv_bfloat16*>(args.table),
                           .tokens = args.tokens,
                           .out = args.out,
                           .num_vectors = args.num_tokens * args.width / 8,
                           .row_vectors = static_cast<int32_t>(args.width / 8),
                           .scale = args.scale};
  return launch("embedding", embed_kernel, blocks_for(params.num_vectors, kElementThreads), kElementThreads, params,
                stream);
}

Status normalise(const NormArgs& args, void* stream) {
  const NormParams params{.x = args.x,
                          .row_indices = args.row_indices,
                          .weight = args.weight,
                          .out = static_cast<__nv_bfloat16*>(args.out),
                          .dim = static_cast<int32_t>(args.dim),
                          .epsilon = args.epsilon};
  const bool many = args.num_rows > kMostFewRows && args.dim <= kManyRowsNormThreads * kNormHeld * 8;
  return launch("norm", normalise_kernel, static_cast<unsigned>(args.num_rows),
                many ? kManyRowsNormThreads : kNormThreads, params, stream);
}

Status normalise_add(const NormAddArgs& args, void* stream) {
  const NormAddParams params{.x = args.x,
                             .weight = args.weight,
                             .sum = args.sum,
                             .dim = static_cast<int32_t>(args.dim),
                             .epsilon = args.epsilon};
  return launch("added norm", normalise_add_kernel, static_cast<unsigned>(args.num_rows), kNormThreads, params, stream);
}

Status add_bias(float* x, int64_t num_rows, int64_t width, const float* bias, void* stream) {
  const BiasParams params{.x = x, .bias = bias, .count = num_rows * width, .width = static_cast<int32_t>(width)};
  return launch("bias", add_bias_kernel, blocks_for(params.count, kElementThreads), kElementThreads, params, stream);
}

Status soft_cap(float* x, int64_t count, float cap, void* stream) {
  const SoftCapParams params{.x = x, .count = count, .cap = cap};
  return launch("soft cap", soft_cap_kernel, blocks_for(count, kElementThreads), kElementThreads, params, stream);
}

Status apply_gate(const GateArgs& args, void* stream) {
  const GateParams params{.gate_up = static_cast<const Bf16x8*>(args.gate_up),
                          .out = static_cast<Bf16x8*>(args.out),
                          .num_vectors = args.num_rows * args.size / 8,
                          .row_vectors = static_cast<int32_t>(args.size / 8),
                          .limit = args.gate.limit};
  const auto run = [&](void (*kernel)(GateParams)) {
    return launch("gate", kernel, blocks_for(params.num_vectors, kElementThreads), kElementThreads, params, stream);
  };
  switch (args.gate.kind) {
    case GateKind::kSilu: return run(gate_kernel<GateKind::kSilu>);
    case GateKind::kGeluTanh: return run(gate_kernel<GateKind::kGeluTanh>);
    case GateKind::kClampedSwish: return run(gate_kernel<GateKind::kClampedSwish>);
  }
  return {StatusCode::kInternal, "gate out of range"};
}

Status argmax(const ArgmaxArgs& args, void* stream) {
  auto* keys = static_cast<unsigned long long*>(args.scratch);
  const ArgmaxParams params{.logits = args.logits,
                            .out = args.out,
                            .keys = keys,
                            .arrived = reinterpret_cast<uint32_t*>(keys + args.max_rows),
                            .vocabulary = static_cast<int32_t>(args.vocabulary)};
  return launch("argmax", argmax_kernel, dim3(kArgmaxBlocks, static_cast<unsigned>(args.num_rows)), kArgmaxThreads,
                params, stream);
}

Status change_logits(const DrawArgs& args, float* before, void* stream) {
  const ChangeParams params{.logits = args.logits,
                            .draws = args.draws,
                            .row_indices = args.row_indices,
                            .changes = args.changes,
                            .before = before,
                            .vocabulary = static_cast<int32_t>(args.vocabulary)};
  return launch("changed logits", change_logits_kernel, dim3(kChangeBlocks, static_cast<unsigned>(args.num_rows)),
                kChangeThreads, params, stream);
}

Status find_logprobs(const DrawArgs& args, double* log_sums, void* stream) {
  const LogprobParams params{.logits = args.logits,
                             .draws = args.draws,
                             .row_indices = args.row_indices,
                             .log_sums = log_sums,
                             .out = args.logprobs,
                             .vocabulary = static_cast<int32_t>(args.vocabulary)};
  return launch("log probability", logprobs_kernel, static_cast<unsigned>(args.num_rows), kLogprobThreads, params,
                stream);
}

Status find_drawn_logprobs(const DrawArgs& args, const float* before, const double* log_sums, void* stream) {
  const DrawnLogprobParams params{.logits = args.logits,
                                  .draws = args.draws,
                                  .row_indices = args.row_indices,
                                  .changes = args.changes,
                                  .before = before,
                                  .log_sums = log_sums,
                                  .drawn = args.out,
                                  .out = args.logprobs,
                                  .vocabulary = static_cast<int32_t>(args.vocabulary)};
  return launch("log probability", drawn_logprob_kernel, static_cast<unsigned>(args.num_rows), 32, params, stream);
}

Status draw(const DrawArgs& args, void* stream) {
  const DrawParams params{.logits = args.logits,
                          .draws = args.draws,
                          .row_indices = args.row_indices,
                          .out = args.out,
                          .vocabulary = static_cast<int32_t>(args.vocabulary)};
  return launch("draw", draw_kernel, static_cast<unsigned>(args.num_rows), kDrawThreads, params, stream);
}

Status fill_rope_tables(const RopeTableArgs& args, void* stream) {
  const RopeTableParams params{.frequencies = args.frequencies,
                               .positions = args.positions,
                               .cosines = args.cosines,
                               .sines = args.sines,
                               .count = args.num_tokens * args.num_pairs,
                               .num_pairs = static_cast<int32_t>(args.num_pairs),
                               .scale = args.scale};
  return launch("RoPE table", rope_table_kernel, blocks_for(params.count, kElementThreads), kElementThreads, params,
                stream);
}

}  // namespace kvant::ops::cuda
