#include "engine/grammar/byte_automaton.h"

#include <algorithm>

namespace kvant::engine {
namespace {

constexpr int32_t kNotTaken = -2;
/// Deeper nesting than this is not part of any grammar.
constexpr int32_t kMaxStack = 256;

}  // namespace

ByteAutomaton::ByteAutomaton(ByteProgram program) : program_(std::move(program)) {
  const Thread entry{program_.start, -1};
  start_ = state_of({&entry, 1});
}

int32_t ByteAutomaton::push(int32_t place, int32_t below) {
  const auto [found, is_new] = frame_of_.try_emplace({place, below}, static_cast<int32_t>(frames_.size()));
  if (is_new) {
    const int32_t depth = below < 0 ? 1 : frames_[static_cast<size_t>(below)].depth + 1;
    frames_.push_back({place, below, depth});
  }
  return found->second;
}

bool ByteAutomaton::follow(Thread entry, std::vector<Thread>& found) {
  using Kind = ByteProgram::Instruction::Kind;
  bool accepting = false;
  work_.assign(1, entry);
  while (!work_.empty()) {
    const Thread thread = work_.back();
    work_.pop_back();
    if (std::find(seen_.begin(), seen_.end(), thread) != seen_.end()) continue;
    seen_.push_back(thread);
    const auto& instruction = program_.code[static_cast<size_t>(thread.place)];
    switch (instruction.kind) {
      case Kind::kByte: found.push_back(thread); break;
      case Kind::kSplit:
        work_.push_back({instruction.other, thread.stack});
        work_.push_back({instruction.next, thread.stack});
        break;
      case Kind::kCall:
        if (thread.stack >= 0 && frames_[static_cast<size_t>(thread.stack)].depth >= kMaxStack) break;
        work_.push_back({program_.rules[static_cast<size_t>(instruction.other)], push(instruction.next, thread.stack)});
        break;
      case Kind::kReturn: {
        if (thread.stack < 0) break;
        const StackFrame& frame = frames_[static_cast<size_t>(thread.stack)];
        work_.push_back({frame.place, frame.below});
        break;
      }
      case Kind::kEnd: accepting = true; break;
      case Kind::kDead: break;
    }
  }
  return accepting;
}

ByteAutomaton::State ByteAutomaton::state_of(std::span<const Thread> entries) {
  std::vector<Thread> threads;
  bool accepting = false;
  seen_.clear();
  for (const Thread& entry : entries) accepting |= follow(entry, threads);
  if (threads.empty() && !accepting) return kDead;
  std::sort(threads.begin(), threads.end());
  std::vector<Thread> key = threads;
  if (accepting) key.push_back({-1, -1});
  const auto [found, is_new] = state_of_.try_emplace(std::move(key), static_cast<State>(states_.size()));
  if (is_new) {
    StateData data{.threads = std::move(threads), .accepting = accepting, .steps = {}};
    data.steps.fill(kNotTaken);
    states_.push_back(std::move(data));
  }
  return found->second;
}

ByteAutomaton::State ByteAutomaton::next(State state, uint8_t byte) {
  if (state == kDead) return kDead;
  const State known = states_[static_cast<size_t>(state)].steps[byte];
  if (known != kNotTaken) return known;
  std::vector<Thread> entries;
  for (const Thread& thread : states_[static_cast<size_t>(state)].threads) {
    const auto& instruction = program_.code[static_cast<size_t>(thread.place)];
    if (byte >= instruction.low && byte <= instruction.high) entries.push_back({instruction.next, thread.stack});
  }
  const State out = state_of(entries);
  states_[static_cast<size_t>(state)].steps[byte] = out;
  return out;
}

}  // namespace kvant::engine
