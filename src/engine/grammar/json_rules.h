#pragma once

#include <cstdint>

#include "engine/grammar/byte_program.h"

namespace kvant::engine {

/// The rules of JSON itself. White space is at most one blank, or a line end with an indent; numbers have a limited
/// number of digits; strings are valid UTF-8 without escaped surrogates.
class JsonRules {
 public:
  explicit JsonRules(ProgramBuilder& builder);

  int32_t space = 0;      ///< Optional white space.
  int32_t character = 0;  ///< Of a string.
  int32_t string = 0;
  int32_t integer = 0;
  int32_t number = 0;
  int32_t value = 0;
  int32_t object = 0;
  int32_t array = 0;

 private:
  using Place = ProgramBuilder::Place;
  void define_space();
  void define_character();
  void define_numbers();
  void define_values();
  Place digits(int32_t most, Place next);

  ProgramBuilder& builder_;
};

}  // namespace kvant::engine
