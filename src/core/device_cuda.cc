#include <cuda_runtime_api.h>

#include "kvant/core/device.h"

namespace kvant {
namespace {

// The family that shares kernels with a device; none below 8.0 and for parts that are not known yet.
bool family_of(int major, DeviceFamily& family) {
  switch (major) {
    case 8: family = DeviceFamily::kSm8x; return true;
    case 9: family = DeviceFamily::kSm90; return true;
    case 10: family = DeviceFamily::kSm10x; return true;
    case 11: family = DeviceFamily::kSm11x; return true;
    case 12: family = DeviceFamily::kSm12x; return true;
    default: return false;
  }
}

}  // namespace

std::vector<DeviceInfo> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // No driver or no device is an answer, not a failure of later calls.
    return {};
  }
  std::vector<DeviceInfo> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    DeviceInfo device;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess || !family_of(properties.major, device.family))
      continue;
    device.compute_capability = 10 * properties.major + properties.minor;
    device.num_multiprocessors = properties.multiProcessorCount;
    device.shared_memory_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    device.total_memory = static_cast<int64_t>(properties.totalGlobalMem);
    device.name = properties.name;
    devices.push_back(device);
  }
  return devices;
}

}  // namespace kvant
