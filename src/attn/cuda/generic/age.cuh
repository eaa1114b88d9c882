#pragma once

// age_kernel: re-encodes whole exact (f16) pages into base pages, from a list in device memory. Shape as append_kernel:
// a lane holds 16 elements of a row, grid.y is K and V. An entry that names a page outside its pool does nothing, which
// is how a captured call is padded.

#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/row_unit_codec.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/age.h"

namespace kvant::attn::cuda {

__global__ void __launch_bounds__(kWriterThreads) age_kernel(const __grid_constant__ AgeParams params) {
  start_row_units();
  wait_for_previous_kernel();
  const uint32_t plane = blockIdx.y;
  const RowUnit unit = row_unit(params.grid[plane]);
  if (!unit.live) return;
  const uint32_t token_row = unit.row / params.num_kv_heads;
  const uint32_t head = unit.row - token_row * params.num_kv_heads;
  const uint32_t token = token_row & ((1u << params.page_shift) - 1);
  const PageAge age = params.ages[token_row >> params.page_shift];
  if (age.exact_page < 0 || age.exact_page >= params.exact.num_pages) return;
  if (age.base_page < 0 || age.base_page >= params.base.num_pages) return;

  float x[kUnit];
  const uint8_t* from = params.exact.pages + age.exact_page * params.exact.page_stride;
  load_unit(from + params.exact.plane[plane].data_offset(head, token, unit.block), DType::kF16, x);
  store_unit(params.base.plane[plane], params.base.pages + age.base_page * params.base.page_stride, head, token,
             unit.block, {scale_of(params.scales[plane], params.scale_count, head), params.policy}, x);
}

Status launch_age(const AgeParams& params, cudaStream_t stream) {
  return launch_row_units("age", age_kernel, params, params.grid[0], params.grid[1], stream);
}

}  // namespace kvant::attn::cuda
