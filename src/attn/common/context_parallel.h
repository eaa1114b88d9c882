#pragma once

#include <algorithm>
#include <cstdint>

#include "kvant/attn/attention.h"

namespace kvant::attn {

/// How many of the global keys [0, num_keys) a context-parallel rank holds: where a bound on global keys falls among
/// its own.
constexpr int64_t local_keys(const ContextParallel& cp, int64_t num_keys) {
  if (cp.size == 1) return num_keys;
  const int64_t round = static_cast<int64_t>(cp.interleave) * cp.size;
  const int64_t rest = num_keys % round - static_cast<int64_t>(cp.rank) * cp.interleave;
  return num_keys / round * cp.interleave + std::clamp<int64_t>(rest, 0, cp.interleave);
}

/// The global index of a rank's key.
constexpr int64_t global_key(const ContextParallel& cp, int64_t local) {
  if (cp.size == 1) return local;
  return (local / cp.interleave * cp.size + cp.rank) * cp.interleave + local % cp.interleave;
}

}  // namespace kvant::attn
