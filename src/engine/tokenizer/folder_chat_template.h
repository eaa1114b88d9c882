#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kvant/core/status.h"

namespace kvant::engine {

/// The chat template of a Hugging Face folder: chat_template.jinja, else what tokenizer_config.json or
/// chat_template.json holds (of several the one named "default"); nothing when there is none.
Result<std::optional<std::string>> read_folder_chat_template(const std::filesystem::path& folder);

}  // namespace kvant::engine
