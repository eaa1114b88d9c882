#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "support/alloc_guard.h"
#include "support/device_problem.h"

namespace kvant::attn::test {

/// One run of a problem as a graph. Capturing fails the test when the run allocates, waits or takes more than one node.
class CapturedRun {
 public:
  explicit CapturedRun(DeviceProblem& device) {
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    // Global mode: an allocation or a synchronisation inside run fails the capture.
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    Status captured;
    {
      const kvant::test::AllocGuard guard;
      captured = device.run(stream_);
      EXPECT_EQ(guard.host_allocations(), 0);
      EXPECT_EQ(guard.cuda_calls(), 0);
    }
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_TRUE(captured.ok()) << captured.to_string();
    size_t num_nodes = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph_, nullptr, &num_nodes), cudaSuccess);
    EXPECT_EQ(num_nodes, 1u);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess);
  }
  ~CapturedRun() {
    EXPECT_EQ(cudaGraphExecDestroy(executable_), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  CapturedRun(const CapturedRun&) = delete;
  CapturedRun& operator=(const CapturedRun&) = delete;

  void replay() {
    EXPECT_EQ(cudaGraphLaunch(executable_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace kvant::attn::test
