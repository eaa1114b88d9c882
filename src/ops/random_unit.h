#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace kvant::ops {

/// A bijection that spreads every input bit over the whole word.
KVANT_HD constexpr uint64_t mix_bits(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

/// Uniform number in [0, 1), a pure function of its arguments: the same draw whatever else the process does.
KVANT_HD constexpr double random_unit(uint64_t seed, uint64_t step) {
  // Two rounds with an odd constant between, so that neighbouring seeds and steps share nothing.
  const uint64_t bits = mix_bits(mix_bits(seed + 0x9e3779b97f4a7c15u) + (step + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace kvant::ops
