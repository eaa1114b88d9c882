#pragma once

#include <string>
#include <string_view>

#include "server/http/http_types.h"
#include "server/page_files.h"

namespace kvant::server {

/// Where a file of the page is served: "/" for index.html, "/NAME" for the others.
std::string page_path(const PageFile& file);
bool is_page_path(std::string_view path);

HttpResponse page_response(const PageFile& file);

}  // namespace kvant::server
