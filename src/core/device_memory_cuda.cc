#include <utility>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/cuda_status.h"
#include "core/device_memory.h"

namespace kvant {
namespace detail {

Result<void*> allocate_cuda(MemoryKind kind, int64_t bytes, const char* purpose) {
  const auto size = static_cast<size_t>(bytes);
  void* data = nullptr;
  const cudaError_t error = kind == MemoryKind::kPinned ? cudaMallocHost(&data, size) : cudaMalloc(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("{} bytes of {} memory are needed for {}; the device has {} free", bytes,
                               kind == MemoryKind::kPinned ? "pinned host" : "GPU", purpose, free_cuda_memory()));
  }
  KVANT_FAIL_IF_ERROR(cuda_status(error, kind == MemoryKind::kPinned ? "cudaMallocHost" : "cudaMalloc"));
  Status status = cuda_status(cudaMemset(data, 0, size), "cudaMemset");
  // Streams that wait for no other start after the fill.
  if (status.ok()) status = cuda_status(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  if (status.ok()) return data;
  free_cuda(kind, data);
  return failure(std::move(status));
}

void free_cuda(MemoryKind kind, void* data) {
  static_cast<void>(kind == MemoryKind::kPinned ? cudaFreeHost(data) : cudaFree(data));
}

Status copy_cuda(void* to, const void* from, int64_t bytes, void* stream) {
  return cuda_status(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
      "cudaMemcpyAsync");
}

Status synchronise_cuda(void* stream) {
  return cuda_status(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}

}  // namespace detail

Result<CudaStream> CudaStream::create() {
  cudaStream_t handle = nullptr;
  KVANT_FAIL_IF_ERROR(
      cuda_status(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  CudaStream stream;
  stream.handle_ = handle;
  return stream;
}

CudaStream::~CudaStream() {
  if (handle_ != nullptr) static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(handle_)));
}

CudaStream::CudaStream(CudaStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

int64_t free_cuda_memory() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) return static_cast<int64_t>(free);
  static_cast<void>(cudaGetLastError());
  return 0;
}

}  // namespace kvant
