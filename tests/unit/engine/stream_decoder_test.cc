#include <string>

#include <gtest/gtest.h>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

TEST(StreamDecoder, HoldsIncompleteCharactersWhenBytesComeOneByOne) {
  const std::string text = "hi😀é漢";
  StreamDecoder decoder;
  std::string joined;
  for (const char byte : text) {
    const std::string delta = decoder.push(std::string_view(&byte, 1));
    EXPECT_EQ(delta.find(kReplacement), std::string::npos);
    EXPECT_EQ(utf8_valid_prefix(delta), delta.size());
    joined += delta;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, FlushesOneReplacementWhenCutInsideACharacter) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.push("a\xF0\x9F\x98"), "a");
  EXPECT_EQ(decoder.flush(), kReplacement);
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, ReplacesBytesThatCanNeverBecomeValid) {
  const std::string r(kReplacement);
  EXPECT_EQ(StreamDecoder().push("a\xFF\x62"), "a" + r + "b");
  EXPECT_EQ(StreamDecoder().push("\xE2\x82z"), r + "z");
  EXPECT_EQ(StreamDecoder().push("\xED\xA0\x80"), r + r + r) << "a surrogate";
  EXPECT_EQ(StreamDecoder().push("\xC0\xAF"), r + r) << "over-long";
  EXPECT_EQ(StreamDecoder().push("\xF4\x90\x80\x80"), r + r + r + r) << "past U+10FFFF";
}

TEST(StreamDecoder, GivesTheSameTextHoweverTheBytesAreCut) {
  const std::string bytes = "x\xF0\x9F\x98\x80\xE2\x82\xACy\xFF\xC3\xC3\xA9\xE2\x28\xF0\x9F";
  StreamDecoder whole;
  std::string expected = whole.push(bytes);
  expected += whole.flush();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    StreamDecoder decoder;
    std::string text = decoder.push(bytes.substr(0, cut));
    text += decoder.push(bytes.substr(cut));
    text += decoder.flush();
    EXPECT_EQ(text, expected) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace kvant::engine
