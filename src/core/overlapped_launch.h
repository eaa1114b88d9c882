#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace kvant {

/// The configuration of a launch that, with `overlap`, starts while the stream's previous kernel ends: the kernel must
/// call what core/kernel_overlap.cuh has. Holds what the configuration points to, so it stays where it is.
class OverlappedLaunch {
 public:
  OverlappedLaunch(dim3 grid, unsigned threads, size_t shared_bytes, bool overlap, void* stream) {
    attribute_.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute_.val.programmaticStreamSerializationAllowed = 1;
    config_.gridDim = grid;
    config_.blockDim = dim3(threads);
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = static_cast<cudaStream_t>(stream);
    config_.attrs = &attribute_;
    config_.numAttrs = overlap ? 1 : 0;
  }
  OverlappedLaunch(const OverlappedLaunch&) = delete;
  OverlappedLaunch& operator=(const OverlappedLaunch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchAttribute attribute_{};
  cudaLaunchConfig_t config_{};
};

}  // namespace kvant
