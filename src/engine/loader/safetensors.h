#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mmap_file.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Element types of the safetensors format.
enum class SafetensorsType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBf16,
  kF8E4m3,
  kF8E5m2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};
std::string_view to_string(SafetensorsType type);
int64_t element_bytes(SafetensorsType type);

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;  ///< Slowest-varying dimension first; empty for a scalar. A dimension may be 0.
  std::span<const std::byte> data;

  int64_t num_elements() const;
};

/// A safetensors file, mapped read-only and strictly checked: the header is exactly the JSON that the format defines,
/// no name occurs twice, and the tensors cover the data section without gap or overlap.
/// Format: https://huggingface.co/docs/safetensors
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  /// Parses bytes that the caller keeps alive (tests, fuzzing). `name` appears in errors.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  /// In the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  /// Null when there is none of that name.
  const SafetensorsTensor* find_tensor(std::string_view name) const;
  /// Metadata text; the error names the key.
  Result<std::string> get_metadata(std::string_view key) const;
  /// Values of an F32 tensor of exactly this shape; the error names what was found and what was needed.
  Result<std::vector<float>> get_f32(std::string_view name, std::span<const int64_t> shape) const;

 private:
  MmapFile file_;
  std::string name_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

/// Collects small tensors in memory and writes them as one file.
class SafetensorsWriter {
 public:
  void set_metadata(std::string key, std::string value) { metadata_[std::move(key)] = std::move(value); }
  /// `data` holds exactly the elements of `shape`. Names must differ.
  void add(std::string name, SafetensorsType type, std::vector<int64_t> shape, std::span<const std::byte> data);
  void add_f32(std::string name, std::vector<int64_t> shape, std::span<const float> values);

  /// The file's bytes; the same calls give the same bytes. Text that is not UTF-8 is refused.
  Result<std::vector<std::byte>> bytes() const;
  /// Writes a temporary file beside `path` and renames it: readers see the old file or the whole new one.
  Status write(const std::filesystem::path& path) const;

 private:
  struct Record {
    std::string name;
    SafetensorsType type;
    std::vector<int64_t> shape;
    size_t begin;
    size_t end;
  };
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<Record> records_;
  std::vector<std::byte> data_;
};

}  // namespace kvant::engine
