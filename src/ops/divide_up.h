#pragma once

#include <cstdint>

namespace kvant::ops {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace kvant::ops
