#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/pretokenizer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pcre2.h>
#include <utf8proc.h>

#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

// Unicode White_Space. PCRE2's own \s also holds U+180E, which is no space since Unicode 6.3.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Patterns are written with \s; `expand_spaces` puts the set above in its place.
constexpr std::string_view kGpt2 = R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneDigit = R"(\p{N})";

struct Recipe {
  std::string_view name;
  std::array<std::string_view, 2> stages;  ///< The second may be empty.
  bool normalise_nfc = false;
  bool whole_words_first = false;
  bool adds_bos = false;
};

constexpr Recipe kRecipes[] = {
    {.name = "gpt-2", .stages = {kGpt2}},
    {.name = "default", .stages = {kGpt2}},
    {.name = "llama-bpe", .stages = {kLlama3}, .whole_words_first = true, .adds_bos = true},
    {.name = "smaug-bpe", .stages = {kLlama3}, .whole_words_first = true},
    {.name = "smollm", .stages = {kOneDigit, kGpt2}},
    {.name = "qwen2", .stages = {kQwen2}, .normalise_nfc = true},
};

std::string expand_spaces(std::string_view pattern) {
  std::string out;
  bool in_set = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next == 's') {
      out += in_set ? std::string(kSpaceSet) : fmt::format("[{}]", kSpaceSet);
      ++i;
    } else if (c == '\\' && next == 'S') {
      out += fmt::format("[^{}]", kSpaceSet);
      ++i;
    } else {
      if (c == '[') in_set = true;
      if (c == ']') in_set = false;
      out.push_back(c);
    }
  }
  return out;
}

/// NFC; ASCII text is its own.
std::string normalised(std::string_view text) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) return std::string(text);  // Out of memory only: the text is valid UTF-8.
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  std::free(mapped);
  return out;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Pretokenizer::Regex {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  Regex() = default;
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  ~Regex() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Pretokenizer::Pretokenizer() = default;
Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

Result<Pretokenizer> Pretokenizer::make(std::string_view name) {
  const auto* recipe =
      std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const Recipe& r) { return r.name == name; });
  if (recipe == std::end(kRecipes)) {
    std::vector<std::string_view> known;
    for (const Recipe& r : kRecipes) known.push_back(r.name);
    return failure(StatusCode::kUnsupported,
                   fmt::format("pre-tokenizer '{}' (tokenizer.ggml.pre) is not known; known are {}", name,
                               fmt::join(known, ", ")));
  }
  Pretokenizer result;
  result.name_ = recipe->name;
  result.normalise_nfc_ = recipe->normalise_nfc;
  result.whole_words_first_ = recipe->whole_words_first;
  result.adds_bos_by_default_ = recipe->adds_bos;
  for (std::string_view stage : recipe->stages) {
    if (stage.empty()) continue;
    result.pattern_ += fmt::format("{}{}", result.pattern_.empty() ? "" : " then ", stage);
    auto regex = std::make_unique<Regex>();
    const std::string expanded = expand_spaces(stage);
    int error = 0;
    PCRE2_SIZE offset = 0;
    regex->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), PCRE2_UTF | PCRE2_UCP,
                                &error, &offset, nullptr);
    regex->context = pcre2_match_context_create(nullptr);
    if (regex->code == nullptr || regex->context == nullptr) {
      return failure(StatusCode::kInternal,
                     fmt::format("pre-tokenizer '{}': PCRE2 error {} at offset {}", name, error, offset));
    }
    // A run of a million spaces backtracks a million times; that is linear, not a runaway.
    pcre2_set_match_limit(regex->context, std::numeric_limits<uint32_t>::max());
    // Without JIT support PCRE2 interprets: slower, same result.
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    result.stages_.push_back(std::move(regex));
  }
  return result;
}

void Pretokenizer::split(std::string_view text, const std::function<void(std::string_view)>& emit) const {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    if (valid == 0) {
      emit(text.substr(0, 1));
      text.remove_prefix(1);
      continue;
    }
    const std::string_view run = text.substr(0, valid);
    const bool ascii = std::all_of(run.begin(), run.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
    if (normalise_nfc_ && !ascii) {
      split_valid(normalised(run), 0, emit);
    } else {
      split_valid(run, 0, emit);
    }
    text.remove_prefix(valid);
  }
}

void Pretokenizer::split_valid(std::string_view text, size_t stage,
                               const std::function<void(std::string_view)>& emit) const {
  if (text.empty()) return;
  if (stage == stages_.size()) return emit(text);
  const Regex& regex = *stages_[stage];
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> match(pcre2_match_data_create(1, nullptr));
  size_t done = 0;
  while (match != nullptr && done < text.size()) {
    const auto search = [&](uint32_t options) {
      return pcre2_match(regex.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done, options, match.get(),
                         regex.context);
    };
    int found = search(PCRE2_NO_UTF_CHECK);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (found < 0) break;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    if (bounds[1] <= bounds[0]) break;
    split_valid(text.substr(done, bounds[0] - done), stage + 1, emit);
    split_valid(text.substr(bounds[0], bounds[1] - bounds[0]), stage + 1, emit);
    done = bounds[1];
  }
  split_valid(text.substr(done), stage + 1, emit);
}

}  // namespace kvant::engine
