#include "engine/loader/gguf.h"

#include "engine/loader/gguf_types.h"
#include "engine/loader/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace kvant::engine {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kLargestAlignment = 1 << 20;
constexpr uint32_t kMaxDims = 4;
constexpr size_t kLongestKey = 65535;
// The smallest encodings of one metadata entry (key of one byte, one-byte value) and of one tensor record.
constexpr uint64_t kSmallestEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kSmallestTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
// Decoded metadata is larger than its bytes in the file (a string of length 0 takes 8 there and 32 here). It may use
// the file's own size, or this much when the file is small.
constexpr size_t kSmallFileBudget = size_t{64} << 20;
// What a map node, a tensor record and its index entry cost besides their text.
constexpr size_t kEntryCost = 128;
constexpr size_t kTensorCost = 256;

enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// Parser of one file image. Every read is checked against what is left; `what` names the thing being read.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name), budget_(std::max(bytes.size(), kSmallFileBudget)) {}

  struct Header {
    uint64_t num_tensors = 0;
    uint64_t num_entries = 0;
  };

  Result<Header> read_header() {
    KVANT_ASSIGN_OR_FAIL(const uint32_t magic, read<uint32_t>("the magic number"));
    if (magic != kMagic) return failure(bad("it does not start with 'GGUF'; a GGUF model file is needed"));
    KVANT_ASSIGN_OR_FAIL(const uint32_t version, read<uint32_t>("the version"));
    if ((version & 0xffffu) == 0 && version != 0)
      return failure(StatusCode::kUnsupported,
                     fmt::format("'{}' is a big-endian GGUF file; a little-endian one is needed", name_));
    if (version != 2 && version != 3)
      return failure(StatusCode::kUnsupported,
                     fmt::format("'{}' is GGUF version {}; kvant reads versions 2 and 3", name_, version));
    Header header;
    KVANT_ASSIGN_OR_FAIL(header.num_tensors, read<uint64_t>("the tensor count"));
    KVANT_ASSIGN_OR_FAIL(header.num_entries, read<uint64_t>("the metadata count"));
    if (header.num_entries > remaining() / kSmallestEntryBytes)
      return failure(bad(fmt::format("{} metadata entries cannot fit in it", header.num_entries)));
    if (header.num_tensors > remaining() / kSmallestTensorBytes)
      return failure(bad(fmt::format("{} tensors cannot fit in it", header.num_tensors)));
    return header;
  }

  Result<std::pair<std::string, GgufValue>> read_entry() {
    KVANT_ASSIGN_OR_FAIL(const std::string_view key, read_text("a metadata key"));
    if (key.empty()) return failure(bad("a metadata key is empty"));
    if (key.size() > kLongestKey) return failure(bad(fmt::format("a metadata key has {} bytes", key.size())));
    KVANT_FAIL_IF_ERROR(spend(key.size() + kEntryCost));
    what_ = key;
    KVANT_ASSIGN_OR_FAIL(const uint32_t type, read<uint32_t>("a value type"));
    KVANT_ASSIGN_OR_FAIL(GgufValue value, read_value(type));
    return std::pair(std::string(key), std::move(value));
  }

  struct TensorRecord {
    GgufTensor tensor;
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };

  Result<TensorRecord> read_tensor() {
    TensorRecord record;
    KVANT_ASSIGN_OR_FAIL(const std::string_view name, read_text("a tensor name"));
    if (name.empty()) return failure(bad("a tensor name is empty"));
    KVANT_FAIL_IF_ERROR(spend(2 * name.size() + kTensorCost));
    const std::string shown = printable(name);
    KVANT_ASSIGN_OR_FAIL(const uint32_t num_dims, read<uint32_t>("a tensor's dimension count"));
    if (num_dims < 1 || num_dims > kMaxDims)
      return failure(bad(fmt::format("tensor '{}' has {} dimensions; 1 to {} are valid", shown, num_dims, kMaxDims)));
    uint64_t num_elements = 1;
    for (uint32_t i = 0; i < num_dims; ++i) {
      KVANT_ASSIGN_OR_FAIL(const uint64_t dim, read<uint64_t>("a tensor's dimensions"));
      if (dim == 0) return failure(bad(fmt::format("dimension {} of tensor '{}' is 0", i, shown)));
      // No encoding packs more than eight elements into a byte.
      if (dim > 8 * bytes_.size() / num_elements)
        return failure(
            bad(fmt::format("dimension {} of tensor '{}' is {}: more than the file can hold", i, shown, dim)));
      num_elements *= dim;
      record.tensor.shape.push_back(static_cast<int64_t>(dim));
    }
    KVANT_ASSIGN_OR_FAIL(const uint32_t type, read<uint32_t>("a tensor's type"));
    const GgufTypeInfo* info = find_gguf_type(type);
    if (info == nullptr)
      return failure(StatusCode::kUnsupported, fmt::format("'{}': tensor '{}' is {}; kvant reads {}", name_, shown,
                                                           describe_gguf_type(type), supported_gguf_types()));
    if (record.tensor.shape[0] % info->block_elements != 0)
      return failure(bad(fmt::format("tensor '{}' has rows of {} elements; {} needs a multiple of {}", shown,
                                     record.tensor.shape[0], info->name, info->block_elements)));
    KVANT_ASSIGN_OR_FAIL(record.offset, read<uint64_t>("a tensor's offset"));
    record.tensor.name = name;
    record.tensor.type = info->type;
    record.size_bytes =
        num_elements / static_cast<uint64_t>(info->block_elements) * static_cast<uint64_t>(info->block_bytes);
    return record;
  }

  /// Points a tensor at its bytes behind the records, which end where the cursor is.
  Status place(TensorRecord& record, uint64_t alignment) const {
    const std::string shown = printable(record.tensor.name);
    if (record.offset % alignment != 0)
      return bad(fmt::format("tensor '{}' is at offset {}, which is no multiple of the alignment {}", shown,
                             record.offset, alignment));
    const uint64_t begin = (position_ + alignment - 1) / alignment * alignment;
    const uint64_t room = bytes_.size() > begin ? bytes_.size() - begin : 0;
    if (record.offset > room || record.size_bytes > room - record.offset)
      return bad(
          fmt::format("tensor '{}' needs {} bytes at offset {} of the data, which has {}; is the download complete?",
                      shown, record.size_bytes, record.offset, room));
    record.tensor.data = bytes_.subspan(begin + record.offset, record.size_bytes);
    return {};
  }

  Status bad(std::string text) const {
    return {StatusCode::kDataLoss, fmt::format("'{}' is not a valid GGUF file: {}", name_, text)};
  }

 private:
  size_t remaining() const { return bytes_.size() - position_; }

  Status spend(size_t size_bytes) {
    if (size_bytes > budget_)
      return {StatusCode::kResourceExhausted,
              fmt::format("'{}': its metadata would take more memory than the file's {} bytes", name_, bytes_.size())};
    budget_ -= size_bytes;
    return {};
  }

  Status ends_inside(std::string_view what) const {
    return bad(fmt::format("it ends inside {} at byte {}; is the download complete?", what, bytes_.size()));
  }

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  template <class T>
  Result<T> read(std::string_view what) {
    if (remaining() < sizeof(T)) return failure(ends_inside(what));
    return take<T>();
  }

  Result<std::string_view> read_text(std::string_view what) {
    KVANT_ASSIGN_OR_FAIL(const uint64_t length, read<uint64_t>(what));
    if (length > remaining())
      return failure(
          bad(fmt::format("{} of {} bytes does not fit in the {} that are left", what, length, remaining())));
    const auto* begin = reinterpret_cast<const char*>(bytes_.data() + position_);
    position_ += length;
    return std::string_view(begin, length);
  }

  template <class T, class Wide>
  Result<GgufValue> read_scalar() {
    KVANT_ASSIGN_OR_FAIL(const T value, read<T>("a value"));
    return GgufValue(static_cast<Wide>(value));
  }

  Result<GgufValue> read_value(uint32_t type) {
    switch (static_cast<ValueType>(type)) {
      case ValueType::kU8: return read_scalar<uint8_t, uint64_t>();
      case ValueType::kI8: return read_scalar<int8_t, int64_t>();
      case ValueType::kU16: return read_scalar<uint16_t, uint64_t>();
      case ValueType::kI16: return read_scalar<int16_t, int64_t>();
      case ValueType::kU32: return read_scalar<uint32_t, uint64_t>();
      case ValueType::kI32: return read_scalar<int32_t, int64_t>();
      case ValueType::kF32: return read_scalar<float, double>();
      case ValueType::kU64: return read_scalar<uint64_t, uint64_t>();
      case ValueType::kI64: return read_scalar<int64_t, int64_t>();
      case ValueType::kF64: return read_scalar<double, double>();
      case ValueType::kBool: {
        KVANT_ASSIGN_OR_FAIL(const uint8_t value, read<uint8_t>("a value"));
        if (value > 1) return failure(bad(fmt::format("'{}' is a bool of value {}", printable(what_), value)));
        return GgufValue(value == 1);
      }
      case ValueType::kString: {
        KVANT_ASSIGN_OR_FAIL(const std::string_view text, read_text("a string"));
        KVANT_FAIL_IF_ERROR(spend(text.size()));
        return GgufValue(std::string(text));
      }
      case ValueType::kArray: {
        KVANT_ASSIGN_OR_FAIL(const uint32_t element_type, read<uint32_t>("an array's type"));
        KVANT_ASSIGN_OR_FAIL(const uint64_t count, read<uint64_t>("an array's length"));
        KVANT_ASSIGN_OR_FAIL(GgufArray array, read_array(element_type, count));
        return GgufValue(std::move(array));
      }
    }
    return failure(bad(fmt::format("'{}' has the unknown value type {}", printable(what_), type)));
  }

  template <class T, class Wide>
  Result<GgufArray> read_numbers(uint64_t count) {
    if (count > remaining() / sizeof(T)) return failure(array_too_long(count));
    KVANT_FAIL_IF_ERROR(spend(count * sizeof(Wide)));
    std::vector<Wide> values(count);
    for (Wide& value : values) value = static_cast<Wide>(take<T>());
    return GgufArray(std::move(values));
  }

  Result<GgufArray> read_strings(uint64_t count) {
    if (count > remaining() / sizeof(uint64_t)) return failure(array_too_long(count));
    KVANT_FAIL_IF_ERROR(spend(count * sizeof(std::string)));
    std::vector<std::string> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      KVANT_ASSIGN_OR_FAIL(const std::string_view text, read_text("a string of an array"));
      KVANT_FAIL_IF_ERROR(spend(text.size()));
      values.emplace_back(text);
    }
    return GgufArray(std::move(values));
  }

  Result<GgufArray> read_array(uint32_t type, uint64_t count) {
    switch (static_cast<ValueType>(type)) {
      case ValueType::kU8:
      case ValueType::kBool: return read_numbers<uint8_t, uint8_t>(count);
      case ValueType::kI8: return read_numbers<int8_t, int64_t>(count);
      case ValueType::kU16: return read_numbers<uint16_t, uint64_t>(count);
      case ValueType::kI16: return read_numbers<int16_t, int64_t>(count);
      case ValueType::kU32: return read_numbers<uint32_t, uint64_t>(count);
      case ValueType::kI32: return read_numbers<int32_t, int64_t>(count);
      case ValueType::kF32: return read_numbers<float, double>(count);
      case ValueType::kU64: return read_numbers<uint64_t, uint64_t>(count);
      case ValueType::kI64: return read_numbers<int64_t, int64_t>(count);
      case ValueType::kF64: return read_numbers<double, double>(count);
      case ValueType::kString: return read_strings(count);
      case ValueType::kArray:
        return failure(
            StatusCode::kUnsupported,
            fmt::format("'{}': '{}' is an array of arrays, which kvant does not read", name_, printable(what_)));
    }
    return failure(bad(fmt::format("'{}' is an array of the unknown value type {}", printable(what_), type)));
  }

  Status array_too_long(uint64_t count) const {
    return bad(fmt::format("array '{}' of {} elements does not fit in the {} bytes that are left", printable(what_),
                           count, remaining()));
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t position_ = 0;
  size_t budget_;
  std::string_view what_;  // key of the value being read
};

}  // namespace

