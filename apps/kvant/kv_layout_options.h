#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvant/attn/kv_layout.h"
#include "kvant/core/status.h"

namespace kvant::cli {

/// `text` as a format name; the error lists the names there are.
Result<attn::KvFormat> format_from(const std::string& text);
Result<attn::ScalePolicy> policy_from(const std::string& text);
Result<attn::CodeOrder> code_order_from(const std::string& text);

}  // namespace kvant::cli
