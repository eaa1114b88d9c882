#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/mmap_file.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// Tensor encodings of GGUF that kvant reads. Values are the file format's own (ggml type ids).
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
  kMxfp4 = 39,
};

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  ///< As in the file: fastest-varying dimension first, 1 to 4 of them.
  std::span<const std::byte> data;

  int64_t num_elements() const;
};

/// Metadata value. Integers of every width widen to int64 or uint64; arrays are of one element type.
using GgufArray = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>, std::vector<uint8_t>,
                               std::vector<std::string>>;
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string, GgufArray>;

/// A GGUF v2 or v3 file, mapped read-only. Everything in it has been bounds-checked against the file size by `open`,
/// and decoded metadata takes no more memory than the file's size (64 MiB for smaller files, and then a small
/// multiple). Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
class GgufFile {
 public:
  /// The first file of a split model ("x-00001-of-00003.gguf") brings the others along: their tensors join its own.
  static Result<GgufFile> open(const std::filesystem::path& path);
  /// Parses bytes that the caller keeps alive (tests, fuzzing). `name` appears in errors.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Null when there is none of that name.
  const GgufTensor* find_tensor(std::string_view name) const;

  /// Typed look-ups; the error names the key and, for a wrong type, what was found and what was needed.
  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string> get_string(std::string_view key) const;
  const std::vector<std::string>* find_strings(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;
  Result<std::vector<double>> get_floats(std::string_view key) const;
  bool contains(std::string_view key) const;

 private:
  Status add_parts(const std::filesystem::path& path);

  std::vector<MmapFile> mappings_;  ///< One, or one per part.
  std::string name_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

/// Bytes of `num_elements` (a multiple of the type's block) in an encoding.
int64_t gguf_row_bytes(GgufType type, int64_t num_elements);
std::string_view to_string(GgufType type);

/// Expands rows [row_begin, row_end) of a 1-D or 2-D tensor (shape {columns, rows}) to fp32.
/// `out` holds (row_end - row_begin) * columns values. Row ranges may be expanded in parallel.
void dequantise_rows(const GgufTensor& tensor, int64_t row_begin, int64_t row_end, float* out);

}  // namespace kvant::engine
