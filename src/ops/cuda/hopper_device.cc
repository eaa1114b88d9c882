#include "ops/cuda/hopper_device.h"

#include <utility>

#include <cuda_runtime_api.h>

#include "core/cuda_status.h"

namespace kvant::ops::cuda {

Result<int32_t> hopper_multiprocessors() {
  int device = 0, major = 0, minor = 0, multiprocessors = 0;
  KVANT_FAIL_IF_ERROR(cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  for (const auto& [value, attribute] :
       {std::pair{&major, cudaDevAttrComputeCapabilityMajor}, std::pair{&minor, cudaDevAttrComputeCapabilityMinor},
        std::pair{&multiprocessors, cudaDevAttrMultiProcessorCount}})
    KVANT_FAIL_IF_ERROR(cuda_status(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute"));
  return major == 9 && minor == 0 ? multiprocessors : 0;
}

}  // namespace kvant::ops::cuda
