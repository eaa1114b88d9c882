#pragma once

#include "core/cuda_status.h"

namespace kvant::attn::cuda {

using kvant::cuda_status;

}  // namespace kvant::attn::cuda
