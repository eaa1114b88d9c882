#include "server/page_response.h"

#include <algorithm>

namespace kvant::server {
namespace {

std::string type_of(std::string_view name) {
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "text/html; charset=utf-8";
}

}  // namespace

std::string page_path(const PageFile& file) { return file.name == "index.html" ? "/" : "/" + std::string(file.name); }

bool is_page_path(std::string_view path) {
  const auto files = page_files();
  return std::any_of(files.begin(), files.end(), [&](const PageFile& file) { return page_path(file) == path; });
}

HttpResponse page_response(const PageFile& file) {
  HttpResponse response{.content_type = type_of(file.name), .body = std::string(file.bytes)};
  response.headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
                       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"Cache-Control", "no-cache"},
                      {"Referrer-Policy", "no-referrer"}};
  return response;
}

}  // namespace kvant::server
