#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/loader/printable.h"

namespace kvant::engine {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 24;

/// Puts a token at its id, with room for the ids before it.
Status place(const JsonObject& json, const std::string& token, int64_t id, int64_t type, TokenizerData& data) {
  if (id < 0 || id >= kMostTokens) {
    return {StatusCode::kDataLoss, fmt::format("{}: token '{}' has the id {}; 0 to {} is needed", json.name(),
                                               printable(token), id, kMostTokens - 1)};
  }
  const auto at = static_cast<size_t>(id);
  if (at >= data.tokens.size()) {
    data.tokens.resize(at + 1);
    data.token_types.resize(at + 1, TokenizerData::kUnused);
  }
  if (!data.tokens[at].empty() && data.tokens[at] != token) {
    return {StatusCode::kDataLoss, fmt::format("{}: tokens '{}' and '{}' have the same id {}", json.name(),
                                               printable(data.tokens[at]), printable(token), id)};
  }
  data.tokens[at] = token;
  data.token_types[at] = type;
  return {};
}

Status read_vocabulary(const JsonObject& model, TokenizerData& data) {
  KVANT_ASSIGN_OR_RETURN(const JsonObject vocabulary, model.object("vocab"));
  data.tokens.reserve(vocabulary.json().size());
  data.token_types.reserve(vocabulary.json().size());
  for (const auto& [token, id] : vocabulary.json().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMostTokens)) {
      return {StatusCode::kDataLoss, fmt::format("{}: the id of token '{}' is not a number from 0 to {}",
                                                 vocabulary.name(), printable(token), kMostTokens - 1)};
    }
    KVANT_RETURN_IF_ERROR(place(vocabulary, token, id.get<int64_t>(), TokenizerData::kNormal, data));
  }
  if (data.tokens.size() > 4 * vocabulary.json().size() + 1024) {
    return {StatusCode::kDataLoss, fmt::format("{}: {} tokens have ids up to {}", vocabulary.name(),
                                               vocabulary.json().size(), data.tokens.size() - 1)};
  }
  return {};
}

Status read_merges(const JsonObject& model, TokenizerData& data) {
  if (!model.contains("merges")) return model.wrong("merges", "a list");
  const Json& merges = model.json()["merges"];
  if (!merges.is_array()) return model.wrong("merges", "a list");
  data.merge_pairs.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      if (auto pair = split_merge(merge.get_ref<const std::string&>())) {
        data.merge_pairs.push_back(*std::move(pair));
        continue;
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      data.merge_pairs.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    return {StatusCode::kDataLoss,
            fmt::format("{}: merge {} is not two tokens", model.name(), data.merge_pairs.size())};
  }
  return {};
}

Status read_model(const JsonObject& model, TokenizerData& data) {
  KVANT_ASSIGN_OR_RETURN(const std::string type, model.text_or("type", "BPE"));
  if (type != "BPE")
    return unsupported(model, fmt::format("the tokenizer model '{}' (offered is BPE)", printable(type)));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    KVANT_ASSIGN_OR_RETURN(const std::string text, model.text_or(key, ""));
    if (!text.empty()) return unsupported(model, fmt::format("{} '{}'", key, printable(text)));
  }
  KVANT_ASSIGN_OR_RETURN(const double dropout, model.number_or("dropout", 0.0));
  if (dropout != 0.0) return unsupported(model, "dropout");
  TokenizerRules& rules = *data.rules;
  KVANT_ASSIGN_OR_RETURN(rules.byte_fallback, model.boolean_or("byte_fallback", false));
  KVANT_ASSIGN_OR_RETURN(rules.fuse_unknown, model.boolean_or("fuse_unk", false));
  KVANT_ASSIGN_OR_RETURN(rules.whole_words_first, model.boolean_or("ignore_merges", false));
  KVANT_RETURN_IF_ERROR(read_vocabulary(model, data));
  KVANT_RETURN_IF_ERROR(read_merges(model, data));
  KVANT_ASSIGN_OR_RETURN(const std::string unknown, model.text_or("unk_token", ""));
  if (unknown.empty()) return {};
  const auto found = std::find(data.tokens.begin(), data.tokens.end(), unknown);
  if (found == data.tokens.end()) return model.wrong("unk_token", "a token of the vocabulary");
  data.unknown = found - data.tokens.begin();
  return {};
}

Status read_added_tokens(const JsonObject& json, TokenizerData& data) {
  data.added.emplace();
  if (!json.contains("added_tokens")) return {};
  KVANT_ASSIGN_OR_RETURN(const auto tokens, json.objects("added_tokens"));
  for (const JsonObject& item : tokens) {
    AddedToken token;
    KVANT_ASSIGN_OR_RETURN(token.id, item.integer("id", 0, kMostTokens - 1));
    KVANT_ASSIGN_OR_RETURN(const std::string text, item.text("content"));
    KVANT_ASSIGN_OR_RETURN(token.special, item.boolean_or("special", false));
    KVANT_ASSIGN_OR_RETURN(token.strip_left, item.boolean_or("lstrip", false));
    KVANT_ASSIGN_OR_RETURN(token.strip_right, item.boolean_or("rstrip", false));
    KVANT_ASSIGN_OR_RETURN(token.single_word, item.boolean_or("single_word", false));
    KVANT_RETURN_IF_ERROR(
        place(item, text, token.id, token.special ? TokenizerData::kControl : TokenizerData::kUserDefined, data));
    data.added->push_back(token);
  }
  return {};
}

