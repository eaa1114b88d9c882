#include "engine/grammar/json_rules.h"

#include <vector>

namespace kvant::engine {
namespace {

constexpr int32_t kMaxIndent = 24;
constexpr int32_t kMaxIntegerDigits = 18;
constexpr int32_t kMaxFractionDigits = 17;
constexpr int32_t kMaxExponentDigits = 2;

}  // namespace

JsonRules::JsonRules(ProgramBuilder& builder) : builder_(builder) {
  for (int32_t* rule : {&space, &character, &string, &integer, &number, &value, &object, &array})
    *rule = builder_.declare_rule();
  define_space();
  define_character();
  define_numbers();
  define_values();
}

void JsonRules::define_space() {
  const Place done = builder_.done();
  Place indent = done;
  for (int32_t i = 0; i < kMaxIndent; ++i) indent = builder_.either(builder_.byte(' ', ' ', indent), done);
  builder_.define_rule(space,
                       builder_.any_of({done, builder_.byte(' ', ' ', done), builder_.byte('\n', '\n', indent)}));
}

void JsonRules::define_character() {
  ProgramBuilder& b = builder_;
  const Place done = b.done();
  const auto tail = [&](Place next) { return b.byte(0x80, 0xbf, next); };
  const auto hex = [&](Place next) { return b.one_of({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}, next); };
  const Place hex3 = hex(hex(hex(done)));
  // After D only 0 to 7: the rest are surrogates.
  const Place after_d = b.byte('0', '7', hex(hex(done)));
  const Place unicode = b.any_of({b.one_of({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}}, hex3),
                                  b.one_of({{'d', 'd'}, {'D', 'D'}}, after_d)});
  const Place escaped = b.any_of(
      {b.one_of({{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}},
                done),
       b.byte('u', 'u', unicode)});
  b.define_rule(
      character,
      b.any_of({b.one_of({{0x20, '!'}, {'#', '['}, {']', 0x7e}}, done), b.byte('\\', '\\', escaped),
                b.byte(0xc2, 0xdf, tail(done)), b.byte(0xe0, 0xe0, b.byte(0xa0, 0xbf, tail(done))),
                b.one_of({{0xe1, 0xec}, {0xee, 0xef}}, tail(tail(done))),
                b.byte(0xed, 0xed, b.byte(0x80, 0x9f, tail(done))),
                b.byte(0xf0, 0xf0, b.byte(0x90, 0xbf, tail(tail(done)))), b.byte(0xf1, 0xf3, tail(tail(tail(done)))),
                b.byte(0xf4, 0xf4, b.byte(0x80, 0x8f, tail(tail(done))))}));
  b.define_rule(string, b.literal("\"", b.repeat(character, 0, -1, b.literal("\"", b.done()))));
}

JsonRules::Place JsonRules::digits(int32_t most, Place next) {
  Place out = next;
  for (int32_t i = 1; i < most; ++i) out = builder_.either(builder_.byte('0', '9', out), next);
  return builder_.byte('0', '9', out);
}

void JsonRules::define_numbers() {
  ProgramBuilder& b = builder_;
  const auto signed_integer = [&](Place next) {
    Place more = next;
    for (int32_t i = 1; i < kMaxIntegerDigits; ++i) more = b.either(b.byte('0', '9', more), next);
    const Place magnitude = b.either(b.byte('0', '0', next), b.byte('1', '9', more));
    return b.either(b.byte('-', '-', magnitude), magnitude);
  };
  b.define_rule(integer, signed_integer(b.done()));
  const Place done = b.done();
  const Place power = digits(kMaxExponentDigits, done);
  const Place exponent = b.one_of({{'e', 'e'}, {'E', 'E'}}, b.either(b.one_of({{'+', '+'}, {'-', '-'}}, power), power));
  const Place tail = b.either(exponent, done);
  b.define_rule(number, signed_integer(b.either(b.byte('.', '.', digits(kMaxFractionDigits, tail)), tail)));
}

void JsonRules::define_values() {
  ProgramBuilder& b = builder_;
  const Place done = b.done();
  b.define_rule(value, b.any_of({b.call(string, done), b.call(number, done), b.call(object, done), b.call(array, done),
                                 b.literal("true", done), b.literal("false", done), b.literal("null", done)}));
  // '{' space ( '}' | pair { ',' space pair } space '}' )
  const auto collection = [&](std::string_view open, std::string_view close, auto item) {
    const Place closing = b.literal(close, b.done());
    const Place spaced_closing = b.call(space, closing);
    const Place loop = b.forward();
    const Place first = item(loop);
    b.set_forward(loop, b.either(b.literal(",", b.call(space, first)), spaced_closing));
    return b.literal(open, b.call(space, b.either(closing, first)));
  };
  b.define_rule(object, collection("{", "}", [&](Place next) {
                  return b.call(string, b.literal(":", b.call(space, b.call(value, next))));
                }));
  b.define_rule(array, collection("[", "]", [&](Place next) { return b.call(value, next); }));
}

}  // namespace kvant::engine
