#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace kvant::testing {

/// Rounds of a test with random input: `usual`, or so many times as many as KVANT_RANDOM_ROUNDS says.
inline uint32_t random_rounds(uint32_t usual) {
  const char* text = std::getenv("KVANT_RANDOM_ROUNDS");
  return text == nullptr ? usual : usual * static_cast<uint32_t>(std::max(1, std::atoi(text)));
}

}  // namespace kvant::testing
