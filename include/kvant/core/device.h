#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant {

/// GPU families that share kernels and routing, and the CPU.
enum class DeviceFamily : uint8_t { kCpu, kSm8x, kSm90, kSm10x, kSm11x, kSm12x };

std::string_view to_string(DeviceFamily family);

/// What routing needs to know of a device: a plain value, so that every family is tested without one.
struct DeviceInfo {
  DeviceFamily family = DeviceFamily::kCpu;
  int32_t compute_capability = 0;       ///< 10 * major + minor, such as 90 or 121; 0 on a CPU.
  int32_t num_multiprocessors = 0;      ///< 0 on a CPU.
  int64_t shared_memory_per_block = 0;  ///< Opt-in limit in bytes, as the driver reports it.
  int64_t total_memory = 0;             ///< Bytes.
  std::string name;                     ///< "AMD EPYC 9654", "NVIDIA H200".

  friend bool operator==(const DeviceInfo&, const DeviceInfo&) = default;
};

/// The machine's CPU.
DeviceInfo cpu_device();

/// A description of the stock part of a compute capability (80, 86, 87, 89, 90, 100, 103, 110, 120, 121), for routing
/// queries without a device. kUnsupported below 80 or when unknown.
Result<DeviceInfo> describe_compute_capability(int32_t compute_capability);

/// CUDA devices that the driver reports; empty without a driver or in a build without CUDA.
std::vector<DeviceInfo> cuda_devices();

/// The device that runs a stream's work: the CPU, or the first CUDA device.
DeviceInfo device_of(Stream stream);

}  // namespace kvant
