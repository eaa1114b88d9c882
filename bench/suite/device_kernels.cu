#include "device_kernels.h"

namespace kvant::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // Under way per thread.

__global__ void nothing_kernel() {}

__global__ void read_kernel(const uint4* data, size_t count, uint32_t* sink) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 values[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) values[u] = __ldcs(data + i + u * stride);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) sum ^= values[u].x ^ values[u].y ^ values[u].z ^ values[u].w;
  }
  for (; i < count; i += stride) sum ^= data[i].x;
  // Never true in practice; keeps the loads alive.
  if (sum == 0x9e3779b9u) *sink = sum;
}

__global__ void fill_kernel(uint32_t* data, size_t count) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    data[i] = x & 0xb7b7b7b7u;
  }
}

__global__ void clock_kernel(float* mhz) {
  uint64_t from_ns, to_ns;
  const long long from = clock64();
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from_ns)::"memory");
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(to_ns)::"memory");
  } while (to_ns - from_ns < 1'000'000);
  *mhz = static_cast<float>(clock64() - from) / static_cast<float>(to_ns - from_ns) * 1000.0f;
}

}  // namespace

void launch_read(const std::byte* data, size_t bytes, uint32_t* sink, int num_blocks, cudaStream_t stream) {
  read_kernel<<<num_blocks, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(data), bytes / 16, sink);
}
void launch_fill(std::byte* data, size_t bytes, cudaStream_t stream) {
  fill_kernel<<<1024, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(data), bytes / 4);
}
void launch_clock(float* mhz, cudaStream_t stream) { clock_kernel<<<1, 1, 0, stream>>>(mhz); }

void launch_nothing(int num_blocks, int shared_bytes, cudaStream_t stream) {
  nothing_kernel<<<num_blocks, 128, static_cast<size_t>(shared_bytes), stream>>>();
}

}  // namespace kvant::bench
