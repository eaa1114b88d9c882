#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/pretokenizer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <pcre2.h>

#include "engine/loader/printable.h"
#include "engine/tokenizer/normaliser.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

// Unicode White_Space. PCRE2's own \s also holds U+180E, which is no space since Unicode 6.3.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr size_t kLongestPattern = 1 << 16;
constexpr size_t kMostStages = 32;
// A run of a million spaces backtracks a million times; that is linear, not a runaway.
constexpr uint32_t kMatchLimit = 1u << 28;

/// Puts the set above in the place of \s, and of \S outside sets.
std::string expand_spaces(std::string_view pattern) {
  std::string out;
  bool in_set = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_set ? std::string(kSpaceSet) : fmt::format("[{}]", kSpaceSet);
      } else if (next == 'S' && !in_set) {
        out += fmt::format("[^{}]", kSpaceSet);
      } else {
        out.push_back(c);
        out.push_back(next);
      }
      continue;
    }
    if (c == '[') in_set = true;
    if (c == ']') in_set = false;
    out.push_back(c);
  }
  return out;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

struct Piece {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;
};

/// Joins pieces as the behavior says; what is removed goes.
void apply_behavior(SplitBehavior behavior, std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated: return;
    case SplitBehavior::kRemoved: std::erase_if(pieces, [](const Piece& piece) { return piece.is_match; }); return;
    case SplitBehavior::kContiguous:
      for (const Piece& piece : pieces) {
        if (!out.empty() && out.back().is_match == piece.is_match)
          out.back().end = piece.end;
        else
          out.push_back(piece);
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Piece& piece : pieces) {
        if (piece.is_match && !previous_match && !out.empty())
          out.back().end = piece.end;
        else
          out.push_back(piece);
        previous_match = piece.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
        if (piece->is_match && !previous_match && !out.empty())
          out.back().begin = piece->begin;
        else
          out.push_back(*piece);
        previous_match = piece->is_match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  pieces = std::move(out);
}

}  // namespace

struct Pretokenizer::Stage {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;

  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  Status compile(const SplitStage& from);
  /// Matches and what lies between, in order and without gaps.
  std::vector<Piece> pieces_of(std::string_view text) const;
};

Status Pretokenizer::Stage::compile(const SplitStage& from) {
  behavior = from.behavior;
  invert = from.invert;
  const auto refuse = [&](std::string why) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("pre-tokenizer expression '{}' is not supported: {}", printable(from.pattern), why));
  };
  if (from.pattern.empty() || from.pattern.size() > kLongestPattern)
    return refuse(fmt::format("1 to {} bytes are read", kLongestPattern));
  // Oniguruma intersects sets; PCRE2 would read two ampersands.
  if (from.pattern.find("&&") != std::string::npos) return refuse("it intersects sets (&&)");
  const std::string expanded = from.of_bytes ? from.pattern : expand_spaces(from.pattern);
  const uint32_t options = from.of_bytes ? 0 : PCRE2_UTF | PCRE2_UCP;
  int error = 0;
  PCRE2_SIZE offset = 0;
  code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), options, &error, &offset, nullptr);
  if (code == nullptr) return refuse(fmt::format("PCRE2 error {} at offset {}", error, offset));
  context = pcre2_match_context_create(nullptr);
  if (context == nullptr) return {StatusCode::kResourceExhausted, "no memory for a pre-tokenizer expression"};
  pcre2_set_match_limit(context, kMatchLimit);
  // Without JIT support PCRE2 interprets: slower, same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return {};
}

std::vector<Piece> Pretokenizer::Stage::pieces_of(std::string_view text) const {
  std::vector<Piece> pieces;
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    if (begin < end) pieces.push_back({begin, end, is_match != invert});
  };
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> match(pcre2_match_data_create(1, nullptr));
  size_t done = 0;
  while (match != nullptr && done < text.size()) {
    const auto search = [&](uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done, options | PCRE2_NOTEMPTY,
                         match.get(), context);
    };
    int found = search(PCRE2_NO_UTF_CHECK);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (found < 0) break;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    if (bounds[1] <= bounds[0] || bounds[0] < done) break;
    add(done, bounds[0], false);
    add(bounds[0], bounds[1], true);
    done = bounds[1];
  }
  add(done, text.size(), false);
  apply_behavior(behavior, pieces);
  return pieces;
}

Pretokenizer::Pretokenizer() = default;
Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

Result<Pretokenizer> Pretokenizer::make(TextRules rules) {
  if (rules.split.size() > kMostStages) {
    return failure(
        StatusCode::kUnsupported,
        fmt::format("a pre-tokenizer of {} stages is not supported; at most {} are", rules.split.size(), kMostStages));
  }
  Pretokenizer result;
  result.normalise_ = std::move(rules.normalise);
  for (const SplitStage& from : rules.split) {
    result.pattern_ += fmt::format("{}{}", result.pattern_.empty() ? "" : " then ", from.pattern);
    auto stage = std::make_unique<Stage>();
    KVANT_FAIL_IF_ERROR(stage->compile(from));
    result.stages_.push_back(std::move(stage));
  }
  return result;
}

void Pretokenizer::split(std::string_view text, bool at_start, const Emit& emit) const {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    if (valid == 0) {
      emit(text.substr(0, 1));
      text.remove_prefix(1);
    } else {
      const std::string_view run = text.substr(0, valid);
      if (normalise_.empty()) {
        split_valid(run, 0, emit);
      } else {
        split_valid(normalise(run, normalise_, at_start), 0, emit);
      }
      text.remove_prefix(valid);
    }
    at_start = false;
  }
}

void Pretokenizer::split_valid(std::string_view text, size_t stage, const Emit& emit) const {
  if (text.empty()) return;
  if (stage == stages_.size()) return emit(text);
  for (const Piece& piece : stages_[stage]->pieces_of(text))
    split_valid(text.substr(piece.begin, piece.end - piece.begin), stage + 1, emit);
}

}  // namespace kvant::engine
