#pragma once

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/device_memory.h"
#include "kvant/core/device.h"

namespace kvant::testing {

/// Tests on a CUDA stream of their own. Skips every test of a suite, with a reason, where there is no device.
class CudaStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device: GPU tests did not run";
    auto stream = CudaStream::create();
    ASSERT_TRUE(stream) << stream.error().to_string();
    owner_ = *std::move(stream);
  }
  Stream stream() const { return owner_.stream(); }

  template <class T>
  DeviceBuffer send(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    auto buffer = DeviceBuffer::create(MemoryKind::kCuda, bytes, "a test");
    EXPECT_TRUE(buffer) << buffer.error().to_string();
    EXPECT_TRUE(copy_bytes(buffer->data(), values.data(), bytes, stream()).ok());
    EXPECT_TRUE(synchronise(stream()).ok());
    return *std::move(buffer);
  }
  template <class T>
  std::vector<T> read(const DeviceBuffer& buffer) {
    std::vector<T> values(static_cast<size_t>(buffer.bytes()) / sizeof(T));
    EXPECT_TRUE(copy_bytes(values.data(), buffer.data(), buffer.bytes(), stream()).ok());
    const Status status = synchronise(stream());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return values;
  }

 private:
  CudaStream owner_;
};

}  // namespace kvant::testing
