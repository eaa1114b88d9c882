#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace kvant {

/// The configuration of a launch that, with `overlap`, starts while the stream's previous kernel ends: the kernel must
/// call what core/kernel_overlap.cuh has. With `cluster` above 1 so many blocks share their memory. Holds what the
/// configuration points to, so it stays where it is.
class OverlappedLaunch {
 public:
  OverlappedLaunch(dim3 grid, dim3 block, size_t shared_bytes, bool overlap, void* stream, unsigned cluster = 1) {
    if (overlap) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    config_.gridDim = grid;
    config_.blockDim = block;
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = static_cast<cudaStream_t>(stream);
    config_.attrs = attributes_;
  }
  OverlappedLaunch(const OverlappedLaunch&) = delete;
  OverlappedLaunch& operator=(const OverlappedLaunch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

}  // namespace kvant
