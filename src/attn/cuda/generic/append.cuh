#pragma once

// append_kernel: quantise-and-write of new keys and values by slot. A lane holds 16 elements of a row (a block of
// NVFP4), or, where rows are few, four of them; a warp holds whole rows, grid.y is K and V. Loads, conditions (Hadamard
// stages between lanes by shuffles) and encodes in registers; no shared memory. A slot that is negative or beyond its
// pool writes nothing. What is fused in front of it (norms, RoPE) goes between load and condition: the whole row is in
// one warp.

#include "attn/cuda/common/condition_unit.cuh"
#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/row_unit_codec.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/append.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cuda {

template <int kElements>
__global__ void __launch_bounds__(kWriterThreads) append_kernel(const __grid_constant__ AppendParams params) {
  start_row_units<kElements>();
  if constexpr (kElements < kUnit) touch_parameters(params);
  wait_for_previous_kernel();
  const uint32_t plane = blockIdx.y;
  const AppendRows& rows = params.rows[plane];
  const RowUnit unit = row_unit(rows.grid);
  const uint32_t token = unit.row / params.num_kv_heads;
  const uint32_t head = unit.row - token * params.num_kv_heads;
  const int64_t slot = unit.live ? params.slots[token] : kSkipSlot;

  // Values are asked for beside their slot.
  float x[kElements] = {};
  const int64_t in_token = (static_cast<int64_t>(head) * rows.grid.row_units + unit.block) * kElements;
  if (unit.live) {
    const int64_t element = token * rows.token_stride + in_token;
    load_unit(static_cast<const uint8_t*>(rows.values) + element * dtype_bytes(params.dtype), params.dtype, x);
  }
  const UnitEncoding encoding = {unit.live ? scale_of(rows.scales, params.scale_count, head) : 1.0f, params.policy};
  if (plane == 0) condition_unit(params.condition, in_token, x);

  const PagePool& pool = (slot & kExactSlotBit) != 0 ? params.exact : params.base;
  const int64_t in_pool = slot & ~kExactSlotBit;
  const int64_t page = in_pool >> params.page_shift;
  const bool stores = slot >= 0 && page < pool.num_pages;
  uint8_t* to = pool.pages + page * pool.page_stride;
  const uint32_t in_page = static_cast<uint32_t>(in_pool) & ((1u << params.page_shift) - 1);
  if constexpr (kElements == kUnit) {
    if (stores) store_unit(pool.plane[plane], to, head, in_page, unit.block, encoding, x);
  } else {
    store_unit(pool.plane[plane], to, head, in_page, unit.block, encoding, x, stores);
  }
}

Status launch_append(const AppendParams& params, cudaStream_t stream) {
  const UnitGrid &k = params.rows[0].grid, &v = params.rows[1].grid;
  return launch_row_units("append", params.elements == kQuadUnit ? append_kernel<kQuadUnit> : append_kernel<kUnit>,
                          params, k, v, stream);
}

}  // namespace kvant::attn::cuda
