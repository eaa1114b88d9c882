#include "engine/loader/safetensors_header.h"

#include "engine/loader/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <set>
#include <utility>

namespace kvant::engine {
namespace {

constexpr size_t kMaxDims = 16;
constexpr size_t kLargestHeader = 100'000'000;  // The format's own limit.
constexpr std::string_view kMetadataKey = "__metadata__";

/// Event handler of the JSON parser. Events that do not belong where they come stop the parse, so that nesting never
/// goes deeper than a tensor's shape and no number but a non-negative integer gets through.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart: return go(State::kRoot);
      case State::kTensorValue: return go(State::kTensor);
      case State::kMetadataValue: return go(State::kMetadata);
      default: return unexpected("an object");
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kRoot: return go(State::kEnd);
      case State::kMetadata: return go(State::kRoot);
      case State::kTensor:
        if (fields_ != kAllFields)
          return refuse(fmt::format("tensor '{}' lacks dtype, shape or data_offsets", printable(entry_.name)));
        if (num_offsets_ != 2)
          return refuse(
              fmt::format("tensor '{}' has {} data_offsets; 2 are needed", printable(entry_.name), num_offsets_));
        header_.entries.push_back(std::exchange(entry_, {}));
        return go(State::kRoot);
      default: return unexpected("the end of an object");
    }
  }

  bool key(std::string& name) override {
    switch (state_) {
      case State::kRoot: return root_key(name);
      case State::kTensor: return tensor_key(name);
      case State::kMetadata:
        metadata_key_ = name;
        if (header_.metadata.contains(name))
          return refuse(fmt::format("the metadata key '{}' occurs twice", printable(name)));
        return go(State::kMetadataText);
      default: return unexpected("a key");
    }
  }

  bool string(std::string& text) override {
    switch (state_) {
      case State::kDtype: entry_.dtype = std::move(text); return go(State::kTensor);
      case State::kMetadataText:
        header_.metadata.emplace(std::move(metadata_key_), std::move(text));
        return go(State::kMetadata);
      default: return unexpected("a string");
    }
  }

  bool start_array(size_t) override {
    switch (state_) {
      case State::kShapeValue: return go(State::kShape);
      case State::kOffsetsValue: return go(State::kOffsets);
      default: return unexpected("an array");
    }
  }

  bool end_array() override {
    return state_ == State::kShape || state_ == State::kOffsets ? go(State::kTensor)
                                                                : unexpected("the end of an array");
  }

  bool number_unsigned(uint64_t value) override {
    switch (state_) {
      case State::kShape:
        if (entry_.shape.size() == kMaxDims)
          return refuse(fmt::format("tensor '{}' has more than {} dimensions", printable(entry_.name), kMaxDims));
        entry_.shape.push_back(value);
        return true;
      case State::kOffsets:
        (num_offsets_ == 0 ? entry_.begin : entry_.end) = value;
        return ++num_offsets_ <= 2 ||
               refuse(fmt::format("tensor '{}' has more than 2 data_offsets", printable(entry_.name)));
      default: return unexpected("a number");
    }
  }

  bool number_integer(int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return unexpected("a number that is not an integer"); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a bool"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return refuse(fmt::format("its header is not JSON at byte {}", position));
  }

  const std::string& error() const { return error_; }
  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class State : uint8_t {
    kStart,
    kRoot,
    kTensorValue,
    kTensor,
    kDtype,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kEnd,
  };
  static constexpr unsigned kDtypeField = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7;

  bool go(State next) {
    state_ = next;
    return true;
  }
  bool refuse(std::string text) {
    if (error_.empty()) error_ = std::move(text);
    return false;
  }
  bool unexpected(std::string_view what) {
    return refuse(entry_.name.empty() ? fmt::format("its header has {} where none belongs", what)
                                      : fmt::format("the record of tensor '{}' has {} where none belongs",
                                                    printable(entry_.name), what));
  }

  bool root_key(const std::string& name) {
    if (!names_.insert(name).second) return refuse(fmt::format("'{}' occurs twice", printable(name)));
    if (name == kMetadataKey) return go(State::kMetadataValue);
    if (name.empty()) return refuse("a tensor's name is empty");
    entry_.name = name;
    fields_ = 0;
    num_offsets_ = 0;
    return go(State::kTensorValue);
  }

  bool tensor_key(const std::string& name) {
    if (name == "dtype") return field(kDtypeField, State::kDtype);
    if (name == "shape") return field(kShapeField, State::kShapeValue);
    if (name == "data_offsets") return field(kOffsetsField, State::kOffsetsValue);
    return refuse(fmt::format("tensor '{}' has the unknown field '{}'", printable(entry_.name), printable(name)));
  }

  bool field(unsigned bit, State next) {
    if ((fields_ & bit) != 0) return refuse(fmt::format("tensor '{}' has a field twice", printable(entry_.name)));
    fields_ |= bit;
    return go(next);
  }

  State state_ = State::kStart;
  SafetensorsHeader header_;
  SafetensorsHeaderEntry entry_;
  unsigned fields_ = 0;
  int num_offsets_ = 0;
  std::string metadata_key_;
  std::set<std::string> names_;
  std::string error_;
};

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text) {
  if (text.size() > kLargestHeader)
    return failure(StatusCode::kDataLoss,
                   fmt::format("its header has {} bytes; at most {} are valid", text.size(), kLargestHeader));
  if (text.empty() || text.front() != '{') return failure(StatusCode::kDataLoss, "its header does not begin with '{'");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader))
    return failure(StatusCode::kDataLoss, reader.error());
  return reader.take();
}

}  // namespace kvant::engine
