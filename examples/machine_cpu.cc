#include <cstring>
#include <utility>
#include <vector>

#include <kvant/core/thread_pool.h>

#include "machine.h"

namespace {

class CpuMachine final : public Machine {
 public:
  kvant::DeviceInfo device() const override { return kvant::cpu_device(); }
  int num_threads() const override { return kThreads; }
  kvant::Stream stream() override { return kvant::Stream::on_cpu(pool_); }
  void* allocate(size_t bytes) override {
    // operator new aligns for any type; tensors here need no more.
    return memory_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  }
  void write(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  bool record(std::function<bool()> step) override {
    step_ = std::move(step);
    return true;
  }
  bool repeat() override { return step_(); }

 private:
  static constexpr int kThreads = 2;
  kvant::ThreadPool pool_{kThreads};
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::function<bool()> step_;
};

}  // namespace

std::unique_ptr<Machine> open_cpu_machine() { return std::make_unique<CpuMachine>(); }
