#include "engine/grammar/json_schema.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/grammar/byte_automaton.h"

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;

/// Whether a text is complete under a schema.
class Language {
 public:
  explicit Language(std::string schema, std::string before = {}, std::string after = {})
      : automaton_(compile_answer_shape({.kind = AnswerShape::Kind::kJsonSchema,
                                         .schema = std::move(schema),
                                         .before = std::move(before),
                                         .after = std::move(after)})
                       .value()) {}

  bool holds(std::string_view text) {
    ByteAutomaton::State state = automaton_.start();
    for (const char c : text) {
      state = automaton_.next(state, static_cast<uint8_t>(c));
      if (state == ByteAutomaton::kDead) return false;
    }
    return automaton_.accepting(state);
  }

 private:
  ByteAutomaton automaton_;
};

void expect(const std::string& schema, const std::vector<std::string>& inside,
            const std::vector<std::string>& outside) {
  Language language(schema);
  for (const std::string& text : inside) EXPECT_TRUE(language.holds(text)) << schema << " " << text;
  for (const std::string& text : outside) EXPECT_FALSE(language.holds(text)) << schema << " " << text;
}

std::string refusal(const std::string& schema) {
  const auto program = compile_answer_shape({.kind = AnswerShape::Kind::kJsonSchema, .schema = schema});
  return program ? "" : program.error().to_string();
}

TEST(JsonSchema, KnowsPlainTypes) {
  expect(R"({"type":"integer"})", {"0", "-1", "120"}, {"", "01", "1.5", "-", "+1", "1e3", "\"1\""});
  expect(R"({"type":"number"})", {"0", "-1.25", "1e-7", "10.0E+12"}, {".5", "1.", "1e", "NaN"});
  expect(R"({"type":"boolean"})", {"true", "false"}, {"True", "tru", "null"});
  expect(R"({"type":"null"})", {"null"}, {"0"});
  expect(R"({"type":["null","integer"]})", {"null", "7"}, {"true"});
  expect(R"({"const":{"a":[1,"x"]}})", {R"({"a":[1,"x"]})"}, {R"({"a":[1]})"});
  expect(R"({"enum":["red","blue",3]})", {R"("red")", "3"}, {R"("green")", R"("re")"});
}

TEST(JsonSchema, KnowsStrings) {
  expect(R"({"type":"string"})", {R"("")", R"("a b")", R"("\n\u00e9\\")", "\"é漢😀\""},
         {"\"", "\"a\nb\"", R"("\x")", R"("\ud800")", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xff\""});
  expect(R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", "\"é漢😀\""}, {R"("a")", R"("abcd")"});
}

TEST(JsonSchema, KnowsArrays) {
  expect(R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1, 2,3]", "[\n  1\n]"},
         {"[1,]", "[\"a\"]", "["});
  expect(R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})", {"[1]", "[1,2]"},
         {"[]", "[1,2,3]"});
  expect(R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"});
  expect(R"({"type":"array"})", {R"([1,"a",{"b":null}])"}, {"[a]"});
}

TEST(JsonSchema, KnowsObjects) {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},
    "c":{"type":"boolean"}},"required":["b"],"additionalProperties":false})";
  expect(schema, {R"({"a":1,"b":"x","c":true})", R"({"b":"x"})", R"({ "b": "x", "c": false })", R"({"a":1,"b":""})"},
         {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x",})", R"({,"b":"x"})", R"({"b":"x","d":1})"});
  expect(R"({"type":"object","properties":{"a":{}}})", {"{}", R"({"a":[{}]})"}, {R"({"b":1})"});
  expect(R"({"type":"object"})", {"{}", R"({"x":{"y":[1]}})"}, {"[]", "1"});
  expect(R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"x":1,"y":2})"},
         {R"({"x":"1"})"});
  expect(R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"x":1})"});
}

TEST(JsonSchema, FollowsReferences) {
  expect(R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
    "next":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}},"required":["v","next"]}}})",
         {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})", R"({"v":1,"next":1})"});
  // A reference to itself that reads nothing accepts nothing, and ends.
  expect(R"({"$ref":"#"})", {}, {"", "1"});
}

TEST(JsonSchema, PutsTextAround) {
  Language language(R"({"type":"integer"})", "<call>", "</call>");
  EXPECT_TRUE(language.holds("<call>7</call>"));
  EXPECT_FALSE(language.holds("7"));
  EXPECT_FALSE(language.holds("<call>7"));
}

TEST(JsonSchema, NamesWhatItDoesNotKnow) {
  EXPECT_THAT(refusal(R"({"type":"string","pattern":"a+"})"), HasSubstr("'pattern' is not supported"));
  EXPECT_THAT(refusal(R"({"type":"object","properties":{"a":{"type":"integer","minimum":1}}})"),
              HasSubstr("#/a: 'minimum'"));
  EXPECT_THAT(refusal(R"({"oneOf":[]})"), HasSubstr("'oneOf'"));
  EXPECT_THAT(refusal(R"({"type":"date"})"), HasSubstr("no type 'date'"));
  EXPECT_THAT(refusal(R"({"$ref":"http://example.org"})"), HasSubstr("leads nowhere"));
  EXPECT_THAT(refusal(R"({"type":"array","minItems":5000})"), HasSubstr("'minItems'"));
  EXPECT_THAT(refusal(R"({"type":"string","minLength":3,"maxLength":2})"), HasSubstr("is below"));
  EXPECT_THAT(refusal(R"({"type":"object","required":["a"]})"), HasSubstr("'required'"));
  EXPECT_THAT(refusal(R"({"type":7})"), HasSubstr("'type'"));
  EXPECT_THAT(refusal("7"), HasSubstr("must be an object"));
  EXPECT_THAT(refusal("{"), HasSubstr("no JSON"));
}

}  // namespace
}  // namespace kvant::engine
