#include "kvant/core/device.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>

namespace kvant {

std::string_view to_string(DeviceFamily family) {
  switch (family) {
    case DeviceFamily::kCpu: return "CPU";
    case DeviceFamily::kSm8x: return "SM8x";
    case DeviceFamily::kSm90: return "SM90";
    case DeviceFamily::kSm10x: return "SM10x";
    case DeviceFamily::kSm11x: return "SM11x";
    case DeviceFamily::kSm12x: return "SM12x";
  }
  return "?";
}

DeviceInfo cpu_device() {
  DeviceInfo info{.family = DeviceFamily::kCpu, .name = "CPU"};
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) info.name = line.substr(colon + 2);
    break;
  }
  info.total_memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return info;
}

DeviceInfo device_of(Stream stream) {
  if (stream.cuda == nullptr) return cpu_device();
  const std::vector<DeviceInfo> devices = cuda_devices();
  KVANT_CHECK(!devices.empty());
  return devices.front();
}

Result<DeviceInfo> describe_compute_capability(int32_t compute_capability) {
  struct Part {
    int32_t compute_capability;
    DeviceFamily family;
    int32_t num_multiprocessors;
    int64_t shared_memory_per_block;
    int64_t total_memory_gib;
    const char* name;
  };
  // Opt-in shared memory per block: CUDA programming guide, table of technical specifications per compute capability.
  static constexpr Part kParts[] = {
      {80, DeviceFamily::kSm8x, 108, 166'912, 80, "A100"},
      {86, DeviceFamily::kSm8x, 82, 101'376, 24, "RTX 3090"},
      {87, DeviceFamily::kSm8x, 16, 166'912, 64, "Jetson Orin"},
      {89, DeviceFamily::kSm8x, 128, 101'376, 24, "RTX 4090"},
      {90, DeviceFamily::kSm90, 132, 232'448, 141, "H200"},
      {100, DeviceFamily::kSm10x, 148, 232'448, 180, "B200"},
      {103, DeviceFamily::kSm10x, 148, 232'448, 288, "B300"},
      {110, DeviceFamily::kSm11x, 20, 232'448, 128, "Jetson Thor"},
      {120, DeviceFamily::kSm12x, 170, 101'376, 32, "RTX 5090"},
      {121, DeviceFamily::kSm12x, 48, 101'376, 128, "DGX Spark"},
  };
  for (const Part& part : kParts) {
    if (part.compute_capability != compute_capability) continue;
    return DeviceInfo{.family = part.family,
                      .compute_capability = compute_capability,
                      .num_multiprocessors = part.num_multiprocessors,
                      .shared_memory_per_block = part.shared_memory_per_block,
                      .total_memory = part.total_memory_gib << 30,
                      .name = part.name};
  }
  return failure(
      StatusCode::kUnsupported,
      fmt::format("compute capability {} is not known; kvant supports 80, 86, 87, 89, 90, 100, 103, 110, 120 and 121",
                  compute_capability));
}

}  // namespace kvant
