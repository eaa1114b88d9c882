#pragma once

// append_kernel: quantise-and-write of new keys and values by slot. A lane holds 16 elements of a row (a block of
// NVFP4), or, where rows are few, four of them; a warp holds whole rows, grid.y is K and V. Loads, conditions (Hadamard
// stages between lanes by shuffles) and encodes in registers; no shared memory. A slot that is negative or beyond its
// pool writes nothing. prepared_append_kernel: the same with bias, norm and RoPE between load and condition, and
// queries prepared beside keys; its blocks are those of K, then V, then Q.

#include "attn/cuda/common/condition_unit.cuh"
#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/prepare_unit.cuh"
#include "attn/cuda/common/row_unit_codec.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/append.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn::cuda {

/// A key's or value's unit to its slot.
template <int kElements>
__device__ __forceinline__ void store_to_slot(const AppendParams& params, uint32_t plane, const RowUnit& unit,
                                              uint32_t head, int64_t slot, const UnitEncoding& encoding,
                                              float (&x)[kElements]) {
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
  store_to_slot(params, plane, unit, head, slot, encoding, x);
}

inline constexpr uint32_t kFewPreparedBlocks = 16;

template <int kElements>
__global__ void __launch_bounds__(kWriterThreads)
    prepared_append_kernel(const __grid_constant__ PreparedAppendParams params) {
  __shared__ UnitExchange<kElements> exchange[kWriterThreads / 32];
  constexpr uint32_t kQueries = 2;
  // With few rows attention may find its work meanwhile; blocks of many would share multiprocessors with its, unevenly.
  if (kElements < kUnit || gridDim.x <= kFewPreparedBlocks) allow_next_kernel();
  const AppendParams& append = params.append;
  const uint32_t kind = blockIdx.x < params.heads[1].first_block          ? 0
                        : blockIdx.x < params.heads[kQueries].first_block ? 1
                                                                          : kQueries;
  const PrepareRows& rows = params.heads[kind];
  const RowUnit unit = row_unit(rows.grid, blockIdx.x - rows.first_block);
  const uint32_t token = unit.row / rows.num_heads;
  const uint32_t head = unit.row - token * rows.num_heads;
  const int64_t in_token = (static_cast<int64_t>(head) * rows.grid.row_units + unit.block) * kElements;
  UnitPreparation<kElements> preparation(params, rows, unit, in_token);
  wait_for_previous_kernel();

  const bool is_query = kind == kQueries;
  const int64_t slot = unit.live && !is_query ? append.slots[token] : kSkipSlot;
  float x[kElements] = {};
  const int64_t bytes = dtype_bytes(append.dtype);
  if (unit.live) {
    const int64_t element = token * rows.token_stride + in_token;
    load_unit(static_cast<const uint8_t*>(rows.values) + element * bytes, append.dtype, x);
  }
  preparation.load_step(token);
  preparation.apply(exchange[threadIdx.x / 32], x);
  round_unit(append.dtype, x);
  if (rows.out != nullptr && unit.live) {
    const int64_t element = token * rows.out_token_stride + in_token;
    store_unit(static_cast<uint8_t*>(rows.out) + element * bytes, append.dtype, x);
  }
  if (is_query) return;
  const float* scales = append.rows[kind].scales;
  const UnitEncoding encoding = {unit.live ? scale_of(scales, append.scale_count, head) : 1.0f, append.policy};
  if (kind == 0) condition_unit(append.condition, in_token, x);
  store_to_slot(append, kind, unit, head, slot, encoding, x);
}

Status launch_append(const AppendParams& params, cudaStream_t stream) {
  const UnitGrid &k = params.rows[0].grid, &v = params.rows[1].grid;
  return launch_row_units("append", params.elements == kQuadUnit ? append_kernel<kQuadUnit> : append_kernel<kUnit>,
                          params, k, v, stream);
}

Status launch_prepared_append(const PreparedAppendParams& params, int64_t num_blocks, cudaStream_t stream) {
  if (num_blocks == 0) return {};
  return launch_overlapped(
      "append", params.append.elements == kQuadUnit ? prepared_append_kernel<kQuadUnit> : prepared_append_kernel<kUnit>,
      dim3(static_cast<unsigned>(num_blocks)), kWriterThreads, params, stream);
}

}  // namespace kvant::attn::cuda
