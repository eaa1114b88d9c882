#pragma once

// age_kernel: re-encodes whole exact (f16) pages into base pages, from a list in device memory. Shape as append_kernel:
// a lane holds 16 elements of a row or, where pages are few, four; grid.y is K and V. An entry that names a page
// outside its pool does nothing, which is how a captured call is padded.

#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/row_unit_codec.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/age.h"

namespace kvant::attn::cuda {

template <int kElements>
__global__ void __launch_bounds__(kWriterThreads) age_kernel(const __grid_constant__ AgeParams params) {
  start_row_units<kElements>();
  wait_for_previous_kernel();
  const uint32_t plane = blockIdx.y;
  const RowUnit unit = row_unit(params.grid[plane]);
  const uint32_t token_row = unit.row / params.num_kv_heads;
  const uint32_t head = unit.row - token_row * params.num_kv_heads;
  const uint32_t token = token_row & ((1u << params.page_shift) - 1);
  const PageAge age = unit.live ? params.ages[token_row >> params.page_shift] : PageAge{-1, -1};
  const bool ages = age.exact_page >= 0 && age.exact_page < params.exact.num_pages && age.base_page >= 0 &&
                    age.base_page < params.base.num_pages;
  // Lanes of other rows still take part in what a warp does together.
  if (__any_sync(0xffffffffu, ages) == 0) return;

  float x[kElements] = {};
  const uint8_t* from = params.exact.pages + age.exact_page * params.exact.page_stride;
  if (ages)
    load_unit(from + params.exact.plane[plane].data_offset(head, token, 0) + unit.block * kElements * 2, DType::kF16,
              x);
  const UnitEncoding encoding = {ages ? scale_of(params.scales[plane], params.scale_count, head) : 1.0f, params.policy};
  const PagePlane& to = params.base.plane[plane];
  uint8_t* page = params.base.pages + age.base_page * params.base.page_stride;
  if constexpr (kElements == kUnit) {
    if (ages) store_unit(to, page, head, token, unit.block, encoding, x);
  } else {
    store_unit(to, page, head, token, unit.block, encoding, x, ages);
  }
}

Status launch_age(const AgeParams& params, cudaStream_t stream) {
  return launch_row_units("age", params.elements == kQuadUnit ? age_kernel<kQuadUnit> : age_kernel<kUnit>, params,
                          params.grid[0], params.grid[1], stream);
}

}  // namespace kvant::attn::cuda