Status read_decoder(const JsonObject& json, int depth, TokenizerRules& rules) {
  KVANT_ASSIGN_OR_RETURN(const std::string type, json.text("type"));
  if (type == "Sequence") {
    if (depth == kDeepestSequence) return unsupported(json, "a sequence this deep");
    KVANT_ASSIGN_OR_RETURN(const auto parts, json.objects("decoders"));
    for (const JsonObject& part : parts) KVANT_RETURN_IF_ERROR(read_decoder(part, depth + 1, rules));
    return {};
  }
  if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse") return {};
  if (type == "Metaspace") {
    rules.spaces_as_underlines = true;
    KVANT_ASSIGN_OR_RETURN(const bool prefix, json.boolean_or("add_prefix_space", true));
    KVANT_ASSIGN_OR_RETURN(const std::string scheme, json.text_or("prepend_scheme", prefix ? "always" : "never"));
    rules.strips_first_space = scheme != "never";
    return {};
  }
  if (type == "Replace") {
    KVANT_ASSIGN_OR_RETURN(const JsonObject pattern, json.object("pattern"));
    KVANT_ASSIGN_OR_RETURN(const std::string from, pattern.text_or("String", ""));
    KVANT_ASSIGN_OR_RETURN(const std::string to, json.text("content"));
    if (from != kUnderline || to != " ")
      return unsupported(json, "a decoder that replaces anything but U+2581 by a space");
    rules.spaces_as_underlines = true;
    return {};
  }
  if (type == "Strip") {
    KVANT_ASSIGN_OR_RETURN(const std::string content, json.text("content"));
    KVANT_ASSIGN_OR_RETURN(const int64_t start, json.integer("start", 0, 1));
    KVANT_ASSIGN_OR_RETURN(const int64_t stop, json.integer("stop", 0, 0));
    if (content != " " || stop != 0)
      return unsupported(json, "a decoder that strips anything but one space at the start");
    rules.strips_first_space = start == 1;
    return {};
  }
  return unsupported(json, fmt::format("the decoder '{}'", printable(type)));
}

/// BOS that a template puts before a text. What it puts after one ends a text, and a prompt goes on.
Status read_post_processor(const JsonObject& json, int depth, TokenizerData& data) {
  KVANT_ASSIGN_OR_RETURN(const std::string type, json.text("type"));
  if (type == "Sequence") {
    if (depth == kDeepestSequence) return unsupported(json, "a sequence this deep");
    KVANT_ASSIGN_OR_RETURN(const auto parts, json.objects("processors"));
    for (const JsonObject& part : parts) KVANT_RETURN_IF_ERROR(read_post_processor(part, depth + 1, data));
    return {};
  }
  if (type == "ByteLevel") return {};
  if (type != "TemplateProcessing") return unsupported(json, fmt::format("the post-processor '{}'", printable(type)));
  KVANT_ASSIGN_OR_RETURN(const auto parts, json.objects("single"));
  std::vector<std::string> before;
  for (const JsonObject& part : parts) {
    if (part.contains("Sequence")) break;
    KVANT_ASSIGN_OR_RETURN(const JsonObject special, part.object("SpecialToken"));
    KVANT_ASSIGN_OR_RETURN(before.emplace_back(), special.text("id"));
  }
  if (before.size() > 1) return unsupported(json, fmt::format("a prefix of {} special tokens", before.size()));
  data.add_bos = before.size() == 1;
  if (before.empty()) return {};
  const auto found = std::find(data.tokens.begin(), data.tokens.end(), before[0]);
  if (found == data.tokens.end())
    return {StatusCode::kDataLoss,
            fmt::format("{}: its special token '{}' is not in the vocabulary", json.name(), printable(before[0]))};
  data.bos = found - data.tokens.begin();
  return {};
}

}  // namespace

Result<TokenizerData> read_tokenizer_json(const JsonObject& json) {
  TokenizerData data;
  data.rules.emplace();
  data.rules->name = "tokenizer.json";
  KVANT_ASSIGN_OR_FAIL(const JsonObject model, json.object("model"));
  KVANT_FAIL_IF_ERROR(read_text_steps(json, *data.rules));
  KVANT_FAIL_IF_ERROR(read_model(model, data));
  KVANT_FAIL_IF_ERROR(read_added_tokens(json, data));
  KVANT_ASSIGN_OR_FAIL(const auto decoder, json.find_object("decoder"));
  if (decoder) KVANT_FAIL_IF_ERROR(read_decoder(*decoder, 0, *data.rules));
  KVANT_ASSIGN_OR_FAIL(const auto post_processor, json.find_object("post_processor"));
  if (post_processor) KVANT_FAIL_IF_ERROR(read_post_processor(*post_processor, 0, data));
  return data;
}

}  // namespace kvant::engine
