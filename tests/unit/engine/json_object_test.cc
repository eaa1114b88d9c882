#include "engine/loader/json_object.h"

#include "support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>

namespace kvant::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

template <class T>
void expect_error(const Result<T>& result, const std::string& text) {
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().message(), HasSubstr(text));
  EXPECT_THAT(result.error().message(), Not(HasSubstr("\n")));
  EXPECT_LT(result.error().message().size(), 400u);
}

JsonObject object(std::string_view text) { return JsonObject::parse(text, "config.json").value(); }

TEST(JsonObject, ReadsTypedValues) {
  const JsonObject json = object(R"({"n": 7, "f": 1e-5, "t": "x", "b": true, "null": null, "l": ["a", "b"],
                                     "d": [1, 2.5], "o": {"inner": {"n": 3}}, "one": 5, "many": [1, 2]})");
  EXPECT_EQ(json.size("n").value(), 7);
  EXPECT_EQ(json.size_or("null", 9).value(), 9);
  EXPECT_EQ(json.integer("n", -1, 7).value(), 7);
  EXPECT_DOUBLE_EQ(json.number("f").value(), 1e-5);
  EXPECT_FLOAT_EQ(json.positive("f").value(), 1e-5f);
  EXPECT_EQ(json.text("t").value(), "x");
  EXPECT_TRUE(json.boolean("b").value());
  EXPECT_FALSE(json.contains("null"));
  EXPECT_THAT(json.texts("l").value(), ElementsAre("a", "b"));
  EXPECT_THAT(json.numbers("d").value(), ElementsAre(1.0, 2.5));
  EXPECT_THAT(json.ids("one").value(), ElementsAre(5));
  EXPECT_THAT(json.ids("many").value(), ElementsAre(1, 2));
  EXPECT_THAT(json.ids("absent").value(), IsEmpty());
  const JsonObject inner = json.object("o").value().object("inner").value();
  EXPECT_EQ(inner.size("n").value(), 3);
  EXPECT_EQ(inner.name(), "config.json: o: inner");
  EXPECT_FALSE(json.find_object("absent").value().has_value());
}

TEST(JsonObject, KeepsTheDocumentOfANestedObjectAlive) {
  const JsonObject inner =
      object(R"({"o": {"text": "a string too long to live inside the value itself"}})").object("o").value();
  EXPECT_THAT(inner.text("text").value(), HasSubstr("too long"));
}

TEST(JsonObject, NamesKeyValueAndNeed) {
  const JsonObject json = object(R"({"n": -3, "big": 9223372036854775808, "huge": 18446744073709551615, "t": "x",
                                     "f": 1.5, "l": [1, "a"], "o": [], "id": [-1], "text\nkey": {}})");
  expect_error(json.size("n"), "config.json: 'n' is -3; a whole number from 1 to 16777216 is needed");
  expect_error(json.size("big"), "'big' is 9223372036854775808");
  expect_error(json.integer("huge", 0, std::numeric_limits<int64_t>::max()), "'huge' is 18446744073709551615");
  expect_error(json.size("f"), "'f' is 1.5");
  expect_error(json.size("t"), "'t' is 'x'");
  expect_error(json.size("absent"), "'absent' is missing");
  expect_error(json.number("t"), "a number is needed");
  expect_error(json.positive("n"), "a positive number is needed");
  expect_error(json.boolean("n"), "true or false is needed");
  expect_error(json.text("n"), "a string is needed");
  expect_error(json.texts("l"), "a list of strings is needed");
  expect_error(json.numbers("l"), "a list of numbers is needed");
  expect_error(json.object("o"), "'o' is a list of 0; an object is needed");
  expect_error(json.find_object("t"), "an object is needed");
  expect_error(json.ids("id"), "a token id or a list of them is needed");
  expect_error(json.ids("big"), "a token id");
}

TEST(JsonObject, RefusesWhatIsNotJson) {
  const auto parse = [](const std::string& text) { return JsonObject::parse(text, "config.json"); };
  expect_error(parse(""), "not valid JSON");
  expect_error(parse("{\"a\": \"\xff\xfe\"}"), "not valid JSON in UTF-8 (at byte");
  expect_error(parse("{\"a\": 1e999}"), "out of range");
  expect_error(parse("{\"a\": 1} {"), "not valid JSON");
  expect_error(parse("[1]"), "a list of 1; an object is needed");
  for (const char open : {'[', '{'}) {
    std::string deep = "{\"a\":";
    for (int i = 0; i < 5000; ++i) deep += open == '[' ? "[" : "{\"a\":";
    expect_error(parse(deep), "nests JSON deeper than 256 levels");
  }
  // Brackets in strings are not levels.
  EXPECT_TRUE(parse("{\"a\": \"" + std::string(5000, '[') + "\\\"" + std::string(5000, '{') + "\"}").has_value());
}

TEST(JsonObject, RefusesFilesThatCannotBeConfigs) {
  const testing::TempDir dir;
  expect_error(JsonObject::read(dir.path() / "config.json"), "cannot open");
  expect_error(JsonObject::read(dir.path()), "is not a regular file");
  const auto file = dir.write("config.json", std::vector<std::byte>(100, std::byte{' '}));
  expect_error(JsonObject::read(file, 99), "has 100 bytes; at most 99 are read");
}

}  // namespace
}  // namespace kvant::engine
