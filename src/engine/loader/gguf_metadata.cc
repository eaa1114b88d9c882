#include "engine/loader/gguf.h"

#include <fmt/format.h>

#include <limits>

namespace kvant::engine {
namespace {

constexpr auto kLargestInt = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

std::string_view kind(const GgufValue& value) {
  struct Visitor {
    std::string_view operator()(int64_t) const { return "an integer"; }
    std::string_view operator()(uint64_t) const { return "an unsigned integer"; }
    std::string_view operator()(double) const { return "a float"; }
    std::string_view operator()(bool) const { return "a bool"; }
    std::string_view operator()(const std::string&) const { return "a string"; }
    std::string_view operator()(const GgufArray& array) const {
      switch (array.index()) {
        case 2: return "an array of floats";
        case 4: return "an array of strings";
        default: return "an array of integers";
      }
    }
  };
  return std::visit(Visitor{}, value);
}

}  // namespace

bool GgufFile::contains(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }

namespace {

Result<const GgufValue*> find(const GgufFile& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    return failure(StatusCode::kNotFound, fmt::format("'{}' has no metadata key '{}'", file.name(), key));
  return &found->second;
}

tl::unexpected<Status> wrong_type(const GgufFile& file, std::string_view key, const GgufValue& value,
                                  std::string_view needed) {
  return failure(StatusCode::kInvalidArgument,
                 fmt::format("'{}': metadata key '{}' is {}; {} is needed", file.name(), key, kind(value), needed));
}

tl::unexpected<Status> out_of_range(const GgufFile& file, std::string_view key, uint64_t value) {
  return failure(StatusCode::kInvalidArgument, fmt::format("'{}': metadata key '{}' is {}; at most {} is supported",
                                                           file.name(), key, value, kLargestInt));
}

template <class T>
Result<T> get_exactly(const GgufFile& file, std::string_view key, std::string_view needed) {
  KVANT_ASSIGN_OR_FAIL(const GgufValue* value, find(file, key));
  if (const T* found = std::get_if<T>(value)) return *found;
  return wrong_type(file, key, *value, needed);
}

}  // namespace

Result<int64_t> GgufFile::get_int(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const GgufValue* value, find(*this, key));
  if (const auto* found = std::get_if<int64_t>(value)) return *found;
  const auto* found = std::get_if<uint64_t>(value);
  if (found == nullptr) return wrong_type(*this, key, *value, "an integer");
  if (*found > kLargestInt) return out_of_range(*this, key, *found);
  return static_cast<int64_t>(*found);
}

Result<double> GgufFile::get_float(std::string_view key) const { return get_exactly<double>(*this, key, "a float"); }
Result<bool> GgufFile::get_bool(std::string_view key) const { return get_exactly<bool>(*this, key, "a bool"); }
Result<std::string> GgufFile::get_string(std::string_view key) const {
  return get_exactly<std::string>(*this, key, "a string");
}

const std::vector<std::string>* GgufFile::find_strings(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return nullptr;
  const auto* array = std::get_if<GgufArray>(&found->second);
  return array == nullptr ? nullptr : std::get_if<std::vector<std::string>>(array);
}

Result<std::vector<int64_t>> GgufFile::get_ints(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const GgufValue* value, find(*this, key));
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr) return wrong_type(*this, key, *value, "an array of integers");
  if (const auto* found = std::get_if<std::vector<int64_t>>(array)) return *found;
  if (const auto* found = std::get_if<std::vector<uint8_t>>(array))
    return std::vector<int64_t>(found->begin(), found->end());
  const auto* found = std::get_if<std::vector<uint64_t>>(array);
  if (found == nullptr) return wrong_type(*this, key, *value, "an array of integers");
  std::vector<int64_t> values;
  values.reserve(found->size());
  for (const uint64_t element : *found) {
    if (element > kLargestInt) return out_of_range(*this, key, element);
    values.push_back(static_cast<int64_t>(element));
  }
  return values;
}

Result<std::vector<double>> GgufFile::get_floats(std::string_view key) const {
  KVANT_ASSIGN_OR_FAIL(const GgufValue* value, find(*this, key));
  if (const auto* array = std::get_if<GgufArray>(value))
    if (const auto* found = std::get_if<std::vector<double>>(array)) return *found;
  return wrong_type(*this, key, *value, "an array of floats");
}

}  // namespace kvant::engine
