#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/loader/json_object.h"
#include "engine/loader/printable.h"
#include "engine/tokenizer/folder_chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace kvant::engine {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kLargestTokenizer = size_t{512} << 20;
constexpr size_t kLargestTemplate = size_t{1} << 20;

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A file that a folder may lack.
Result<std::optional<JsonObject>> read_if_there(const fs::path& path) {
  if (!file_exists(path)) return std::optional<JsonObject>();
  return JsonObject::read(path).map([](JsonObject json) { return std::optional<JsonObject>(std::move(json)); });
}

/// A special token is given as its text or as an object with the text as "content".
Result<std::optional<std::string>> special_token(const JsonObject& json, std::string_view key) {
  if (!json.contains(key)) return std::optional<std::string>();
  if (json.json().find(key)->is_string())
    return json.text(key).map([](std::string text) { return std::optional<std::string>(std::move(text)); });
  KVANT_ASSIGN_OR_FAIL(const JsonObject token, json.object(key));
  KVANT_ASSIGN_OR_FAIL(std::string text, token.text("content"));
  return std::optional<std::string>(std::move(text));
}

Status set_special(const JsonObject& json, std::string_view key, TokenizerData& data, std::optional<int64_t>& id) {
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string> token, special_token(json, key));
  if (!token || token->empty()) return {};
  const auto found = std::find(data.tokens.begin(), data.tokens.end(), *token);
  if (found == data.tokens.end()) return {};  // Some families name tokens that their vocabulary lacks.
  id = found - data.tokens.begin();
  return {};
}

Status add_end_ids(const JsonObject& json, TokenizerData& data) {
  KVANT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, json.ids("eos_token_id"));
  for (const int64_t id : ids)
    // Padding of the embedding may reach beyond the tokenizer's vocabulary.
    if (id < static_cast<int64_t>(data.tokens.size())) data.more_end_ids.push_back(id);
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::from_folder(const fs::path& folder) {
  const fs::path path = folder / "tokenizer.json";
  if (!file_exists(path)) {
    const bool has_model = file_exists(folder / "tokenizer.model");
    return failure(StatusCode::kNotFound,
                   fmt::format("'{}' is missing{}", path.string(),
                               has_model ? "; tokenizer.model alone is not read, convert it with transformers" : ""));
  }
  KVANT_ASSIGN_OR_FAIL(const JsonObject json, JsonObject::read(path, kLargestTokenizer));
  KVANT_ASSIGN_OR_FAIL(TokenizerData data, read_tokenizer_json(json));
  std::optional<int64_t> bos;
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    KVANT_ASSIGN_OR_FAIL(const auto config, read_if_there(folder / name));
    if (!config) continue;
    KVANT_FAIL_IF_ERROR(set_special(*config, "bos_token", data, bos));
    KVANT_FAIL_IF_ERROR(set_special(*config, "eos_token", data, data.eos));
    if (config->contains("add_bos_token")) {
      KVANT_ASSIGN_OR_FAIL(data.add_bos, config->boolean("add_bos_token"));
    }
  }
  if (bos) data.bos = bos;
  KVANT_ASSIGN_OR_FAIL(const auto model, read_if_there(folder / "config.json"));
  if (model) {
    KVANT_FAIL_IF_ERROR(add_end_ids(*model, data));
    KVANT_ASSIGN_OR_FAIL(const auto text, model->find_object("text_config"));
    if (text) KVANT_FAIL_IF_ERROR(add_end_ids(*text, data));
  }
  KVANT_ASSIGN_OR_FAIL(const auto generation, read_if_there(folder / "generation_config.json"));
  if (generation) KVANT_FAIL_IF_ERROR(add_end_ids(*generation, data));
  return from_data(std::move(data));
}

Result<std::optional<std::string>> read_folder_chat_template(const fs::path& folder) {
  const fs::path own = folder / "chat_template.jinja";
  if (file_exists(own)) {
    return read_small_file(own, kLargestTemplate).map([](std::string text) {
      return std::optional<std::string>(std::move(text));
    });
  }
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    KVANT_ASSIGN_OR_FAIL(const auto config, read_if_there(folder / name));
    if (!config || !config->contains("chat_template")) continue;
    if (!config->json()["chat_template"].is_array()) {
      return config->text("chat_template").map([](std::string text) {
        return std::optional<std::string>(std::move(text));
      });
    }
    KVANT_ASSIGN_OR_FAIL(const auto named, config->objects("chat_template"));
    for (const JsonObject& item : named) {
      KVANT_ASSIGN_OR_FAIL(const std::string title, item.text("name"));
      if (title != "default") continue;
      KVANT_ASSIGN_OR_FAIL(std::string text, item.text("template"));
      return std::optional<std::string>(std::move(text));
    }
  }
  return std::optional<std::string>();
}

}  // namespace kvant::engine
