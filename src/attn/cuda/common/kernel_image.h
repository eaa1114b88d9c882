#pragma once

#include <cstdint>

namespace kvant::attn::cuda {

/// One compiled kernel as the host sees it.
struct KernelImage {
  const void* function = nullptr;  ///< What cudaLaunchKernel takes.
  int32_t threads = 0;             ///< Per block and team.
  int32_t shared_bytes = 0;        ///< Dynamic shared memory per block, before anything that depends on the plan.
  int32_t teams = 1;               ///< The block's second dimension.
};

}  // namespace kvant::attn::cuda
