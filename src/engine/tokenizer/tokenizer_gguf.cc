#include <fmt/format.h>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_data.h"

namespace kvant::engine {

namespace {

Result<std::optional<int64_t>> optional_int(const GgufFile& file, std::string_view key) {
  if (!file.contains(key)) return std::optional<int64_t>();
  KVANT_ASSIGN_OR_FAIL(const int64_t value, file.get_int(key));
  return std::optional<int64_t>(value);
}

}  // namespace

Result<Tokenizer> Tokenizer::from_gguf(const GgufFile& file) {
  TokenizerData data;
  KVANT_ASSIGN_OR_FAIL(data.model, file.get_string("tokenizer.ggml.model"));
  if (file.contains("tokenizer.ggml.pre")) {
    KVANT_ASSIGN_OR_FAIL(data.pretokenizer, file.get_string("tokenizer.ggml.pre"));
  }
  const auto* tokens = file.find_strings("tokenizer.ggml.tokens");
  if (tokens == nullptr) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: no tokenizer.ggml.tokens (an array of strings)", file.name()));
  }
  data.tokens = *tokens;
  if (const auto* merges = file.find_strings("tokenizer.ggml.merges")) data.merges = *merges;
  if (file.contains("tokenizer.ggml.token_type")) {
    KVANT_ASSIGN_OR_FAIL(data.token_types, file.get_ints("tokenizer.ggml.token_type"));
  }
  if (file.contains("tokenizer.ggml.scores")) {
    KVANT_ASSIGN_OR_FAIL(data.scores, file.get_floats("tokenizer.ggml.scores"));
  }
  if (file.contains("tokenizer.ggml.add_space_prefix")) {
    KVANT_ASSIGN_OR_FAIL(data.add_space_prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  }
  if (data.model != "gpt2") {
    KVANT_ASSIGN_OR_FAIL(data.unknown, optional_int(file, "tokenizer.ggml.unknown_token_id"));
  }
  KVANT_ASSIGN_OR_FAIL(data.bos, optional_int(file, "tokenizer.ggml.bos_token_id"));
  KVANT_ASSIGN_OR_FAIL(data.eos, optional_int(file, "tokenizer.ggml.eos_token_id"));
  for (const std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    KVANT_ASSIGN_OR_FAIL(const std::optional<int64_t> id, optional_int(file, key));
    if (id) data.more_end_ids.push_back(*id);
  }
  if (file.contains("tokenizer.ggml.add_bos_token")) {
    KVANT_ASSIGN_OR_FAIL(data.add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  }
  return from_data(std::move(data));
}

}  // namespace kvant::engine
