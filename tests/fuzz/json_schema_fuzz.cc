// Any bytes as a JSON schema: it is refused, or a text is led through it for a while.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/grammar/byte_automaton.h"
#include "engine/grammar/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvant::engine::ByteAutomaton;
  auto program =
      kvant::engine::compile_answer_shape({.kind = kvant::engine::AnswerShape::Kind::kJsonSchema,
                                           .schema = std::string(reinterpret_cast<const char*>(data), size)});
  if (!program) return 0;
  ByteAutomaton automaton(*std::move(program));
  ByteAutomaton::State state = automaton.start();
  for (int i = 0; i < 200 && state != ByteAutomaton::kDead; ++i) {
    ByteAutomaton::State next = ByteAutomaton::kDead;
    for (int byte = 0; byte < 256 && next == ByteAutomaton::kDead; ++byte)
      next = automaton.next(state, static_cast<uint8_t>(byte * 7 + i));
    state = next;
  }
  return 0;
}
