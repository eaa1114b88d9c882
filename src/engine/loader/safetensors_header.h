#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::engine {

struct SafetensorsHeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  ///< In the data section. Unchecked, as are dtype and shape.
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string, std::less<>> metadata;
  std::vector<SafetensorsHeaderEntry> entries;  ///< Names differ and none is empty.
};

/// Reads the JSON header of a safetensors file: one object of tensor records, and nothing that the format does not
/// define. Errors are the bare reason, to be wrapped with the file's name.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view text);

}  // namespace kvant::engine
