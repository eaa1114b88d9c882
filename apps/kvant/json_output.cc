#include "json_output.h"

#include <cstdio>
#include <string>

namespace kvant::cli {

void print_json(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

}  // namespace kvant::cli
