#pragma once

// Registers that warpgroups of a block hand each other (Hopper). PTX ISA, "setmaxnreg".
namespace kvant {

/// By all threads of a warpgroup, which have kCount registers each from then on: more, once others have given theirs.
/// No function that is called after either may need more than the fewest.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
/// The same, fewer.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace kvant
