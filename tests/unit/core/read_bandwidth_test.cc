#include "core/read_bandwidth.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(ReadBandwidth, ReportsAPlausibleRate) {
  ThreadPool pool(2);
  const Result<double> rate = measure_read_bandwidth(pool, {.bytes = int64_t{1} << 24, .passes = 2});
  ASSERT_TRUE(rate) << rate.error().to_string();
  EXPECT_GT(*rate, 0.05);
  EXPECT_LT(*rate, 20'000.0);
}

TEST(ReadBandwidth, RefusesABufferBelowOneTask) {
  ThreadPool pool(1);
  const Result<double> rate = measure_read_bandwidth(pool, {.bytes = 1000});
  ASSERT_FALSE(rate);
  EXPECT_EQ(rate.error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant
