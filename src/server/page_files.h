#pragma once

#include <span>
#include <string_view>

namespace kvant::server {

/// A file of the built-in page, such as "index.html".
struct PageFile {
  std::string_view name;
  std::string_view bytes;
};

/// All files of `src/server/page`, as they were when the program was built.
std::span<const PageFile> page_files();

}  // namespace kvant::server
