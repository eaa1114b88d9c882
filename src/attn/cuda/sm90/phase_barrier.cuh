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
