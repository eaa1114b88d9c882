#pragma once

#include <cstdint>

// Barriers in shared memory that count arrivals and pass from phase to phase, and named ones. PTX ISA 8.x, "mbarrier"
// and "barrier".
namespace kvant::attn::cuda {

__device__ __forceinline__ void start_phases(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive_at_phase(uint32_t barrier) {
  asm volatile("{.reg .b64 state;\n mbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
/// The same, of what so many bytes copied in bulk belong to: the phase ends when they are there.
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Copies whole 16 bytes from global to shared memory, and tells the barrier. Addresses are multiples of 16.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/// Waits for the end of the phase of this parity; that of the phase before the first is 1.
__device__ __forceinline__ void wait_for_phase(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  do {
    asm volatile("{.reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (ended == 0);
}

/// Of so many threads, whole warps.
template <int kThreads>
__device__ __forceinline__ void sync_named(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

}  // namespace kvant::attn::cuda
