#include <algorithm>

#include <fmt/format.h>

#include "attn/cuda/backend.h"
#include "attn/cuda/generic/merge.h"

namespace kvant::attn::cuda {

Status merge_parts(const MergeArgs& args, void* stream) {
  if (args.outs.size() > static_cast<size_t>(kMaxMergeParts)) {
    return {StatusCode::kUnsupported,
            fmt::format("needed: a merge of {} parts; offered on CUDA: up to {}; merge in two rounds", args.outs.size(),
                        kMaxMergeParts)};
  }
  MergeParams params{};
  std::ranges::copy(args.outs, params.outs);
  std::ranges::copy(args.lses, params.lses);
  params.sinks = args.sinks;
  params.out = args.out;
  params.lse = args.lse;
  params.num_rows = int64_t{args.num_tokens} * args.num_q_heads;
  params.num_parts = static_cast<int32_t>(args.outs.size());
  params.num_q_heads = args.num_q_heads;
  params.head_dim = args.head_dim_v;
  params.out_dtype = args.out_dtype;
  return launch_merge(params, static_cast<cudaStream_t>(stream));
}

}  // namespace kvant::attn::cuda
