#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <kvant/core/device.h>
#include <kvant/core/stream.h>

/// What the example needs of a device: memory, copies, a stream, and a step that is recorded once and repeated.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual kvant::DeviceInfo device() const = 0;
  virtual int num_threads() const = 0;
  virtual kvant::Stream stream() = 0;
  virtual void* allocate(size_t bytes) = 0;  ///< Zeroed; lives as long as the machine.
  virtual void write(void* to, const void* from, size_t bytes) = 0;
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  /// Calls `step` once to record it (on the CPU: remembers it). False when it fails.
  virtual bool record(std::function<bool()> step) = 0;
  /// Runs the recorded step again and waits for it.
  virtual bool repeat() = 0;
};

std::unique_ptr<Machine> open_cpu_machine();
/// Null in a build without CUDA and on a machine without a device.
std::unique_ptr<Machine> open_cuda_machine();
