#pragma once

#include <cstdint>

namespace kvant {

/// Which channels of a head form the pair that RoPE turns.
enum class RopePairs : uint8_t {
  kHalves,       ///< (i, i + num_pairs)
  kInterleaved,  ///< (2 i, 2 i + 1)
};

}  // namespace kvant
