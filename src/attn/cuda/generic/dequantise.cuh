#pragma once

// dequantise_kernel: cached rows to fp32, by slot. Shape as append_kernel. A slot that is negative or beyond its pool
// reads nothing and gives zeros.

#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/row_unit_codec.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/dequantise.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cuda {

__global__ void __launch_bounds__(kWriterThreads) dequantise_kernel(const __grid_constant__ DequantiseParams params) {
  start_row_units();
  wait_for_previous_kernel();
  const uint32_t plane = blockIdx.y;
  const UnitGrid& grid = params.grid[plane];
  const RowUnit unit = row_unit(grid);
  if (!unit.live) return;
  const uint32_t index = unit.row / params.num_kv_heads;
  const uint32_t head = unit.row - index * params.num_kv_heads;
  const int64_t slot = params.slots[index];
  const PagePool& pool = (slot & kExactSlotBit) != 0 ? params.exact : params.base;
  const int64_t in_pool = slot & ~kExactSlotBit;
  const int64_t page = in_pool >> params.page_shift;

  float x[kUnit] = {};
  if (slot >= 0 && page < pool.num_pages) {
    const uint32_t token = static_cast<uint32_t>(in_pool) & ((1u << params.page_shift) - 1);
    load_page_unit(pool.plane[plane], pool.pages + page * pool.page_stride, head, token, unit.block,
                   scale_of(params.scales[plane], params.scale_count, head), x);
  }
  uint32_t words[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) words[i] = float_to_bits(x[i]);
  store_words(params.out[plane] + (static_cast<int64_t>(unit.row) * grid.row_units + unit.block) * kUnit, words);
}

Status launch_dequantise(const DequantiseParams& params, cudaStream_t stream) {
  return launch_row_units("dequantise", dequantise_kernel, params, params.grid[0], params.grid[1], stream);
}

}  // namespace kvant::attn::cuda
