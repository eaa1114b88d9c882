#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace kvant::bench {

/// Reads every byte once, with the widest loads: the ceiling that attention is compared with.
void launch_read(const std::byte* data, size_t bytes, uint32_t* sink, int num_blocks, cudaStream_t stream);

/// Fills memory with bytes that are finite in every cache format.
void launch_fill(std::byte* data, size_t bytes, cudaStream_t stream);

/// A kernel of 128-thread blocks that does nothing: what a launch costs.
void launch_nothing(int num_blocks, int shared_bytes, cudaStream_t stream);

/// Writes the clock of one multiprocessor, in MHz, measured over about a millisecond.
void launch_clock(float* mhz, cudaStream_t stream);

}  // namespace kvant::bench
