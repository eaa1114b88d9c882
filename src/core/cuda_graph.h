#pragma once

#include <cstdint>

#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant {

/// Calls captured from a CUDA stream, launched again as one. What they point to must stay where it is.
class CudaGraph {
 public:
  /// Calls on the stream from here to `finish` are recorded instead of run.
  static Status begin(Stream stream);
  /// Ends the capture, also after a call in it has failed.
  static Result<CudaGraph> finish(Stream stream);

  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&& other) noexcept;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  Status launch(Stream stream) const;
  /// Device memory that the graph took, as far as the driver's free memory shows it.
  int64_t bytes() const { return bytes_; }

 private:
  void* executable_ = nullptr;  // cudaGraphExec_t
  int64_t bytes_ = 0;
};

}  // namespace kvant
