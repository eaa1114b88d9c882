#include "support/alloc_guard.h"

#include <cstdlib>
#include <new>

#include <cuda_runtime_api.h>

// The linker sends every call of these to __wrap_*: see tests/CMakeLists.txt.
namespace kvant::test {
namespace {

struct Counts {
  bool watching = false;
  int64_t host_allocations = 0;
  int64_t cuda_calls = 0;
};
thread_local Counts counts;

void count_cuda_call() {
  if (counts.watching) ++counts.cuda_calls;
}

}  // namespace

AllocGuard::AllocGuard() { counts = {.watching = true}; }
AllocGuard::~AllocGuard() { counts.watching = false; }
int64_t AllocGuard::host_allocations() const { return counts.host_allocations; }
int64_t AllocGuard::cuda_calls() const { return counts.cuda_calls; }

}  // namespace kvant::test

void* operator new(size_t size) {
  using kvant::test::counts;
  if (counts.watching) ++counts.host_allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

extern "C" {

cudaError_t __real_cudaMalloc(void** data, size_t size);
cudaError_t __wrap_cudaMalloc(void** data, size_t size) {
  kvant::test::count_cuda_call();
  return __real_cudaMalloc(data, size);
}
cudaError_t __real_cudaFree(void* data);
cudaError_t __wrap_cudaFree(void* data) {
  kvant::test::count_cuda_call();
  return __real_cudaFree(data);
}
cudaError_t __real_cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind);
cudaError_t __wrap_cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  kvant::test::count_cuda_call();
  return __real_cudaMemcpy(to, from, size, kind);
}
cudaError_t __real_cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  kvant::test::count_cuda_call();
  return __real_cudaMemcpyAsync(to, from, size, kind, stream);
}
cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __wrap_cudaDeviceSynchronize() {
  kvant::test::count_cuda_call();
  return __real_cudaDeviceSynchronize();
}
cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  kvant::test::count_cuda_call();
  return __real_cudaStreamSynchronize(stream);
}
cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  kvant::test::count_cuda_call();
  return __real_cudaEventSynchronize(event);
}

}  // extern "C"
