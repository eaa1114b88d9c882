#include "server/api/token_ids.h"

#include <fmt/format.h>

#include "server/api/fields.h"

namespace kvant::server {

ApiResult<std::vector<int32_t>> read_token_ids(const Json& list, const std::string& field, int32_t vocabulary) {
  std::vector<int32_t> out;
  for (const Json& item : list) {
    if (!item.is_number_integer())
      return refuse(field, fmt::format("'{}' holds {} among token ids", field, type_name(item)));
    const auto id = item.is_number_unsigned() ? static_cast<double>(item.get<uint64_t>()) : item.get<double>();
    if (id < 0 || id >= vocabulary) {
      return refuse(field,
                    fmt::format("'{}' holds token id {}; ids go from 0 to {}", field, item.dump(), vocabulary - 1));
    }
    out.push_back(item.get<int32_t>());
  }
  return out;
}

}  // namespace kvant::server
