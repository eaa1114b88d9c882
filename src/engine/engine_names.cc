#include <fmt/format.h>

#include "kvant/engine/engine.h"

namespace kvant::engine {

std::string_view to_string(WeightFormat format) {
  switch (format) {
    case WeightFormat::kAuto: return "auto";
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kBf16: return "bf16";
    case WeightFormat::kInt8: return "int8";
  }
  return "?";
}

Result<WeightFormat> parse_weight_format(std::string_view name) {
  for (WeightFormat format : {WeightFormat::kAuto, WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8})
    if (to_string(format) == name) return format;
  return failure(StatusCode::kInvalidArgument,
                 fmt::format("weight format '{}' is not known; choose auto, f32, bf16 or int8", name));
}

std::string_view to_string(DeviceChoice device) {
  switch (device) {
    case DeviceChoice::kAuto: return "auto";
    case DeviceChoice::kCpu: return "cpu";
    case DeviceChoice::kCuda: return "cuda";
  }
  return "?";
}

Result<DeviceChoice> parse_device(std::string_view name) {
  for (const DeviceChoice device : {DeviceChoice::kAuto, DeviceChoice::kCpu, DeviceChoice::kCuda})
    if (name == to_string(device)) return device;
  return failure(StatusCode::kInvalidArgument, fmt::format("device '{}' is not one of auto, cpu, cuda", name));
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "?";
}

}  // namespace kvant::engine
