#pragma once

#include "engine/speculation/drafter.h"

namespace kvant::engine {

/// Prompt look-up: what followed the newest tokens when they last occurred in the sequence. Good for answers that quote
/// or repeat; costs a scan of the sequence. Remembers nothing.
class NgramDrafter final : public Drafter {
 public:
  Status propose(std::span<const DraftRequest> requests) override;
  void forget(uint64_t) override {}
};

/// The tokens after the latest earlier occurrence of the longest possible end of `tokens`, at most `count`; empty when
/// not even its last two tokens occur before.
std::span<const int32_t> look_up_continuation(std::span<const int32_t> tokens, int32_t count);

}  // namespace kvant::engine
