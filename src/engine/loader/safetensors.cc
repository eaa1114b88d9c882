#include "engine/loader/safetensors.h"

#include "engine/loader/printable.h"
#include "engine/loader/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace kvant::engine {
namespace {

struct TypeInfo {
  SafetensorsType type;
  std::string_view name;
  int64_t bytes;
};

constexpr TypeInfo kTypes[] = {
    {SafetensorsType::kF64, "F64", 8},        {SafetensorsType::kF32, "F32", 4},
    {SafetensorsType::kF16, "F16", 2},        {SafetensorsType::kBf16, "BF16", 2},
    {SafetensorsType::kF8E4m3, "F8_E4M3", 1}, {SafetensorsType::kF8E5m2, "F8_E5M2", 1},
    {SafetensorsType::kI64, "I64", 8},        {SafetensorsType::kI32, "I32", 4},
    {SafetensorsType::kI16, "I16", 2},        {SafetensorsType::kI8, "I8", 1},
    {SafetensorsType::kU64, "U64", 8},        {SafetensorsType::kU32, "U32", 4},
    {SafetensorsType::kU16, "U16", 2},        {SafetensorsType::kU8, "U8", 1},
    {SafetensorsType::kBool, "BOOL", 1},
};

constexpr size_t kLengthBytes = sizeof(uint64_t);

const TypeInfo* find_type(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeInfo& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

Status bad(std::string_view name, std::string text) {
  return {StatusCode::kDataLoss, fmt::format("'{}' is not a valid safetensors file: {}", name, text)};
}

/// Bytes that a shape takes, or an error when they exceed `room`.
Result<uint64_t> shape_bytes(const SafetensorsHeaderEntry& entry, uint64_t element_size, uint64_t room) {
  if (std::find(entry.shape.begin(), entry.shape.end(), 0u) != entry.shape.end()) return 0;
  uint64_t size_bytes = element_size;
  for (const uint64_t dim : entry.shape) {
    if (dim > room / size_bytes)
      return failure(StatusCode::kDataLoss, fmt::format("tensor '{}' of shape [{}] is larger than the data",
                                                        printable(entry.name), fmt::join(entry.shape, ", ")));
    size_bytes *= dim;
  }
  return size_bytes;
}

}  // namespace

std::string_view to_string(SafetensorsType type) { return kTypes[static_cast<int>(type)].name; }
int64_t element_bytes(SafetensorsType type) { return kTypes[static_cast<int>(type)].bytes; }

int64_t SafetensorsTensor::num_elements() const { return static_cast<int64_t>(data.size()) / element_bytes(type); }

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  KVANT_ASSIGN_OR_FAIL(MmapFile mapping, MmapFile::open(path));
  KVANT_ASSIGN_OR_FAIL(SafetensorsFile file, parse(mapping.bytes(), path.string()));
  file.file_ = std::move(mapping);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  static_assert(std::endian::native == std::endian::little, "the header length is read in place");
  SafetensorsFile file;
  file.name_ = std::move(name);
  const auto fail = [&](std::string text) { return failure(bad(file.name_, std::move(text))); };
  if (bytes.size() < kLengthBytes) return fail(fmt::format("it has only {} bytes", bytes.size()));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > bytes.size() - kLengthBytes)
    return fail(fmt::format("a header of {} bytes does not fit in its {}; is the download complete?", header_bytes,
                            bytes.size()));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  auto header = parse_safetensors_header(text);
  if (!header) return fail(header.error().message());
  file.metadata_ = std::move(header->metadata);

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  std::vector<SafetensorsHeaderEntry>& entries = header->entries;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t position = 0;
  for (SafetensorsHeaderEntry& entry : entries) {
    const std::string shown = printable(entry.name);
    const TypeInfo* type = find_type(entry.dtype);
    if (type == nullptr)
      return failure(StatusCode::kUnsupported,
                     fmt::format("'{}': tensor '{}' has the dtype '{}', which kvant does not read", file.name_, shown,
                                 printable(entry.dtype)));
    if (entry.begin != position || entry.end < entry.begin || entry.end > data.size())
      return fail(fmt::format("tensor '{}' lies at bytes {} to {} of {}; it should begin at {}", shown, entry.begin,
                              entry.end, data.size(), position));
    const auto size_bytes = shape_bytes(entry, static_cast<uint64_t>(type->bytes), data.size());
    if (!size_bytes) return fail(size_bytes.error().message());
    if (*size_bytes != entry.end - entry.begin)
      return fail(fmt::format("tensor '{}' of shape [{}] and dtype {} needs {} bytes but has {}", shown,
                              fmt::join(entry.shape, ", "), type->name, *size_bytes, entry.end - entry.begin));
    position = entry.end;
    file.tensor_index_.emplace(entry.name, file.tensors_.size());
    file.tensors_.push_back({.name = std::move(entry.name),
                             .type = type->type,
                             .shape = {entry.shape.begin(), entry.shape.end()},
                             .data = data.subspan(entry.begin, *size_bytes)});
  }
  if (position != data.size())
    return fail(fmt::format("its tensors end at byte {} of {} bytes of data", position, data.size()));
  return file;
}

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<std::string> SafetensorsFile::get_metadata(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end())
    return failure(StatusCode::kNotFound, fmt::format("'{}' has no metadata key '{}'", name_, key));
  return found->second;
}

Result<std::vector<float>> SafetensorsFile::get_f32(std::string_view name, std::span<const int64_t> shape) const {
  const SafetensorsTensor* tensor = find_tensor(name);
  if (tensor == nullptr) return failure(StatusCode::kNotFound, fmt::format("'{}' has no tensor '{}'", name_, name));
  if (tensor->type != SafetensorsType::kF32 ||
      !std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end()))
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("'{}': tensor '{}' is {} [{}]; F32 [{}] is needed", name_, name, to_string(tensor->type),
                               fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
  std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

}  // namespace kvant::engine
