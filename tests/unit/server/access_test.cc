#include "server/access.h"

#include <gtest/gtest.h>

namespace kvant::server {
namespace {

TEST(EqualInConstantTime, ComparesAllBytes) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* other : {"", "secre", "secrets", "Secret", "secreT"})
    EXPECT_FALSE(equal_in_constant_time(other, "secret")) << other;
  EXPECT_FALSE(equal_in_constant_time("a", ""));
}

TEST(HoldsKey, WantsABearer) {
  const std::vector<std::string> keys{"one", "two"};
  EXPECT_TRUE(holds_key("Bearer one", keys));
  EXPECT_TRUE(holds_key("bearer two", keys));
  for (const char* other : {"", "Bearer", "Bearer ", "Bearer three", "Basic one", "one"})
    EXPECT_FALSE(holds_key(other, keys)) << other;
}

TEST(IsForeignOrigin, KnowsItsOwnAndTheAllowedOne) {
  const auto request = [](std::string origin) {
    return HttpRequest{.method = "GET", .path = "/", .origin = std::move(origin), .host = "localhost:8080"};
  };
  EXPECT_FALSE(is_foreign_origin(request(""), ""));
  EXPECT_FALSE(is_foreign_origin(request("http://localhost:8080"), ""));
  EXPECT_TRUE(is_foreign_origin(request("http://localhost:9090"), ""));
  EXPECT_TRUE(is_foreign_origin(request("null"), ""));
  EXPECT_FALSE(is_foreign_origin(request("https://a.example"), "https://a.example"));
  EXPECT_TRUE(is_foreign_origin(request("https://b.example"), "https://a.example"));
  EXPECT_FALSE(is_foreign_origin(request("https://b.example"), "*"));
}

}  // namespace
}  // namespace kvant::server
