#include <algorithm>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

TokenizerRules sentencepiece_rules(const TokenizerData& data) {
  TokenizerRules rules{.name = "sentencepiece",
                       .text = {},
                       .byte_level = false,
                       .byte_fallback = true,
                       .fuse_unknown = true,
                       .spaces_as_underlines = true,
                       .strips_first_space = data.add_space_prefix,
                       .adds_bos = true};
  if (data.add_space_prefix)
    rules.text.normalise.push_back({.kind = NormaliseStep::Kind::kPrepend, .from = {}, .to = kUnderline});
  rules.text.normalise.push_back({.kind = NormaliseStep::Kind::kReplace, .from = " ", .to = kUnderline});
  return rules;
}

}  // namespace

Result<TokenizerRules> rules_of_names(const TokenizerData& data) {
  if (data.model == "llama" || data.model == "gemma4") {
    TokenizerRules rules = sentencepiece_rules(data);
    rules.name = data.model == "llama" ? "sentencepiece" : data.model;
    return rules;
  }
  if (data.model != "gpt2") {
    return failure(StatusCode::kUnsupported,
                   fmt::format("tokenizer model '{}' (tokenizer.ggml.model) is not supported; offered are 'gpt2' "
                               "(byte-level BPE), 'llama' and 'gemma4' (BPE of SentencePiece)",
                               data.model));
  }
  KVANT_ASSIGN_OR_FAIL(NamedTextRules named, find_text_rules(data.pretokenizer));
  return TokenizerRules{.name = std::string(named.name),
                        .text = std::move(named.rules),
                        .whole_words_first = named.whole_words_first,
                        .adds_bos = named.adds_bos};
}

std::optional<std::pair<std::string, std::string>> split_merge(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) return std::nullopt;
  return std::pair(std::string(line.substr(0, space)), std::string(line.substr(space + 1)));
}

std::vector<std::pair<std::string, std::string>> merges_from_scores(const TokenizerData& data) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) ids.emplace(data.tokens[i], static_cast<int32_t>(i));
  struct Candidate {
    double score;
    size_t left_length;
    size_t right_length;
    std::string_view left;
    std::string_view right;
    int32_t left_id;
    int32_t right_id;
  };
  std::vector<Candidate> candidates;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const std::string_view token = data.tokens[id];
    // A token that stands twice merges once.
    if (const auto first = ids.find(token); first->second != static_cast<int32_t>(id)) continue;
    const size_t begin = candidates.size(), length = utf8_count(token);
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((token[cut] & 0xC0) == 0x80) continue;
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      const size_t left_length = utf8_count(left->first);
      candidates.push_back(
          {data.scores[id], left_length, length - left_length, left->first, right->first, left->second, right->second});
    }
    std::sort(candidates.begin() + static_cast<std::ptrdiff_t>(begin), candidates.end(),
              [](const Candidate& a, const Candidate& b) {
                return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
              });
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.left_length, a.right_length) > std::pair(b.left_length, b.right_length);
  });
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(candidates.size());
  for (const Candidate& c : candidates) merges.emplace_back(c.left, c.right);
  return merges;
}

}  // namespace kvant::engine
