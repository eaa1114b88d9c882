#pragma once

// What Hopper's matrix kernels are built from: barriers in shared memory, copies into it, warpgroup MMA. Addresses are
// those of shared memory. PTX ISA 8.x, SM90a alone.

#include <cstdint>

#include <cuda.h>

namespace kvant::ops::cuda::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Makes barriers that were just initialised known to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives; the phase ends no sooner than `bytes` have been copied as well.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Until the phase of that parity has ended. That before the first has parity 1.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n bra again;\n"
      "ready:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Read once: the first to leave the second-level cache.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Read by many blocks: the last to leave it.
__device__ __forceinline__ uint64_t read_often() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// The copy engine's box of a matrix; zeros beyond its edges.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int32_t column, int32_t row,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
/// The same of a matrix whose rows are in three dimensions, of which the last is counted here.
__device__ __forceinline__ void copy_groups(uint32_t to, const CUtensorMap* map, int32_t column, int32_t group,
                                            uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(column), "r"(0), "r"(group), "r"(barrier), "l"(policy)
      : "memory");
}
/// 16 bytes by one thread; zeros unless `some`.
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from, bool some, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(some ? 16 : 0), "l"(policy)
               : "memory");
}
/// Arrives once this thread's pieces are there; the barrier counts on it.
__device__ __forceinline__ void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Shows pieces that have come to the tensor cores.
__device__ __forceinline__ void fence_pieces() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Threads [0, kThreads) of a block wait for each other.
template <int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
__device__ __forceinline__ int32_t cluster_size() {
  int32_t size;
  asm("mov.u32 %0, %cluster_nctaid.x;" : "=r"(size));
  return size;
}
__device__ __forceinline__ int32_t cluster_rank() {
  int32_t rank;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// A barrier of the cluster's threads that have not ended, in two halves: shared memory written before the first is
/// seen after the second.
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
/// For what has been read alone: writes may be seen later.
__device__ __forceinline__ void arrive_at_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void put_quad(uint32_t to, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
/// What block `rank` of the cluster has where this block has `address`.
__device__ __forceinline__ float4 take_quad(uint32_t address, int32_t rank) {
  float4 x;
  asm volatile(
      "{.reg .b32 there;\n mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(address), "r"(rank)
      : "memory");
  return x;
}

/// Describes rows of 128 bytes along the reduction, swizzled by 128 bytes; patterns of eight rows follow each other.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (address >> 4 & 0x3fff);
}
__device__ __forceinline__ void start_mma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_mma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most kPending committed batches are unfinished.
template <int kPending>
__device__ __forceinline__ void wait_mma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define KVANT_D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KVANT_D4(i) KVANT_D(i), KVANT_D(i + 1), KVANT_D(i + 2), KVANT_D(i + 3)
#define KVANT_D8(i) KVANT_D4(i), KVANT_D4(i + 4)
#define KVANT_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KVANT_R16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KVANT_R32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KVANT_R48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KVANT_R64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define KVANT_R80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KVANT_MMA(width, registers, a, b, add)                                             \
  "{.reg .pred p;\n setp.ne.b32 p, %" add ", 0;\n wgmma.mma_async.sync.aligned.m64n" width \
  "k16.f32.bf16.bf16 {" registers "}, %" a ", %" b ", p, 1, 1, 0, 0;\n}"

/// D (64 x 8 kTiles, fp32; overwritten unless `add`) += A B over 16 steps of the reduction.
template <int kTiles>
__device__ __forceinline__ void mma(float (&d)[kTiles][4], uint64_t a, uint64_t b, bool add) {
  const int adds = add ? 1 : 0;
  if constexpr (kTiles == 1) {
    asm volatile(KVANT_MMA("8", "%0, %1, %2, %3", "4", "5", "6") : KVANT_D(0) : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 2) {
    asm volatile(KVANT_MMA("16", "%0, %1, %2, %3, %4, %5, %6, %7", "8", "9", "10")
                 : KVANT_D(0), KVANT_D(1)
                 : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 4) {
    asm volatile(KVANT_MMA("32", KVANT_R0, "16", "17", "18") : KVANT_D4(0) : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 8) {
    asm volatile(KVANT_MMA("64", KVANT_R0 ", " KVANT_R16, "32", "33", "34") : KVANT_D8(0) : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 12) {
    asm volatile(KVANT_MMA("96", KVANT_R0 ", " KVANT_R16 ", " KVANT_R32, "48", "49", "50")
                 : KVANT_D8(0), KVANT_D4(8)
                 : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 16) {
    asm volatile(KVANT_MMA("128", KVANT_R0 ", " KVANT_R16 ", " KVANT_R32 ", " KVANT_R48, "64", "65", "66")
                 : KVANT_D8(0), KVANT_D8(8)
                 : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 20) {
    asm volatile(
        KVANT_MMA("160", KVANT_R0 ", " KVANT_R16 ", " KVANT_R32 ", " KVANT_R48 ", " KVANT_R64, "80", "81", "82")
        : KVANT_D8(0), KVANT_D8(8), KVANT_D4(16)
        : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kTiles == 24) {
    asm volatile(KVANT_MMA("192", KVANT_R0 ", " KVANT_R16 ", " KVANT_R32 ", " KVANT_R48 ", " KVANT_R64 ", " KVANT_R80,
                           "96", "97", "98")
                 : KVANT_D8(0), KVANT_D8(8), KVANT_D8(16)
                 : "l"(a), "l"(b), "r"(adds));
  } else {
    static_assert(kTiles == 0, "a width that is not built");
  }
}

#undef KVANT_MMA
#undef KVANT_R0
#undef KVANT_R16
#undef KVANT_R32
#undef KVANT_R48
#undef KVANT_R64
#undef KVANT_R80
#undef KVANT_D8
#undef KVANT_D4
#undef KVANT_D

}  // namespace kvant::ops::cuda::hopper
