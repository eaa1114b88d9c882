#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/loader/printable.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

/// A text as an expression that matches just it.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
    if (c == ' ')
      out += R"(\x20)";
    else
      out += plain ? std::string(1, c) : fmt::format("\\x{:02X}", static_cast<unsigned>(static_cast<uint8_t>(c)));
  }
  return out;
}

Status read_normaliser(const JsonObject& json, int depth, TokenizerRules& rules) {
  using Kind = NormaliseStep::Kind;
  std::vector<NormaliseStep>& steps = rules.text.normalise;
  const Result<std::string> named = json.text("type");
  if (!named) return named.error();
  const std::string& type = *named;
  if (type == "Sequence") {
    if (depth == kDeepestSequence) return unsupported(json, "a sequence this deep");
    KVANT_ASSIGN_OR_RETURN(const auto parts, json.objects("normalizers"));
    for (const JsonObject& part : parts) KVANT_RETURN_IF_ERROR(read_normaliser(part, depth + 1, rules));
    return {};
  }
  constexpr std::pair<std::string_view, Kind> kForms[] = {
      {"NFC", Kind::kNfc}, {"NFD", Kind::kNfd}, {"NFKC", Kind::kNfkc}, {"NFKD", Kind::kNfkd}};
  for (const auto& [name, kind] : kForms) {
    if (type != name) continue;
    steps.push_back({.kind = kind});
    return {};
  }
  if (type == "Prepend") {
    KVANT_ASSIGN_OR_RETURN(std::string text, json.text("prepend"));
    steps.push_back({.kind = Kind::kPrepend, .to = std::move(text)});
    return {};
  }
  if (type == "Replace") {
    KVANT_ASSIGN_OR_RETURN(const JsonObject pattern, json.object("pattern"));
    if (!pattern.contains("String")) return unsupported(pattern, "a normalizer that replaces anything but a string");
    KVANT_ASSIGN_OR_RETURN(std::string from, pattern.text("String"));
    KVANT_ASSIGN_OR_RETURN(std::string to, json.text("content"));
    steps.push_back({.kind = Kind::kReplace, .from = std::move(from), .to = std::move(to)});
    return {};
  }
  if (type == "Strip") {
    KVANT_ASSIGN_OR_RETURN(const bool left, json.boolean_or("strip_left", true));
    KVANT_ASSIGN_OR_RETURN(const bool right, json.boolean_or("strip_right", true));
    if (left) steps.push_back({.kind = Kind::kStripLeft});
    if (right) steps.push_back({.kind = Kind::kStripRight});
    return {};
  }
  return unsupported(json, fmt::format("the normalizer '{}'", printable(type)));
}

Result<SplitBehavior> read_behavior(const JsonObject& json) {
  constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  };
  KVANT_ASSIGN_OR_FAIL(const std::string name, json.text("behavior"));
  for (const auto& [known, behavior] : kNames)
    if (name == known) return behavior;
  return failure(unsupported(json, fmt::format("the behavior '{}'", printable(name))));
}

Status read_split(const JsonObject& json, TokenizerRules& rules) {
  KVANT_ASSIGN_OR_RETURN(const JsonObject pattern, json.object("pattern"));
  SplitStage stage;
  if (pattern.contains("Regex")) {
    KVANT_ASSIGN_OR_RETURN(stage.pattern, pattern.text("Regex"));
  } else {
    KVANT_ASSIGN_OR_RETURN(const std::string text, pattern.text("String"));
    stage.pattern = escaped(text);
  }
  KVANT_ASSIGN_OR_RETURN(stage.behavior, read_behavior(json));
  KVANT_ASSIGN_OR_RETURN(stage.invert, json.boolean_or("invert", false));
  // Only ASCII digits are spelled as themselves and as nothing else's spelling.
  if (rules.byte_level && stage.pattern.find_first_not_of("0123456789[]-{},+") != std::string::npos)
    return unsupported(json, fmt::format("the expression '{}' after ByteLevel", printable(stage.pattern)));
  stage.of_bytes = rules.byte_level;
  rules.text.split.push_back(std::move(stage));
  return {};
}

Status read_digits(const JsonObject& json, TokenizerRules& rules) {
  KVANT_ASSIGN_OR_RETURN(const bool individual, json.boolean_or("individual_digits", false));
  const std::string_view digit = rules.byte_level ? spelled_digit_pattern() : R"(\p{N})";
  rules.text.split.push_back(
      {.pattern = fmt::format("{}{}", digit, individual ? "" : "+"), .of_bytes = rules.byte_level});
  return {};
}

