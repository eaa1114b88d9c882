#include "core/device_memory.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/device.h"
#include "kvant/core/thread_pool.h"

namespace kvant {
namespace {

TEST(DeviceBuffer, IsZeroedAndMoves) {
  auto made = DeviceBuffer::create(MemoryKind::kHost, 1000, "a test");
  ASSERT_TRUE(made) << made.error().to_string();
  DeviceBuffer first = *std::move(made);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(first.as<uint8_t>()[i], 0);
  first.as<uint8_t>()[7] = 42;
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.as<uint8_t>()[7], 42);
  EXPECT_EQ(second.bytes(), 1000);
  EXPECT_EQ(DeviceBuffer::create(MemoryKind::kHost, 0, "nothing")->data(), nullptr);
}

TEST(DeviceBuffer, SaysWhatCouldNotBeHad) {
  const auto buffer = DeviceBuffer::create(MemoryKind::kHost, int64_t{1} << 60, "a test");
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.error().message().find("a test"), std::string::npos);
}

TEST(MirroredBuffer, IsOneMemoryOnTheCpu) {
  ThreadPool pool(1);
  const Stream stream = Stream::on_cpu(pool);
  auto buffer =
      MirroredBuffer::create(MirroredBuffer::bytes_for<int32_t>(3) + MirroredBuffer::bytes_for<int64_t>(5), stream);
  ASSERT_TRUE(buffer);
  const Mirrored<int32_t> small = buffer->carve<int32_t>(3);
  const Mirrored<int64_t> large = buffer->carve<int64_t>(5);
  for (int32_t& value : small.span()) value = 1;
  for (int64_t& value : large.span()) value = 2;
  ASSERT_TRUE(buffer->upload(stream).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(small.device[i], 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(large.device[i], 2);
}

TEST(DeviceMemory, IsRefusedWithoutADevice) {
  if (!cuda_devices().empty()) GTEST_SKIP() << "there is a device";
  EXPECT_FALSE(DeviceBuffer::create(MemoryKind::kCuda, 16, "a test"));
  EXPECT_FALSE(CudaStream::create());
}

}  // namespace
}  // namespace kvant
