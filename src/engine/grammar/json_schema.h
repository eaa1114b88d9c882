#pragma once

#include "engine/grammar/byte_program.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

/// The program that accepts what an answer of this shape may be. docs/server.md states the subset of JSON Schema;
/// anything outside it is kUnsupported, naming the keyword and where it stands.
Result<ByteProgram> compile_answer_shape(const AnswerShape& shape);

}  // namespace kvant::engine
