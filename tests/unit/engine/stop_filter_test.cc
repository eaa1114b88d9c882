#include "engine/stop_filter.h"

#include <string>

#include <gtest/gtest.h>

namespace kvant::engine {
namespace {

TEST(StopFilter, PassesTextThroughWhenNothingCanMatch) {
  StopFilter filter({"END"});
  EXPECT_EQ(filter.push("hello "), "hello ");
  EXPECT_EQ(filter.push("world"), "world");
  EXPECT_EQ(filter.flush(), "");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, HoldsBackOnlyATruePrefix) {
  StopFilter filter({"\n\nUser:"});
  EXPECT_EQ(filter.push("a\n"), "a");
  EXPECT_EQ(filter.push("b"), "\nb");
  EXPECT_EQ(filter.push("\n\nUse"), "");
  EXPECT_EQ(filter.push("d"), "\n\nUsed");
}

TEST(StopFilter, FindsAStopStringAcrossPieces) {
  StopFilter filter({"STOP"});
  EXPECT_EQ(filter.push("one S"), "one ");
  EXPECT_EQ(filter.push("T"), "");
  EXPECT_EQ(filter.push("OP two"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("three"), "");
  EXPECT_EQ(filter.flush(), "");
}

TEST(StopFilter, ReturnsTextBeforeTheEarliestStopString) {
  StopFilter filter({"late", "ear"});
  EXPECT_EQ(filter.push("the early late"), "the ");
  EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, RestartsInsideAPartialMatch) {
  StopFilter filter({"aab"});
  EXPECT_EQ(filter.push("aa"), "");
  EXPECT_EQ(filter.push("a"), "a");
  EXPECT_EQ(filter.push("b!"), "");
  EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, ReleasesHeldTextAtTheEnd) {
  StopFilter filter({"STOP", ""});
  EXPECT_EQ(filter.push("ST"), "");
  EXPECT_EQ(filter.flush(), "ST");
  EXPECT_FALSE(filter.stopped());
}

}  // namespace
}  // namespace kvant::engine
