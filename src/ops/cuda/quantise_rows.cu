#include "ops/cuda/quantise_rows.h"

#include <cuda_fp8.h>

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/linear.h"

namespace kvant::ops::cuda {
namespace {

constexpr int kQuantiseThreads = 256;
/// Threads that read one group.
constexpr int kGroupThreads = kFp8Group / 8;
constexpr float kLargestE4m3 = 448.0f;

struct QuantiseRowsParams {
  const Bf16x8* x;  // [num_rows, row_vectors]
  uint2* codes;     // [padded_rows, row_vectors]
  float* scales;    // [row_vectors / kGroupThreads, padded_rows]
  int32_t row_vectors;
  int32_t num_rows, padded_rows;
};

__device__ __forceinline__ float largest_of(const float (&x)[8]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
  for (int distance = kGroupThreads / 2; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance, kGroupThreads));
  return largest;
}

__device__ __forceinline__ uint2 codes_of(const float (&x)[8], float scale) {
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = __nv_cvt_float_to_fp8(__fdiv_rn(x[i], scale), __NV_SATFINITE, __NV_E4M3);
    words[i / 4] |= code << (8 * (i % 4));
  }
  return make_uint2(words[0], words[1]);
}

/// A block has kQuantiseThreads / kGroupThreads groups of a row.
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_rows_kernel(const __grid_constant__ QuantiseRowsParams params) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const auto i = static_cast<int32_t>(blockIdx.y * kQuantiseThreads + threadIdx.x);
  const bool inside = i < params.row_vectors;
  float values[8] = {};
  if (inside && row < params.num_rows) unpack(params.x[row * params.row_vectors + i], values);
  const float largest = largest_of(values);
  if (!inside) return;
  const float scale = largest > 0.0f ? __fdiv_rn(largest, kLargestE4m3) : 1.0f;
  params.codes[row * params.row_vectors + i] = codes_of(values, scale);
  if (i % kGroupThreads == 0) params.scales[static_cast<int64_t>(i / kGroupThreads) * params.padded_rows + row] = scale;
}

}  // namespace

Status quantise_rows(const QuantiseRowsArgs& args, void* stream) {
  const QuantiseRowsParams params{.x = static_cast<const Bf16x8*>(args.x),
                                  .codes = static_cast<uint2*>(args.codes),
                                  .scales = args.scales,
                                  .row_vectors = static_cast<int32_t>(args.columns / 8),
                                  .num_rows = static_cast<int32_t>(args.num_rows),
                                  .padded_rows = static_cast<int32_t>(args.padded_rows)};
  return launch("quantised rows", quantise_rows_kernel,
                dim3(static_cast<unsigned>(args.padded_rows), blocks_for(params.row_vectors, kQuantiseThreads)),
                kQuantiseThreads, params, stream);
}

}  // namespace kvant::ops::cuda
