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
constexpr std::string_view kCasedWord =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"
    R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"
    R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A})"
    R"(\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B})"
    R"(\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107})"
    R"(\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134})"
    R"(\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A})"
    R"(\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr std::string_view kFullPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr std::string_view kFinalSpace = R"(\s+$)";
constexpr std::string_view kPunctuation = R"([!-/:-@\[-`{-~\p{P}])";
constexpr std::string_view kPunctuationRun = R"([!-/:-@\[-`{-~\p{P}]+)";
constexpr std::string_view kSpelledDigit = R"([0-9\xB2\xB3\xB9\xBC-\xBE])";
constexpr std::string_view kSpelledNumber = R"([0-9\xB2\xB3\xB9\xBC-\xBE]+)";
constexpr std::string_view kThreeDigits = R"([0-9][0-9][0-9])";

struct Row {
  std::string_view name;
  std::array<std::string_view, 6> stages;  ///< Empty ones are none.
  size_t first_of_bytes = 6;               ///< Stages from here on read bytes.
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
    {.name = "deepseek-llm", .stages = {kLineBreak, kCasedWord, kFullPunctuation, kFinalSpace, kCjk, kOneDigit}},
    {.name = "deepseek-v3", .stages = {kDeepseekDigits3, kCjkAndKana, kDeepseek3}},
    {.name = "falcon", .stages = {kPunctuationRun, kGpt2, kSpelledNumber, kThreeDigits}, .first_of_bytes = 2},
    {.name = "qwen2", .stages = {kQwen2}, .nfc = true},
    {.name = "qwen35", .stages = {kQwen35}, .nfc = true},
    {.name = "tekken", .stages = {kTekken}, .whole_words_first = true},
    {.name = "gpt-4o", .stages = {kGpt4o}},
};

}  // namespace

std::string_view gpt2_pattern() { return kGpt2; }
std::string_view punctuation_pattern() { return kPunctuation; }
std::string_view spelled_digit_pattern() { return kSpelledDigit; }

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
  for (size_t i = 0; i < row->stages.size() && !row->stages[i].empty(); ++i)
    out.rules.split.push_back({.pattern = std::string(row->stages[i]), .of_bytes = i >= row->first_of_bytes});
  return out;
}

}  // namespace kvant::engine
