#pragma once

// convert_kernel: copies pages between layouts that differ in orders only. A lane moves the bytes of 16 elements and
// their block scale; NVFP4 codes may change their places in each 32-bit word. grid.y is K and V.

#include "attn/cuda/common/launch.cuh"
#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/convert.h"
#include "attn/kv/e2m1.h"

namespace kvant::attn::cuda {

namespace detail {

template <int kWords>
__device__ __forceinline__ void copy_words(const uint8_t* from, uint8_t* to) {
  uint32_t words[kWords];
  load_words(from, words);
  store_words(to, words);
}

__device__ __forceinline__ void copy_codes(CodeOrder from_order, const uint8_t* from, CodeOrder to_order, uint8_t* to) {
  uint32_t words[kUnit / 8];
  load_words(from, words);
  if (from_order != to_order) {
#pragma unroll
    for (uint32_t& word : words)
      word = to_order == CodeOrder::kPacked ? linear_to_packed(word) : packed_to_linear(word);
  }
  store_words(to, words);
}

}  // namespace detail

__global__ void __launch_bounds__(kWriterThreads) convert_kernel(const __grid_constant__ ConvertParams params) {
  start_row_units();
  wait_for_previous_kernel();
  const uint32_t which = blockIdx.y;
  const RowUnit unit = row_unit(params.grid[which]);
  if (!unit.live) return;
  const uint32_t token_row = unit.row / params.num_kv_heads;
  const uint32_t head = unit.row - token_row * params.num_kv_heads;
  const uint32_t token = token_row & ((1u << params.page_shift) - 1);
  const uint32_t page = token_row >> params.page_shift;

  const PagePlane& from_plane = params.from.plane[which];
  const PagePlane& to_plane = params.to.plane[which];
  const uint8_t* from_page = params.from.pages + page * params.from.page_stride;
  uint8_t* to_page = params.to.pages + page * params.to.page_stride;
  const uint8_t* from = from_page + from_plane.data_offset(head, token, unit.block);
  uint8_t* to = to_page + to_plane.data_offset(head, token, unit.block);
  switch (from_plane.format) {
    case KvFormat::kF32: return;  // Refused by the host: a format for tests on the CPU.
    case KvFormat::kF16:
    case KvFormat::kBf16: detail::copy_words<kUnit / 2>(from, to); return;
    case KvFormat::kE4m3:
    case KvFormat::kE5m2: detail::copy_words<kUnit / 4>(from, to); return;
    case KvFormat::kNvfp4:
      detail::copy_codes(from_plane.code_order, from, to_plane.code_order, to);
      to_page[to_plane.scale_offset(head, token, unit.block)] =
          from_page[from_plane.scale_offset(head, token, unit.block)];
      return;
  }
}

Status launch_convert(const ConvertParams& params, cudaStream_t stream) {
  return launch_row_units("convert", convert_kernel, params, params.grid[0], params.grid[1], stream);
}

}  // namespace kvant::attn::cuda
