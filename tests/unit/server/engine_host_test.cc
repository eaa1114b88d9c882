#include "server/engine_host.h"

#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_host.h"

namespace kvant::server {
namespace {

using ::testing::HasSubstr;
using State = EngineHost::State;
using std::chrono::milliseconds;

/// Looks again and again, for two seconds at most.
template <class Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return condition();
}

TEST(EngineHost, SaysWhyItIsNotReady) {
  std::atomic<bool> go = false;
  EngineHost host({}, [&](const engine::EngineOptions& options) -> Result<std::unique_ptr<engine::Engine>> {
    options.progress("reading weights", 1, 4);
    while (!go) std::this_thread::yield();
    return failure(StatusCode::kNotFound, "no such model");
  });
  host.start();
  EXPECT_TRUE(eventually([&] { return host.health().reason == "loading: reading weights (25 %)"; }));
  EXPECT_EQ(host.health().state, State::kLoading);
  EXPECT_EQ(host.admit(1).error(), EngineHost::Refusal::kNotReady);
  go = true;
  EXPECT_EQ(host.wait_until_loaded().code(), StatusCode::kNotFound);
  EXPECT_EQ(host.health().state, State::kFailed);
  EXPECT_THAT(host.health().reason, HasSubstr("no such model"));
}

TEST(EngineHost, WatchesSteps) {
  testing::FakeHost fake("hello", {.model_name = "fake"}, {.watchdog = milliseconds(30)});
  EXPECT_EQ(fake.host().health().state, State::kReady);
  EXPECT_EQ(fake.get("/health").status, 200);
  fake.engine().frozen = true;
  EXPECT_TRUE(eventually([&] { return fake.host().health().state == State::kStuck; }));
  EXPECT_EQ(fake.get("/health").status, 503);
  EXPECT_THAT(fake.get("/health").body, HasSubstr("in one step for"));
  fake.engine().frozen = false;
  EXPECT_TRUE(eventually([&] { return fake.host().health().state == State::kReady; }));
}

TEST(EngineHost, ReadsAPromptAndATokenBeforeItIsReady) {
  testing::FakeHost fake;
  EXPECT_EQ(fake.engine().last_request.max_tokens, 2);
  EXPECT_FALSE(fake.engine().last_request.prompt.empty());
}

TEST(EngineHost, HoldsSeats) {
  testing::FakeHost fake;  // Two at once, four waiting.
  ASSERT_EQ(fake.host().max_requests(), 6);
  {
    const auto first = fake.host().admit(5);
    EXPECT_TRUE(first);
    EXPECT_EQ(fake.host().admit(2).error(), EngineHost::Refusal::kFull);
    EXPECT_EQ(fake.host().requests(), 5);
  }
  EXPECT_EQ(fake.host().requests(), 0);
  EXPECT_TRUE(fake.host().admit(6));
}

TEST(EngineHost, AdmitsNothingWhileItDrains) {
  testing::FakeHost fake;
  fake.host().drain(milliseconds(1));
  EXPECT_EQ(fake.host().health().state, State::kDraining);
  EXPECT_EQ(fake.post("/v1/completions", R"({"prompt":"a"})").status, 503);
}

}  // namespace
}  // namespace kvant::server
