#include "core/cuda_graph.h"

namespace kvant {
namespace {

Status unsupported() {
  return {StatusCode::kUnsupported, "this build has no CUDA; use the CPU, or build the preset cuda-sm90"};
}

}  // namespace

Status CudaGraph::begin(Stream) { return unsupported(); }
Result<CudaGraph> CudaGraph::finish(Stream) { return failure(unsupported()); }
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;
Status CudaGraph::launch(Stream) const { return executable_ == nullptr ? unsupported() : Status(); }

}  // namespace kvant
