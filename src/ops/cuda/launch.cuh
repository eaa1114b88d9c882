#pragma once

// Kernels of a step start while the one before them ends (programmatic dependent launch, Hopper and later): what does
// not depend on it, such as reading weights, is done meanwhile. Rules: `wait_for_previous_kernel` comes before the
// first read of what another kernel wrote and before every write; every kernel calls it and `allow_next_kernel`, so
// that waiting for one is waiting for all before it. `allow_next_kernel` comes late, else kernels pile up and each
// slows the one that it waits for; but first in norms and gates, whose followers have weights to ask for.

#include <cstdint>

#include <cuda_runtime.h>

#include "core/kernel_overlap.cuh"
#include "core/overlapped_launch.cuh"
#include "kvant/core/status.h"

namespace kvant::ops::cuda {

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// An empty grid is not a launch.
template <class Params>
Status launch(const char* name, void (*kernel)(Params), dim3 grid, int threads, const Params& params, void* stream,
              size_t shared_bytes = 0) {
  if (grid.x == 0 || grid.y == 0) return {};
  return launch_overlapped(name, kernel, grid, static_cast<unsigned>(threads), params, stream, shared_bytes);
}

}  // namespace kvant::ops::cuda
