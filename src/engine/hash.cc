#include "engine/hash.h"

#include <fmt/format.h>

namespace kvant::engine {

std::string Hasher::hex() const { return fmt::format("{:016x}", state_); }

}  // namespace kvant::engine
