#pragma once

// The device side of programmatic dependent launch (Hopper and later): a kernel starts while the one before it in the
// stream ends. Launched by core/overlapped_launch.h. Older GPUs run kernels one after another, and both functions do
// nothing.

#include <cstddef>
#include <cstdint>

namespace kvant {

/// Until the kernels before this one have ended and their writes are seen.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The stream's next kernel may take the room that this one leaves.
__device__ __forceinline__ void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Brings a kernel's parameters to the constant cache, which takes no result of the kernels before it.
template <class Params>
__device__ __forceinline__ void touch_parameters(const Params& params) {
  const auto* words = reinterpret_cast<const uint32_t*>(&params);
  uint32_t any = 0;
#pragma unroll
  for (size_t i = 0; i < sizeof(Params) / sizeof(uint32_t); i += 16) any ^= words[i];
  if (any == 1) __nanosleep(1);  // Without an effect they would not be read.
}

}  // namespace kvant
