#pragma once

#include <cstdint>

#include "attn/cuda/common/unit_memory.cuh"
#include "attn/cuda/generic/append.h"
#include "core/float_bits.h"

// Key conditioning with a row spread over lanes, sixteen or four elements each, bit for bit as in
// attn/kv/conditioning.h.
namespace kvant::attn::cuda {

/// The first stages stay in a lane's registers, further ones go between lanes. All lanes take part.
template <int kElements>
__device__ __forceinline__ void rotate_unit(uint32_t lanes, float factor, float (&x)[kElements]) {
#pragma unroll
  for (int h = 1; h < kElements; h *= 2) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i & h) continue;
      const float a = x[i], b = x[i + h];
      x[i] = fl_add(a, b);
      x[i + h] = fl_sub(a, b);
    }
  }
  for (uint32_t distance = 1; distance < lanes; distance *= 2) {
    // a - b is a + (-b) to the bit. Rows start at multiples of the block in their warp, so lanes pair up within it.
    const bool upper = (threadIdx.x % 32 & distance) != 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float partner = __shfl_xor_sync(0xffffffffu, x[i], static_cast<int>(distance));
      x[i] = fl_add(partner, upper ? -x[i] : x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = fl_mul(x[i], factor);
}

/// K' of the keys at `first` of the parameters' arrays.
template <int kElements>
__device__ __forceinline__ void condition_unit(const ConditionParams& params, int64_t first, float (&x)[kElements]) {
  if (params.mu == nullptr) return;
  float constants[kElements];
  load_unit(params.mu + first, DType::kF32, constants);
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = fl_sub(x[i], constants[i]);
  if (params.zi == nullptr) return;
  load_unit(params.zi + first, DType::kF32, constants);
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = fl_mul(x[i], constants[i]);
  rotate_unit(params.rotated_lanes, params.factor, x);
}

}  // namespace kvant::attn::cuda
