#pragma once

#include <cstdint>

#include "kvant/core/status.h"

namespace kvant::ops::cuda {

/// Multiprocessors of the current device; 0 where it is not a Hopper GPU (9.0).
Result<int32_t> hopper_multiprocessors();

}  // namespace kvant::ops::cuda
