#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace kvant::engine {

/// A context-free grammar over bytes as a program. Threads of it, each with a stack of places to return to, read bytes;
/// a text belongs to the grammar when some thread reaches the end.
struct ByteProgram {
  struct Instruction {
    enum class Kind : uint8_t {
      kByte,    ///< Reads a byte from `low` to `high`, then goes to `next`.
      kSplit,   ///< Goes to `next` and to `other`.
      kCall,    ///< Runs rule `other`, then goes to `next`.
      kReturn,  ///< Ends a rule.
      kEnd,     ///< Ends the text.
      kDead,    ///< Reads nothing.
    };
    Kind kind = Kind::kDead;
    uint8_t low = 0, high = 0;
    int32_t next = 0, other = 0;
  };
  std::vector<Instruction> code;
  std::vector<int32_t> rules;  ///< Where each begins.
  int32_t start = 0;
};

/// Builds programs from their end to their beginning: every function takes what comes next and returns where the new
/// part begins.
class ProgramBuilder {
 public:
  using Place = int32_t;

  struct ByteRange {
    uint8_t low, high;
  };

  Place end() { return add({.kind = Kind::kEnd}); }
  Place done() { return add({.kind = Kind::kReturn}); }
  Place byte(uint8_t low, uint8_t high, Place next) {
    return add({.kind = Kind::kByte, .low = low, .high = high, .next = next});
  }
  Place one_of(std::initializer_list<ByteRange> ranges, Place next);
  Place literal(std::string_view text, Place next);
  Place either(Place a, Place b) { return add({.kind = Kind::kSplit, .next = a, .other = b}); }
  Place any_of(const std::vector<Place>& places);
  Place call(int32_t rule, Place next) { return add({.kind = Kind::kCall, .next = next, .other = rule}); }
  /// The rule between `least` and `most` times; most < 0 = any number.
  Place repeat(int32_t rule, int64_t least, int64_t most, Place next);
  /// A place whose target is set later: loops.
  Place forward() { return either(0, 0); }
  void set_forward(Place place, Place target) { set(place, target, target); }

  int32_t declare_rule();
  void define_rule(int32_t rule, Place begin) { program_.rules[static_cast<size_t>(rule)] = begin; }

  size_t size() const { return program_.code.size(); }
  ByteProgram finish(Place start) {
    program_.start = start;
    return std::move(program_);
  }

 private:
  using Kind = ByteProgram::Instruction::Kind;
  Place add(const ByteProgram::Instruction& instruction);
  void set(Place place, Place next, Place other);

  ByteProgram program_;
};

}  // namespace kvant::engine
