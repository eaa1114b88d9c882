#include <vector>

#include <cuda_runtime_api.h>

#include "machine.h"

namespace {

/// Device 0 and one graph. A failed call shows in the next step's result; a real engine looks at every one.
class CudaMachine final : public Machine {
 public:
  CudaMachine() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~CudaMachine() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    for (void* data : memory_) cudaFree(data);
    cudaStreamDestroy(stream_);
  }
  CudaMachine(const CudaMachine&) = delete;
  CudaMachine& operator=(const CudaMachine&) = delete;

  kvant::DeviceInfo device() const override { return kvant::cuda_devices().front(); }
  int num_threads() const override { return 1; }
  kvant::Stream stream() override { return kvant::Stream::on_cuda(stream_); }
  void* allocate(size_t bytes) override {
    void* data = nullptr;
    cudaMalloc(&data, bytes);
    cudaMemsetAsync(data, 0, bytes, stream_);
    memory_.push_back(data);
    return data;
  }
  void write(void* to, const void* from, size_t bytes) override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_);
    cudaStreamSynchronize(stream_);
  }
  void read(void* to, const void* from, size_t bytes) override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
  }
  bool record(std::function<bool()> step) override {
    cudaGraph_t graph = nullptr;
    if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal) != cudaSuccess) return false;
    const bool recorded = step();
    if (cudaStreamEndCapture(stream_, &graph) != cudaSuccess || !recorded) return false;
    const bool made = cudaGraphInstantiate(&executable_, graph, 0) == cudaSuccess;
    cudaGraphDestroy(graph);
    return made;
  }
  bool repeat() override {
    return cudaGraphLaunch(executable_, stream_) == cudaSuccess && cudaStreamSynchronize(stream_) == cudaSuccess;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace

std::unique_ptr<Machine> open_cuda_machine() {
  if (kvant::cuda_devices().empty()) return nullptr;
  return std::make_unique<CudaMachine>();
}
