#pragma once

// Steps without neighbours: embedding rows, gated activations, biases, soft caps, sines of positions. A thread takes
// eight channels where rows are whole vectors.

#include "ops/cuda/bf16_vector.cuh"
#include "ops/cuda/gate.cuh"
#include "ops/cuda/launch.cuh"

namespace kvant::ops::cuda {

inline constexpr int kElementThreads = 256;

struct EmbedParams {
  const __nv_bfloat16* table;  // [vocabulary, width]
  const int32_t* tokens;       // [num_tokens]
  float* out;                  // [num_tokens, width]
  int64_t num_vectors;         // num_tokens * width / 8
  int32_t row_vectors;         // width / 8
  float scale;
};

__global__ void __launch_bounds__(kElementThreads) embed_kernel(const __grid_constant__ EmbedParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (index >= params.num_vectors) return;
  const int64_t token = index / params.row_vectors;
  const int64_t column = index - token * params.row_vectors;
  float x[8];
  unpack(reinterpret_cast<const Bf16x8*>(
             params.table)[params.tokens[token] * static_cast<int64_t>(params.row_vectors) + column],
         x);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] *= params.scale;
  auto* out = reinterpret_cast<float4*>(params.out) + 2 * index;
  out[0] = make_float4(x[0], x[1], x[2], x[3]);
  out[1] = make_float4(x[4], x[5], x[6], x[7]);
}

struct GateParams {
  const Bf16x8* gate_up;  // [num_rows, 2, row_vectors]
  Bf16x8* out;            // [num_rows, row_vectors]
  int64_t num_vectors;    // num_rows * row_vectors
  int32_t row_vectors;
  float limit;  // of the clamped swish
};

template <GateKind kKind>
__global__ void __launch_bounds__(kElementThreads) gate_kernel(const __grid_constant__ GateParams params) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (index >= params.num_vectors) return;
  const int64_t row = index / params.row_vectors;
  const int64_t at = index + row * params.row_vectors;
  float gate[8], up[8];
  unpack(params.gate_up[at], gate);
  unpack(params.gate_up[at + params.row_vectors], up);
#pragma unroll
  for (int i = 0; i < 8; ++i) up[i] = gated({.kind = kKind, .limit = params.limit}, gate[i], up[i]);
  params.out[index] = pack(up);
}

struct BiasParams {
  float* x;           // [count / width, width]
  const float* bias;  // [width]
  int64_t count;
  int32_t width;
};

__global__ void __launch_bounds__(kElementThreads) add_bias_kernel(const __grid_constant__ BiasParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (index < params.count) params.x[index] += params.bias[index % params.width];
}

struct SoftCapParams {
  float* x;  // [count]
  int64_t count;
  float cap;
};

__global__ void __launch_bounds__(kElementThreads) soft_cap_kernel(const __grid_constant__ SoftCapParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (index < params.count) params.x[index] = params.cap * tanhf(params.x[index] / params.cap);
}

struct RopeTableParams {
  const double* frequencies;  // [num_pairs]
  const int32_t* positions;   // [num_tokens]
  float* cosines;             // [num_tokens, num_pairs]
  float* sines;
  int64_t count;  // num_tokens * num_pairs
  int32_t num_pairs;
  double scale;  // of both
};

/// In double, as on the CPU: late positions turn many times.
__global__ void __launch_bounds__(kElementThreads) rope_table_kernel(const __grid_constant__ RopeTableParams params) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (index >= params.count) return;
  const int64_t token = index / params.num_pairs;
  double sine, cosine;
  sincos(params.positions[token] * params.frequencies[index - token * params.num_pairs], &sine, &cosine);
  params.cosines[index] = static_cast<float>(cosine * params.scale);
  params.sines[index] = static_cast<float>(sine * params.scale);
}

}  // namespace kvant::ops::cuda
