#pragma once

#include <cstdint>

#include "core/float_bits.h"
#include "core/host_device.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn {

/// Size of the Hadamard blocks of a head: the largest power of two that divides head_dim.
KVANT_HD constexpr int32_t hadamard_block(int32_t head_dim) { return head_dim & -head_dim; }

/// fl(1 / sqrt(m)) for a power of two m: a power of two, times fl(sqrt(0.5)) when log2(m) is odd.
KVANT_HD constexpr float hadamard_factor(int32_t m) {
  float factor = 1.0f;
  int32_t rest = m;
  for (; rest >= 4; rest /= 4) factor *= 0.5f;
  return rest == 2 ? factor * 0.70710678118654752440f : factor;
}

/// Orthonormal Hadamard rotation in place, in blocks; the order of additions is part of the format.
KVANT_HD void hadamard_rotate(float* row, int32_t head_dim) {
  const int32_t m = hadamard_block(head_dim);
  const float factor = hadamard_factor(m);
  for (int32_t block = 0; block < head_dim; block += m) {
    float* t = row + block;
    for (int32_t h = 1; h < m; h *= 2) {
      for (int32_t base = 0; base < m; base += 2 * h) {
        for (int32_t i = base; i < base + h; ++i) {
          const float a = t[i];
          const float b = t[i + h];
          t[i] = fl_add(a, b);
          t[i + h] = fl_sub(a, b);
        }
      }
    }
    for (int32_t i = 0; i < m; ++i) t[i] = fl_mul(t[i], factor);
  }
}

/// K' of one key row, in place. `kv_head` picks the row of the conditioner's arrays.
KVANT_HD void condition_key(const KeyConditioner& conditioner, int32_t kv_head, int32_t head_dim, float* row) {
  if (conditioner.kind == KeyConditioning::kNone) return;
  const int64_t first = static_cast<int64_t>(kv_head) * head_dim;
  const float* mu = conditioner.mu + first;
  for (int32_t d = 0; d < head_dim; ++d) row[d] = fl_sub(row[d], mu[d]);
  if (conditioner.kind != KeyConditioning::kFull) return;
  const float* zi = conditioner.zi + first;
  for (int32_t d = 0; d < head_dim; ++d) row[d] = fl_mul(row[d], zi[d]);
  hadamard_rotate(row, head_dim);
}

/// q . mu of the unconditioned query: what conditioned scores lack. Sequential fp32 sum.
KVANT_HD float query_bias(const KeyConditioner& conditioner, int32_t kv_head, int32_t head_dim, const float* q) {
  if (conditioner.kind == KeyConditioning::kNone) return 0.0f;
  const float* mu = conditioner.mu + static_cast<int64_t>(kv_head) * head_dim;
  float sum = 0.0f;
  for (int32_t d = 0; d < head_dim; ++d) sum = fl_add(sum, fl_mul(q[d], mu[d]));
  return sum;
}

/// Q' of one query row, in place. Take `query_bias` first.
KVANT_HD void condition_query(const KeyConditioner& conditioner, int32_t kv_head, int32_t head_dim, float* row) {
  if (conditioner.kind != KeyConditioning::kFull) return;
  const float* z = conditioner.z + static_cast<int64_t>(kv_head) * head_dim;
  for (int32_t d = 0; d < head_dim; ++d) row[d] = fl_mul(row[d], z[d]);
  hadamard_rotate(row, head_dim);
}

}  // namespace kvant::attn
