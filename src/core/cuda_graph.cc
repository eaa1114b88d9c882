#include "core/cuda_graph.h"

#include <algorithm>
#include <utility>

#include <cuda_runtime_api.h>

#include "core/cuda_status.h"
#include "core/device_memory.h"

namespace kvant {

Status CudaGraph::begin(Stream stream) {
  return cuda_status(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream.cuda), cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
}

Result<CudaGraph> CudaGraph::finish(Stream stream) {
  cudaGraph_t captured = nullptr;
  KVANT_FAIL_IF_ERROR(
      cuda_status(cudaStreamEndCapture(static_cast<cudaStream_t>(stream.cuda), &captured), "cudaStreamEndCapture"));
  const int64_t free_before = free_cuda_memory();
  cudaGraphExec_t executable = nullptr;
  const Status status =
      cuda_status(cudaGraphInstantiateWithFlags(&executable, captured, 0), "cudaGraphInstantiateWithFlags");
  static_cast<void>(cudaGraphDestroy(captured));
  KVANT_FAIL_IF_ERROR(status);
  CudaGraph graph;
  graph.executable_ = executable;
  graph.bytes_ = std::max<int64_t>(0, free_before - free_cuda_memory());
  return graph;
}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
}

CudaGraph::CudaGraph(CudaGraph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept {
  std::swap(executable_, other.executable_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Status CudaGraph::launch(Stream stream) const {
  return cuda_status(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), static_cast<cudaStream_t>(stream.cuda)),
                     "cudaGraphLaunch");
}

}  // namespace kvant
