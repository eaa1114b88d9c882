#pragma once

// append_kernel: quantise-and-write of new keys and values by slot. A lane holds 16 elements of a row (a block of
// NVFP4), a warp holds whole rows, grid.y is K and V. Loads, conditions (Hadamard stages between lanes by shuffles) and
// encodes in registers; no shared memory. A slot that is negative or beyond its pool writes nothing. What is fused in
// front of it (norms, RoPE) goes between load and condition: the whole row is in one warp.

#include "attn/cuda/common/condition_unit.cuh"
#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/row_unit_codec.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/append.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cuda {

__global__ void __launch_bounds__(kWriterThreads) append_kernel(const __grid_constant__ AppendParams params) {
  start_row_units();
  const uint32_t plane = blockIdx.y;
  const AppendRows& rows = params.rows[plane];
  const RowUnit unit = row_unit(rows.grid);
  const uint32_t token = unit.row / params.num_kv_heads;
  const uint32_t head = unit.row - token * params.num_kv_heads;
  const int64_t slot = unit.live ? params.slots[token] : kSkipSlot;

  float x[kUnit] = {};
  const int64_t in_token = (static_cast<int64_t>(head) * rows.grid.row_units + unit.block) * kUnit;
  if (slot >= 0) {
    const int64_t element = token * rows.token_stride + in_token;
    load_unit(static_cast<const uint8_t*>(rows.values) + element * dtype_bytes(params.dtype), params.dtype, x);
  }
  if (plane == 0) condition_unit(params.condition, in_token, x);

  const PagePool& pool = (slot & kExactSlotBit) != 0 ? params.exact : params.base;
  const int64_t in_pool = slot & ~kExactSlotBit;
  const int64_t page = in_pool >> params.page_shift;
  if (slot < 0 || page >= pool.num_pages) return;
  const uint32_t in_page = static_cast<uint32_t>(in_pool) & ((1u << params.page_shift) - 1);
  store_unit(pool.plane[plane], pool.pages + page * pool.page_stride, head, in_page, unit.block,
             {scale_of(rows.scales, params.scale_count, head), params.policy}, x);
}

Status launch_append(const AppendParams& params, cudaStream_t stream) {
  return launch_row_units("append", append_kernel, params, params.rows[0].grid, params.rows[1].grid, stream);
}

}  // namespace kvant::attn::cuda
