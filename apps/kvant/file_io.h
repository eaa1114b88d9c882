#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::cli {

/// A whole text file; "-" reads standard input. kNotFound when it cannot be opened.
Result<std::string> read_text(const std::filesystem::path& path);

/// Lines without their ends, LF or CR LF.
std::vector<std::string> lines_of(const std::string& text);

/// Writes to a file beside `path` and renames it, so that a reader never sees half a file.
Status write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
Status write_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace kvant::cli
