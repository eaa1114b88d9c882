#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <vector_types.h>

#include "attn/cuda/backend.h"
#include "attn/cuda/generic/decode_splitkv.h"
#include "attn/cuda/generic/prefill_flash.h"
#include "attn/cuda/launch_config.h"
#include "kvant/attn/attention.h"

namespace kvant::attn::cuda {

/// How the workspace is cut: counters first, at the same place for every plan, since they outlive a run.
struct WorkspaceCut {
  size_t partial_out = 0, partial_state = 0, bytes = 0;  // Offsets.
};

/// For two partial results of `rows` rows a block.
inline WorkspaceCut cut_workspace(int32_t num_blocks, int32_t rows, int32_t head_dim_v) {
  const size_t num_rows = size_t{2} * static_cast<size_t>(num_blocks) * static_cast<size_t>(rows);
  WorkspaceCut cut;
  cut.partial_out = aligned(kNumCounters * sizeof(uint32_t));
  cut.partial_state = cut.partial_out + aligned(num_rows * static_cast<size_t>(head_dim_v) * sizeof(float));
  cut.bytes = cut.partial_state + aligned(num_rows * sizeof(float2));
  return cut;
}

/// What decode and prefill kernels are told alike; page pools and what only one of them knows are left to the caller.
template <class Params>
Params common_params(const AttnPlan& plan, const AttnArgs& args, const WorkspaceCut& cut) {
  const AttnDesc& desc = plan.desc();
  const KvCacheView& cache = args.cache;
  Params params{};
  params.q = args.q;
  params.out = args.out;
  params.lse = args.lse;
  params.q_offsets = args.q_offsets;
  params.kv_lens = args.kv_lens;
  params.page_table = args.page_table;
  params.page_table_stride = args.page_table_stride;
  params.sinks = desc.sinks ? args.sinks : nullptr;
  params.mask = args.mask;
  params.mask_row_words = args.mask_row_words;
  params.positions = args.positions;
  params.num_requests = args.num_requests;

  params.k_scales = info(desc.layout.k_format).quantised ? cache.scales.k : nullptr;
  params.v_scales = info(desc.layout.v_format).quantised ? cache.scales.v : nullptr;
  params.scale_count = cache.scales.count;
  params.mu = desc.conditioning == KeyConditioning::kNone ? nullptr : cache.conditioner.mu;
  params.z = desc.conditioning == KeyConditioning::kFull ? cache.conditioner.z : nullptr;

  params.num_kv_heads = desc.layout.num_kv_heads;
  params.group = desc.num_q_heads / desc.layout.num_kv_heads;
  params.page_shift = std::countr_zero(static_cast<uint32_t>(desc.layout.page_size));
  params.window = desc.window;
  params.cp_rank = desc.context_parallel.rank;
  params.cp_size = desc.context_parallel.size;
  params.cp_interleave = desc.context_parallel.interleave;
  params.softmax_scale = desc.softmax_scale;
  params.soft_cap = desc.soft_cap;
  params.q_dtype = desc.q_dtype;
  params.out_dtype = desc.out_dtype;
  params.draft_mask = desc.draft_mask;

  std::byte* base = workspace_base(plan);
  params.counters = reinterpret_cast<uint32_t*>(base);
  params.partial_out = reinterpret_cast<float*>(base + cut.partial_out);
  params.partial_state = reinterpret_cast<float2*>(base + cut.partial_state);
  return params;
}

inline PlaneStrides plane_strides(const KvLayout& layout, bool value) {
  const auto row = [&](int32_t head, int32_t token) {
    return static_cast<int32_t>(value ? layout.v_row(head, token) : layout.k_row(head, token));
  };
  const auto scale = [&](int32_t head, int32_t token) {
    return static_cast<int32_t>(value ? layout.v_scale(head, token, 0) : layout.k_scale(head, token, 0));
  };
  PlaneStrides strides{};
  strides.data = row(0, 0);
  strides.scale = scale(0, 0);
  strides.data_token = row(0, 1) - strides.data;
  if (layout.num_kv_heads > 1) {
    strides.data_head = row(1, 0) - strides.data;
    strides.scale_head = scale(1, 0) - strides.scale;
  }
  if (layout.page_size > 16) strides.scale_tile = scale(0, 16) - strides.scale;
  return strides;
}

inline PoolParams pool_params(const KvPool& pool, const KvLayout& layout) {
  return {.pages = reinterpret_cast<const uint8_t*>(pool.data),
          .page_stride = static_cast<uint32_t>(pool.page_stride),
          .num_pages = static_cast<uint32_t>(std::min<int64_t>(pool.num_pages, kExactPageBit)),
          .k = plane_strides(layout, false),
          .v = plane_strides(layout, true)};
}

inline void set_pools(DecodeParams& params, const AttnDesc& desc, const KvCacheView& cache) {
  params.base = pool_params(cache.base, desc.layout);
  if (desc.exact_pages) params.exact = pool_params(cache.exact, desc.layout.exact());
}
inline void set_pools(PrefillParams& params, const AttnDesc& desc, const KvCacheView& cache) {
  params.head_dim_k = desc.layout.head_dim_k;
  params.head_dim_v = desc.layout.head_dim_v;
  params.base = make_page_pool(desc.layout, cache.base);
  params.exact_pages = desc.exact_pages;
  if (desc.exact_pages) params.exact = make_page_pool(desc.layout.exact(), cache.exact);
}

}  // namespace kvant::attn::cuda
