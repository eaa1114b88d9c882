#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/grammar/byte_program.h"

namespace kvant::engine {

/// Runs a ByteProgram. States are sets of threads; they and the steps between them are made when first needed and kept,
/// so that a step that was taken before is a table look-up. Not thread-safe.
class ByteAutomaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;

  explicit ByteAutomaton(ByteProgram program);

  /// kDead when the grammar has no text at all.
  State start() const { return start_; }
  /// The state after a byte, kDead when no text of the grammar goes on like this.
  State next(State state, uint8_t byte);
  /// Whether the text so far is complete.
  bool accepting(State state) const { return state != kDead && states_[static_cast<size_t>(state)].accepting; }
  /// Whether nothing can follow.
  bool exhausted(State state) const { return state == kDead || states_[static_cast<size_t>(state)].threads.empty(); }
  size_t num_states() const { return states_.size(); }

 private:
  /// A thread is a byte instruction that waits, and a stack of places to return to.
  struct Thread {
    int32_t place;
    int32_t stack;
    friend auto operator<=>(const Thread&, const Thread&) = default;
  };
  struct StateData {
    std::vector<Thread> threads;
    bool accepting = false;
    std::array<State, 256> steps;
  };
  struct StackFrame {
    int32_t place;
    int32_t below;
    int32_t depth;
  };

  State state_of(std::span<const Thread> entries);
  /// Follows splits, calls and returns from `entry`; threads that wait for a byte go to `found`.
  bool follow(Thread entry, std::vector<Thread>& found);
  int32_t push(int32_t place, int32_t below);

  ByteProgram program_;
  std::vector<StackFrame> frames_;
  std::map<std::pair<int32_t, int32_t>, int32_t> frame_of_;  ///< Equal stacks are one.
  std::vector<StateData> states_;
  std::map<std::vector<Thread>, State> state_of_;  ///< Accepting states have a marker thread in their key.
  std::vector<Thread> work_, seen_;
  State start_ = kDead;
};

}  // namespace kvant::engine
