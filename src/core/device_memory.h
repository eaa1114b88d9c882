#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant {

enum class MemoryKind : uint8_t {
  kHost,    ///< Ordinary memory whose pages cost nothing until they are written.
  kPinned,  ///< Host memory that the GPU copies from and to without help.
  kCuda,    ///< Memory of the calling thread's current CUDA device.
};

/// Where the data of a stream's calls lies.
inline MemoryKind memory_of(Stream stream) { return stream.cuda != nullptr ? MemoryKind::kCuda : MemoryKind::kHost; }

/// Zeroed memory of one kind. Movable owner; aligned to 256 bytes at least.
class DeviceBuffer {
 public:
  /// kResourceExhausted when there is no room; the text says what for.
  static Result<DeviceBuffer> create(MemoryKind kind, int64_t bytes, const char* purpose);

  DeviceBuffer() = default;
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  MemoryKind kind_ = MemoryKind::kHost;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Copies between memories of any kind. On a CUDA stream the call is asynchronous where host memory is pinned.
Status copy_bytes(void* to, const void* from, int64_t bytes, Stream stream);

/// Returns when all work on the stream is done. Nothing to do on the CPU.
Status synchronise(Stream stream);

/// A buffer of the stream's device that holds `values`.
Result<DeviceBuffer> upload(std::span<const float> values, const char* purpose, Stream stream);

/// A piece of a MirroredBuffer.
template <class T>
struct Mirrored {
  T* host = nullptr;          ///< Written between steps.
  const T* device = nullptr;  ///< Read by the device after `upload`.
  int64_t count = 0;

  std::span<T> span() const { return {host, static_cast<size_t>(count)}; }
};

/// Tables that the host writes and the device reads, sent in one copy per step. On the CPU host and device are one.
class MirroredBuffer {
 public:
  static Result<MirroredBuffer> create(int64_t bytes, Stream stream);
  /// What `carve` takes of the buffer for `count` values.
  template <class T>
  static constexpr int64_t bytes_for(int64_t count) {
    return (count * int64_t{sizeof(T)} + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// The next piece; there must be room.
  template <class T>
  Mirrored<T> carve(int64_t count) {
    KVANT_CHECK(used_ + bytes_for<T>(count) <= host_.bytes());
    const std::byte* device = device_.data() != nullptr ? device_.data() : host_.data();
    const Mirrored<T> piece{.host = reinterpret_cast<T*>(host_.data() + used_),
                            .device = reinterpret_cast<const T*>(device + used_),
                            .count = count};
    used_ += bytes_for<T>(count);
    return piece;
  }

  /// Sends all pieces. The host must not write until the stream has passed the copy.
  Status upload(Stream stream) const { return upload(stream, used_); }
  /// Sends the first `bytes` alone.
  Status upload(Stream stream, int64_t bytes) const;

 private:
  static constexpr int64_t kAlignment = 256;
  DeviceBuffer host_;
  DeviceBuffer device_;  ///< Empty on the CPU.
  int64_t used_ = 0;
};

/// A CUDA stream of its own, which waits for no other.
class CudaStream {
 public:
  static Result<CudaStream> create();
  CudaStream() = default;
  ~CudaStream();
  CudaStream(CudaStream&& other) noexcept;
  CudaStream& operator=(CudaStream&& other) noexcept;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Stream stream() const { return Stream::on_cuda(handle_); }

 private:
  void* handle_ = nullptr;
};

/// Bytes of device memory that are free now; 0 without a device.
int64_t free_cuda_memory();

namespace detail {
// The CUDA side; without CUDA every call fails as unsupported.
Result<void*> allocate_cuda(MemoryKind kind, int64_t bytes, const char* purpose);
void free_cuda(MemoryKind kind, void* data);
Status copy_cuda(void* to, const void* from, int64_t bytes, void* stream);
Status synchronise_cuda(void* stream);
}  // namespace detail

}  // namespace kvant