int64_t GgufTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  KVANT_ASSIGN_OR_FAIL(MmapFile mapping, MmapFile::open(path));
  const std::span<const std::byte> bytes = mapping.bytes();
  KVANT_ASSIGN_OR_FAIL(GgufFile file, parse(bytes, path.string()));
  file.mappings_.push_back(std::move(mapping));
  KVANT_FAIL_IF_ERROR(file.add_parts(path));
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  static_assert(std::endian::native == std::endian::little, "multi-byte fields are read in place");
  GgufFile file;
  file.name_ = std::move(name);
  Parser parser(bytes, file.name_);
  KVANT_ASSIGN_OR_FAIL(const Parser::Header header, parser.read_header());
  for (uint64_t i = 0; i < header.num_entries; ++i) {
    KVANT_ASSIGN_OR_FAIL(auto entry, parser.read_entry());
    const auto [position, inserted] = file.metadata_.emplace(std::move(entry));
    if (!inserted) return failure(parser.bad(fmt::format("the key '{}' occurs twice", printable(position->first))));
  }

  int64_t alignment = kDefaultAlignment;
  if (file.contains("general.alignment")) {
    KVANT_ASSIGN_OR_FAIL(alignment, file.get_int("general.alignment"));
    if (alignment < 8 || alignment > kLargestAlignment || !std::has_single_bit(static_cast<uint64_t>(alignment)))
      return failure(parser.bad(
          fmt::format("general.alignment is {}; a power of two from 8 to {} is needed", alignment, kLargestAlignment)));
  }

  std::vector<Parser::TensorRecord> records;
  for (uint64_t i = 0; i < header.num_tensors; ++i) {
    KVANT_ASSIGN_OR_FAIL(Parser::TensorRecord record, parser.read_tensor());
    if (!file.tensor_index_.emplace(record.tensor.name, i).second)
      return failure(parser.bad(fmt::format("the tensor '{}' occurs twice", printable(record.tensor.name))));
    records.push_back(std::move(record));
  }
  file.tensors_.reserve(records.size());
  for (Parser::TensorRecord& record : records) {
    KVANT_FAIL_IF_ERROR(parser.place(record, static_cast<uint64_t>(alignment)));
    file.tensors_.push_back(std::move(record.tensor));
  }
  return file;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace kvant::engine
