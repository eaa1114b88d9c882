#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "kvant/core/status.h"

namespace kvant {

/// A read-only mapping of a whole regular file; movable owner of the mapping.
class MmapFile {
 public:
  static Result<MmapFile> open(const std::filesystem::path& path);

  MmapFile() = default;
  ~MmapFile();
  MmapFile(MmapFile&& other) noexcept;
  MmapFile& operator=(MmapFile&& other) noexcept;
  MmapFile(const MmapFile&) = delete;
  MmapFile& operator=(const MmapFile&) = delete;

  /// Valid while this object lives.
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvant
