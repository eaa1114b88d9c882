#include "engine/loader/safetensors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvant::engine {
namespace {

// Puts the data, and with it every 64-bit element, at a multiple of 8 in the file.
constexpr size_t kHeaderAlignment = 8;

void append(std::vector<std::byte>& out, const void* data, size_t size_bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  out.insert(out.end(), first, first + size_bytes);
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

void SafetensorsWriter::add(std::string name, SafetensorsType type, std::vector<int64_t> shape,
                            std::span<const std::byte> data) {
  int64_t size_bytes = element_bytes(type);
  for (const int64_t dim : shape) size_bytes *= dim;
  KVANT_CHECK(size_bytes == static_cast<int64_t>(data.size()));
  const size_t begin = data_.size();
  append(data_, data.data(), data.size());
  records_.push_back({std::move(name), type, std::move(shape), begin, data_.size()});
}

void SafetensorsWriter::add_f32(std::string name, std::vector<int64_t> shape, std::span<const float> values) {
  add(std::move(name), SafetensorsType::kF32, std::move(shape), std::as_bytes(values));
}

Result<std::vector<std::byte>> SafetensorsWriter::bytes() const {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  for (const Record& record : records_) {
    KVANT_CHECK(!record.name.empty() && !header.contains(record.name));
    header[record.name] = {
        {"dtype", to_string(record.type)}, {"shape", record.shape}, {"data_offsets", {record.begin, record.end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    return failure(StatusCode::kInvalidArgument, "safetensors names and metadata must be UTF-8");
  }
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  const uint64_t header_bytes = text.size();
  std::vector<std::byte> out;
  out.reserve(sizeof(header_bytes) + text.size() + data_.size());
  append(out, &header_bytes, sizeof(header_bytes));
  append(out, text.data(), text.size());
  append(out, data_.data(), data_.size());
  return out;
}

Status SafetensorsWriter::write(const std::filesystem::path& path) const {
  KVANT_ASSIGN_OR_RETURN(const std::vector<std::byte> image, bytes());
  std::string temporary = path.string() + ".XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0)
    return {StatusCode::kInvalidArgument,
            fmt::format("cannot create a file beside '{}': {}", path.string(), std::strerror(errno))};
  // mkostemp gives 0600; others may read what they may list.
  bool ok = ::fchmod(descriptor, 0644) == 0 && write_all(descriptor, image) && ::fsync(descriptor) == 0;
  int error = errno;
  if (::close(descriptor) != 0 && ok) {
    ok = false;
    error = errno;
  }
  if (ok && ::rename(temporary.c_str(), path.c_str()) != 0) {
    ok = false;
    error = errno;
  }
  if (ok) return {};
  ::unlink(temporary.c_str());
  return {StatusCode::kInvalidArgument, fmt::format("cannot write '{}': {}", path.string(), std::strerror(error))};
}

}  // namespace kvant::engine
