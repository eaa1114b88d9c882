#include "engine/grammar/byte_program.h"

namespace kvant::engine {

ProgramBuilder::Place ProgramBuilder::add(const ByteProgram::Instruction& instruction) {
  program_.code.push_back(instruction);
  return static_cast<Place>(program_.code.size()) - 1;
}

void ProgramBuilder::set(Place place, Place next, Place other) {
  auto& instruction = program_.code[static_cast<size_t>(place)];
  instruction.next = next;
  instruction.other = other;
}

ProgramBuilder::Place ProgramBuilder::one_of(std::initializer_list<ByteRange> ranges, Place next) {
  std::vector<Place> places;
  for (const ByteRange& range : ranges) places.push_back(byte(range.low, range.high, next));
  return any_of(places);
}

ProgramBuilder::Place ProgramBuilder::literal(std::string_view text, Place next) {
  for (auto c = text.rbegin(); c != text.rend(); ++c)
    next = byte(static_cast<uint8_t>(*c), static_cast<uint8_t>(*c), next);
  return next;
}

ProgramBuilder::Place ProgramBuilder::any_of(const std::vector<Place>& places) {
  if (places.empty()) return add({});
  Place out = places.back();
  for (size_t i = places.size() - 1; i-- > 0;) out = either(places[i], out);
  return out;
}

ProgramBuilder::Place ProgramBuilder::repeat(int32_t rule, int64_t least, int64_t most, Place next) {
  Place out = next;
  if (most < 0) {
    out = forward();
    set(out, call(rule, out), next);
  } else {
    for (int64_t i = least; i < most; ++i) out = either(call(rule, out), next);
  }
  for (int64_t i = 0; i < least; ++i) out = call(rule, out);
  return out;
}

int32_t ProgramBuilder::declare_rule() {
  program_.rules.push_back(0);
  return static_cast<int32_t>(program_.rules.size()) - 1;
}

}  // namespace kvant::engine
