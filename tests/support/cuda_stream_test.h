#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>
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

  struct Replays {
    int rounds = 1;
    int read_every = 1;
  };
  /// After `run` has left something in `ys`: replays of it as a graph leave the same bits, whatever was there.
  template <class Run>
  void expect_replays_alike(const Run& run, const std::vector<DeviceBuffer>& ys, Replays replays) {
    std::vector<std::vector<float>> want;
    for (const DeviceBuffer& y : ys) want.push_back(read<float>(y));
    auto* handle = static_cast<cudaStream_t>(stream().cuda);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    run();
    ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    for (int round = 0; round < replays.rounds; ++round) {
      for (const DeviceBuffer& y : ys)
        ASSERT_EQ(cudaMemsetAsync(y.data(), 0xff, static_cast<size_t>(y.bytes()), handle), cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(replay, handle), cudaSuccess);
      if (round % replays.read_every != 0) continue;
      for (size_t i = 0; i < ys.size(); ++i)
        ASSERT_EQ(read<float>(ys[i]), want[i]) << "round " << round << ", step " << i;
    }
    EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }

 private:
  CudaStream owner_;
};

}  // namespace kvant::testing
