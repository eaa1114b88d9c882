#include "file_io.h"

#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "core/mmap_file.h"

namespace kvant::cli {

Result<std::string> read_text(const std::filesystem::path& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  KVANT_ASSIGN_OR_FAIL(const MmapFile file, MmapFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

Status write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", getpid());
  std::error_code error;
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) {
      std::filesystem::remove(temporary, error);
      return {StatusCode::kNotFound, fmt::format("cannot write '{}'", path.string())};
    }
  }
  std::filesystem::rename(temporary, path, error);
  if (!error) return {};
  const std::string reason = error.message();
  std::filesystem::remove(temporary, error);
  return {StatusCode::kNotFound, fmt::format("cannot write '{}': {}", path.string(), reason)};
}

Status write_atomically(const std::filesystem::path& path, std::string_view text) {
  return write_atomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace kvant::cli
