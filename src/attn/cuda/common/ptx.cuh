#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The few PTX instructions that kernels use, by name. PTX ISA 8.x.
namespace kvant::attn::cuda {

/// D (16x8, fp32) += A (16x16, row) * B (16x8, col), f16 operands.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with bf16 operands.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Transposes an 8x8 matrix of 16-bit elements held one row per quad.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t row) {
  uint32_t column;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

/// Copies 16 bytes from global to shared memory without passing through registers or L1.
__device__ __forceinline__ void copy_async_16(uint32_t shared_address, const void* p) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address), "l"(p) : "memory");
}
/// The same through L1, for what many warps read: as many requests for one line would queue at its slice of L2. Zeros
/// where the source does not exist.
__device__ __forceinline__ void copy_async_16_by_l1(uint32_t shared_address, const void* p, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(p), "r"(exists ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kPending of this thread's newest groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/// Adds to a counter in global memory: what the block wrote before becomes visible to whoever sees the sum, and the
/// other way round. Returns the value before.
__device__ __forceinline__ uint32_t add_release_acquire(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ void add_release(uint32_t* counter, uint32_t value) {
  asm volatile("red.add.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* counter) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// The address space is explicit, so these never become generic loads.
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ void store_shared_16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared_4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

// Blocks of a cluster run at once and read each other's shared memory. Before Hopper a block is alone.
__device__ __forceinline__ int32_t cluster_size() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %cluster_nctaid.x;" : "=r"(size));
#endif
  return static_cast<int32_t>(size);
}
__device__ __forceinline__ int32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int32_t>(rank);
}
/// A barrier of the cluster in two halves: shared memory written before the first is seen after the second.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// What a block of the cluster has at the place of this block's `address`.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t address, int32_t rank) {
  uint32_t there = address;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
  return there;
}
__device__ __forceinline__ float4 load_cluster_16(uint32_t address) {
  float4 v = {};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
#endif
  return v;
}
__device__ __forceinline__ float2 load_cluster_8(uint32_t address) {
  float2 v = {};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
#endif
  return v;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// To about 1e-7, absolute.
__device__ __forceinline__ float tanh_approx(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + exp2_approx(2.885390081777927f * x));
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
/// (a & mask_a) | (b & mask_b) is two LOP3; this is (a & mask) | b in one.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t b) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(b));
  return d;
}

/// Both halves of `a` times one half of `b`: the instruction selects it.
__device__ __forceinline__ uint32_t mul_f16x2_by_low(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("{.reg .b16 low, high;\n .reg .b32 twice;\n mov.b32 {low, high}, %2;\n mov.b32 twice, {low, low};\n"
      " mul.rn.f16x2 %0, %1, twice;}"
      : "=r"(d)
      : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t mul_f16x2_by_high(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("{.reg .b16 low, high;\n .reg .b32 twice;\n mov.b32 {low, high}, %2;\n mov.b32 twice, {high, high};\n"
      " mul.rn.f16x2 %0, %1, twice;}"
      : "=r"(d)
      : "r"(a), "r"(b));
  return d;
}

}  // namespace kvant::attn::cuda
