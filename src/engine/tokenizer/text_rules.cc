#include "engine/tokenizer/text_rules.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvant::engine {

namespace {

constexpr std::string_view kGpt2 = R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneDigit = R"(\p{N})";
constexpr std::string_view kLineBreak = R"([\r\n])";
constexpr std::string_view kCjk = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr std::string_view kDeepseekWord = R"(\s?\p{L}+)";
constexpr std::string_view kDeepseekPunctuation = R"(\s?\p{P}+)";
constexpr std::string_view kDeepseekDigits3 = R"(\p{N}{1,3})";
constexpr std::string_view kCjkAndKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  std::string_view name;
  std::array<std::string_view, 5> stages;  ///< Empty ones are none.
  bool nfc = false;
  bool whole_words_first = false;
  bool adds_bos = false;
};

constexpr Row kRows[] = {
    {.name = "gpt-2", .stages = {kGpt2}},
    {.name = "default", .stages = {kGpt2}},
    {.name = "mpt", .stages = {kGpt2}, .nfc = true},
    {.name = "olmo", .stages = {kGpt2}, .nfc = true},
    {.name = "llama-bpe", .stages = {kLlama3}, .whole_words_first = true, .adds_bos = true},
    {.name = "llama3", .stages = {kLlama3}, .whole_words_first = true, .adds_bos = true},
    {.name = "llama-v3", .stages = {kLlama3}, .whole_words_first = true, .adds_bos = true},
    {.name = "smaug-bpe", .stages = {kLlama3}, .whole_words_first = true},
    {.name = "smollm", .stages = {kOneDigit, kGpt2}},
    {.name = "starcoder", .stages = {kOneDigit, kGpt2}},
    {.name = "refact", .stages = {kOneDigit, kGpt2}},
    {.name = "codeshell", .stages = {kOneDigit, kGpt2}},
    {.name = "command-r", .stages = {kOneDigit, kGpt2}, .nfc = true},
    {.name = "deepseek-coder", .stages = {kLineBreak, kDeepseekWord, kDeepseekPunctuation, kCjk, kOneDigit}},
    {.name = "deepseek-v3", .stages = {kDeepseekDigits3, kCjkAndKana, kDeepseek3}},
    {.name = "qwen2", .stages = {kQwen2}, .nfc = true},
    {.name = "qwen35", .stages = {kQwen35}, .nfc = true},
    {.name = "tekken", .stages = {kTekken}, .whole_words_first = true},
    {.name = "gpt-4o", .stages = {kGpt4o}},
};

}  // namespace

std::string_view gpt2_pattern() { return kGpt2; }

Result<NamedTextRules> find_text_rules(std::string_view name) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == name; });
  if (row == std::end(kRows)) {
    std::vector<std::string_view> known;
    for (const Row& r : kRows) known.push_back(r.name);
    return failure(StatusCode::kUnsupported,
                   fmt::format("pre-tokenizer '{}' (tokenizer.ggml.pre) is not known; known are {}", name,
                               fmt::join(known, ", ")));
  }
  NamedTextRules out{
      .name = row->name, .rules = {}, .whole_words_first = row->whole_words_first, .adds_bos = row->adds_bos};
  if (row->nfc) out.rules.normalise.push_back({.kind = NormaliseStep::Kind::kNfc});
  for (const std::string_view stage : row->stages)
    if (!stage.empty()) out.rules.split.push_back({.pattern = std::string(stage)});
  return out;
}

}  // namespace kvant::engine