/// Steps that change text as well as cutting it are read as normalisation, which comes first. So they must be first.
Status must_be_first(const JsonObject& json, std::string_view what, const TokenizerRules& rules) {
  if (rules.text.split.empty()) return {};
  return unsupported(json, fmt::format("{} after another pre-tokenizer", what));
}

Status read_metaspace(const JsonObject& json, TokenizerRules& rules) {
  KVANT_RETURN_IF_ERROR(must_be_first(json, "Metaspace", rules));
  KVANT_ASSIGN_OR_RETURN(const std::string replacement, json.text_or("replacement", kUnderline));
  if (replacement != kUnderline) return unsupported(json, "a replacement other than U+2581");
  KVANT_ASSIGN_OR_RETURN(const bool prefix, json.boolean_or("add_prefix_space", true));
  KVANT_ASSIGN_OR_RETURN(const std::string scheme, json.text_or("prepend_scheme", prefix ? "always" : "never"));
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return unsupported(json, fmt::format("the prepend_scheme '{}'", printable(scheme)));
  std::vector<NormaliseStep>& steps = rules.text.normalise;
  steps.push_back({.kind = NormaliseStep::Kind::kReplace, .from = " ", .to = kUnderline});
  if (scheme != "never") {
    steps.push_back({.kind = NormaliseStep::Kind::kPrepend,
                     .to = kUnderline,
                     .unless_there = true,
                     .only_at_start = scheme == "first"});
  }
  KVANT_ASSIGN_OR_RETURN(const bool split, json.boolean_or("split", true));
  if (split) rules.text.split.push_back({.pattern = kUnderline, .behavior = SplitBehavior::kMergedWithNext});
  return {};
}

Status read_byte_level(const JsonObject& json, TokenizerRules& rules) {
  KVANT_ASSIGN_OR_RETURN(const bool prefix, json.boolean_or("add_prefix_space", true));
  if (prefix) {
    KVANT_RETURN_IF_ERROR(must_be_first(json, "ByteLevel with add_prefix_space", rules));
    rules.text.normalise.push_back({.kind = NormaliseStep::Kind::kPrepend, .to = " ", .unless_there = true});
  }
  KVANT_ASSIGN_OR_RETURN(const bool use_regex, json.boolean_or("use_regex", true));
  if (use_regex) rules.text.split.push_back({.pattern = std::string(gpt2_pattern())});
  rules.byte_level = true;
  return {};
}

Status read_pretokenizer(const JsonObject& json, int depth, TokenizerRules& rules) {
  const Result<std::string> named = json.text("type");
  if (!named) return named.error();
  const std::string& type = *named;
  std::vector<SplitStage>& stages = rules.text.split;
  if (type == "Sequence") {
    if (depth == kDeepestSequence) return unsupported(json, "a sequence this deep");
    KVANT_ASSIGN_OR_RETURN(const auto parts, json.objects("pretokenizers"));
    for (const JsonObject& part : parts) KVANT_RETURN_IF_ERROR(read_pretokenizer(part, depth + 1, rules));
    return {};
  }
  if (type == "Split") return read_split(json, rules);
  if (type == "Digits") return read_digits(json, rules);
  // Later stages see the spelling of bytes, in which some bytes look like digits or letters.
  if (rules.byte_level)
    return unsupported(json, fmt::format("the pre-tokenizer '{}' after ByteLevel", printable(type)));
  if (type == "ByteLevel") return read_byte_level(json, rules);
  if (type == "Metaspace") return read_metaspace(json, rules);
  if (type == "Punctuation") {
    SplitStage stage{.pattern = std::string(punctuation_pattern())};
    if (json.contains("behavior")) {
      KVANT_ASSIGN_OR_RETURN(stage.behavior, read_behavior(json));
    }
    stages.push_back(std::move(stage));
    return {};
  }
  if (type == "WhitespaceSplit") {
    stages.push_back({.pattern = R"(\s)", .behavior = SplitBehavior::kRemoved});
    return {};
  }
  return unsupported(json, fmt::format("the pre-tokenizer '{}'", printable(type)));
}

}  // namespace

Status read_text_steps(const JsonObject& json, TokenizerRules& rules) {
  rules.byte_level = false;
  KVANT_ASSIGN_OR_RETURN(const auto normaliser, json.find_object("normalizer"));
  if (normaliser) KVANT_RETURN_IF_ERROR(read_normaliser(*normaliser, 0, rules));
  KVANT_ASSIGN_OR_RETURN(const auto pretokenizer, json.find_object("pre_tokenizer"));
  if (pretokenizer) KVANT_RETURN_IF_ERROR(read_pretokenizer(*pretokenizer, 0, rules));
  return {};
}

}  // namespace kvant::engine
