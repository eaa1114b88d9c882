#include "core/device_memory.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/large_pages.h"

namespace kvant {
namespace {

Result<void*> allocate_host(int64_t bytes, const char* purpose) {
  void* data = map_large_pages(static_cast<size_t>(bytes));
  if (data != nullptr) return data;
  return failure(StatusCode::kResourceExhausted,
                 fmt::format("cannot reserve {} bytes for {}: {}", bytes, purpose, std::strerror(errno)));
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::create(MemoryKind kind, int64_t bytes, const char* purpose) {
  DeviceBuffer buffer;
  buffer.kind_ = kind;
  if (bytes <= 0) return buffer;
  KVANT_ASSIGN_OR_FAIL(void* data, kind == MemoryKind::kHost ? allocate_host(bytes, purpose)
                                                             : detail::allocate_cuda(kind, bytes, purpose));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (kind_ == MemoryKind::kHost)
    unmap_large_pages(data_, static_cast<size_t>(bytes_));
  else
    detail::free_cuda(kind_, data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : kind_(other.kind_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Status copy_bytes(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes <= 0) return {};
  if (stream.cuda != nullptr) return detail::copy_cuda(to, from, bytes, stream.cuda);
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

Status synchronise(Stream stream) { return stream.cuda == nullptr ? Status() : detail::synchronise_cuda(stream.cuda); }

Result<DeviceBuffer> upload(std::span<const float> values, const char* purpose, Stream stream) {
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  KVANT_ASSIGN_OR_FAIL(DeviceBuffer buffer, DeviceBuffer::create(memory_of(stream), bytes, purpose));
  KVANT_FAIL_IF_ERROR(copy_bytes(buffer.data(), values.data(), bytes, stream));
  // `values` is the caller's and may go at once.
  KVANT_FAIL_IF_ERROR(synchronise(stream));
  return buffer;
}

Result<MirroredBuffer> MirroredBuffer::create(int64_t bytes, Stream stream) {
  MirroredBuffer buffer;
  const bool cuda = stream.cuda != nullptr;
  KVANT_ASSIGN_OR_FAIL(buffer.host_, DeviceBuffer::create(cuda ? MemoryKind::kPinned : MemoryKind::kHost, bytes,
                                                          "the tables of a step"));
  if (cuda) {
    KVANT_ASSIGN_OR_FAIL(buffer.device_, DeviceBuffer::create(MemoryKind::kCuda, bytes, "the tables of a step"));
  }
  return buffer;
}

Status MirroredBuffer::upload(Stream stream, int64_t bytes) const {
  return device_.data() == nullptr || bytes == 0 ? Status() : copy_bytes(device_.data(), host_.data(), bytes, stream);
}

}  // namespace kvant
