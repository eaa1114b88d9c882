#include "server/json.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::server {
namespace {

using ::testing::HasSubstr;

std::string problem(std::string_view text, const JsonLimits& limits = {}) {
  const auto json = parse_json(text, limits);
  return json ? "" : json.error().message();
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJson, HoldsTheDepthLimit) {
  EXPECT_EQ(problem(nested(64)), "");
  EXPECT_THAT(problem(nested(65)), HasSubstr("deeper than 64"));
  EXPECT_THAT(problem(std::string(1 << 20, '[')), HasSubstr("deeper than 64"));
}

TEST(ParseJson, HoldsTheValueLimit) {
  EXPECT_EQ(problem("[1,2,3]", {.max_values = 4}), "");
  EXPECT_THAT(problem("[1,2,3,4]", {.max_values = 4}), HasSubstr("more than 4 values"));
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{'a':1}", "nul", "1 2", "\"\\ud800\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"",
                           "1e400", "-1e999", "\"\t\"", "\xef\xbb\xbf{", "NaN"})
    EXPECT_NE(problem(text), "") << text;
}

TEST(ToText, IsAlwaysUtf8) { EXPECT_EQ(to_text(Json("a\xff")), "\"a\xef\xbf\xbd\""); }

}  // namespace
}  // namespace kvant::server
