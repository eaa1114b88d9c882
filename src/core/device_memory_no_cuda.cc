#include "core/device_memory.h"

namespace kvant {
namespace {

Status unsupported() {
  return {StatusCode::kUnsupported, "this build has no CUDA; use the CPU, or build the preset cuda-sm90"};
}

}  // namespace

namespace detail {

Result<void*> allocate_cuda(MemoryKind, int64_t, const char*) { return failure(unsupported()); }
void free_cuda(MemoryKind, void*) {}
Status copy_cuda(void*, const void*, int64_t, void*) { return unsupported(); }
Status synchronise_cuda(void*) { return unsupported(); }

}  // namespace detail

// No stream is ever made here.
Result<CudaStream> CudaStream::create() { return failure(unsupported()); }
CudaStream::~CudaStream() = default;
CudaStream::CudaStream(CudaStream&&) noexcept = default;
CudaStream& CudaStream::operator=(CudaStream&&) noexcept = default;

int64_t free_cuda_memory() { return 0; }

}  // namespace kvant
