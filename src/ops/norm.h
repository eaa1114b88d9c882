#pragma once

#include <cstdint>

#include "kvant/core/stream.h"

namespace kvant::ops {

/// out = x / sqrt(mean(x^2) + eps) * weight for every row of x [rows, dim]; weight [dim]. `out` may alias x. A row's
/// result depends on that row alone.
void rms_norm(const float* x, int64_t rows, int64_t dim, const float* weight, float eps, float* out, Stream stream);

/// The same for one row, on the calling thread.
void rms_norm_row(const float* x, int64_t dim, const float* weight, float eps, float* out);

}  // namespace kvant::ops
