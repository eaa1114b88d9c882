#include "core/mmap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace kvant {

Result<MmapFile> MmapFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
    return failure(code, fmt::format("cannot open '{}': {}", path.string(), std::strerror(errno)));
  }
  struct stat info {};
  MmapFile file;
  Status status;
  if (::fstat(descriptor, &info) != 0) {
    status = {StatusCode::kInvalidArgument, fmt::format("cannot stat '{}': {}", path.string(), std::strerror(errno))};
  } else if (!S_ISREG(info.st_mode)) {
    status = {StatusCode::kInvalidArgument, fmt::format("'{}' is not a regular file", path.string())};
  } else if (info.st_size > 0) {
    void* data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) {
      status = {StatusCode::kResourceExhausted,
                fmt::format("cannot map '{}': {}", path.string(), std::strerror(errno))};
    } else {
      file.data_ = data;
      file.size_ = static_cast<size_t>(info.st_size);
    }
  }
  ::close(descriptor);
  if (!status.ok()) return failure(std::move(status));
  return file;
}

MmapFile::~MmapFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MmapFile::MmapFile(MmapFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MmapFile& MmapFile::operator=(MmapFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace kvant
