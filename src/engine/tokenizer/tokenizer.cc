#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "engine/loader/printable.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/normaliser.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/utf8.h"

namespace kvant::engine {

namespace {

/// Control tokens of published models that end a turn or the text, for files whose ids name only one of them.
constexpr std::string_view kEndOfTurnNames[] = {"<|im_end|>",           "<|eot_id|>",      "<|eom_id|>",
                                                "<|endoftext|>",        "<|end_of_text|>", "<end_of_turn>",
                                                "<｜end▁of▁sentence｜>"};

using IdMap = std::unordered_map<std::string_view, int32_t>;

Result<std::optional<int32_t>> checked_id(std::string_view what, std::optional<int64_t> id, size_t vocabulary_size) {
  if (!id) return std::optional<int32_t>();
  if (*id < 0 || *id >= static_cast<int64_t>(vocabulary_size)) {
    return failure(StatusCode::kDataLoss, fmt::format("tokenizer: {} id {} is outside the vocabulary of {} tokens",
                                                      what, *id, vocabulary_size));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

/// "left right" as two tokens, line by line.
Result<std::vector<std::pair<std::string, std::string>>> split_merges(const std::vector<std::string>& merges) {
  std::vector<std::pair<std::string, std::string>> pairs;
  pairs.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    auto pair = split_merge(merges[rank]);
    if (!pair) {
      return failure(StatusCode::kDataLoss,
                     fmt::format("tokenizer: merge {} is '{}', needed are two tokens with a space between", rank,
                                 printable(merges[rank])));
    }
    pairs.push_back(*std::move(pair));
  }
  return pairs;
}

Result<MergeTable> make_merges(const std::vector<std::pair<std::string, std::string>>& merges, const IdMap& ids) {
  MergeTable table(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::string joined = left + right;
    std::array<int32_t, 3> found{};
    size_t i = 0;
    for (const std::string_view token : {std::string_view(left), std::string_view(right), std::string_view(joined)}) {
      const auto it = ids.find(token);
      if (it == ids.end()) {
        return failure(StatusCode::kDataLoss,
                       fmt::format("tokenizer: merge {} needs token '{}', which the vocabulary does not have", rank,
                                   printable(token)));
      }
      found[i++] = it->second;
    }
    table.insert(found[0], found[1], {static_cast<int32_t>(rank), found[2]});
  }
  return table;
}

/// Added tokens that are ordinary text: white space, one character, and tags of HTML. Text typed by a user may become
/// them; it never becomes a token that could steer the model.
bool is_ordinary_text(std::string_view token) {
  constexpr std::string_view kTags[] = {
      "a", "b", "blockquote", "caption", "code", "em",    "h1",    "h2", "h3",    "h4", "h5",    "h6", "i", "li", "ol",
      "p", "s", "strong",     "sub",     "sup",  "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul"};
  if (token.empty()) return false;
  if (utf8_step(token).length == token.size()) return true;
  std::string_view rest = token;
  while (!rest.empty() && (rest.starts_with(kUnderline) || leading_space(rest) > 0))
    rest.remove_prefix(rest.starts_with(kUnderline) ? std::string_view(kUnderline).size() : leading_space(rest));
  if (rest.empty()) return true;
  if (!token.starts_with('<') || !token.ends_with('>')) return false;
  token = token.substr(1, token.size() - 2);
  if (token.starts_with('/')) token.remove_prefix(1);
  return std::find(std::begin(kTags), std::end(kTags), token) != std::end(kTags);
}

/// "<0xE2>"
std::optional<uint8_t> byte_of_spelling(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return value;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerRules how, Pretokenizer splitter, MergeTable table)
      : rules(std::move(how)), pretokenizer(std::move(splitter)), merges(std::move(table)) {}

  void read_vocabulary(TokenizerData& data);
  Status add_tokens(const std::vector<AddedToken>& added);
  void encode_plain(std::string_view text, bool at_start, std::vector<int32_t>& out) const;
  void encode_run(std::string_view text, bool at_start, std::vector<int32_t>& out) const;
  void add_byte_symbols(std::string_view word, std::vector<int32_t>& ids) const;
  void add_character_symbols(std::string_view word, std::vector<int32_t>& ids) const;
  void add_unknown(std::vector<int32_t>& ids) const {
    if (unknown && !(rules.fuse_unknown && !ids.empty() && ids.back() == *unknown)) ids.push_back(*unknown);
  }

  TokenizerRules rules;
  Pretokenizer pretokenizer;
  MergeTable merges;
  std::vector<std::string> bytes;     ///< By id: what the token decodes to.
  std::vector<uint8_t> control;       ///< By id.
  std::vector<std::string> spelling;  ///< By id: as in the file.
  IdMap id_of_spelling;
  IdMap id_of_word;                       ///< Normal tokens by their symbols: bytes, or characters as spelled.
  std::array<int32_t, 256> id_of_byte{};  ///< -1: the vocabulary has no such byte.
  SpecialTokens specials;                 ///< Added tokens, all of them.
  SpecialTokens ordinary;                 ///< Those that plain text may hold.
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> unknown;
  bool add_bos = false;
  std::vector<int32_t> end_of_turn;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Result<Tokenizer> Tokenizer::from_data(TokenizerData data) {
  if (!data.rules) {
    KVANT_ASSIGN_OR_FAIL(data.rules, rules_of_names(data));
  }
  const size_t size = data.tokens.size();
  if (size == 0 || size > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return failure(StatusCode::kDataLoss, fmt::format("tokenizer: {} tokens; needed are 1 to 2^31 - 1", size));
  }
  if (!data.token_types.empty() && data.token_types.size() != size) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("tokenizer: {} token types for {} tokens", data.token_types.size(), size));
  }
  if (!data.merges.empty()) {
    KVANT_ASSIGN_OR_FAIL(data.merge_pairs, split_merges(data.merges));
  } else if (data.merge_pairs.empty() && !data.rules->byte_level) {
    if (data.scores.size() != size) {
      return failure(StatusCode::kDataLoss,
                     fmt::format("tokenizer: {} scores for {} tokens, and no merges", data.scores.size(), size));
    }
    if (std::any_of(data.scores.begin(), data.scores.end(), [](double score) { return std::isnan(score); }))
      return failure(StatusCode::kDataLoss, "tokenizer: a score is not a number");
    data.merge_pairs = merges_from_scores(data);
  }
  KVANT_ASSIGN_OR_FAIL(Pretokenizer pretokenizer, Pretokenizer::make(data.rules->text));

  IdMap ids;
  ids.reserve(size);
  for (size_t i = 0; i < size; ++i)
    if (!data.tokens[i].empty()) ids.emplace(data.tokens[i], static_cast<int32_t>(i));
  KVANT_ASSIGN_OR_FAIL(MergeTable merges, make_merges(data.merge_pairs, ids));

  auto impl = std::make_unique<Impl>(*std::move(data.rules), std::move(pretokenizer), std::move(merges));
  impl->id_of_spelling = std::move(ids);
  impl->read_vocabulary(data);
  if (data.added) KVANT_FAIL_IF_ERROR(impl->add_tokens(*data.added));

  KVANT_ASSIGN_OR_FAIL(impl->bos, checked_id("bos", data.bos, size));
  KVANT_ASSIGN_OR_FAIL(impl->eos, checked_id("eos", data.eos, size));
  KVANT_ASSIGN_OR_FAIL(impl->unknown, checked_id("unknown", data.unknown, size));
  impl->add_bos = impl->bos && data.add_bos.value_or(impl->rules.adds_bos);
  const auto ends_turn = [&](int32_t id) {
    auto& ends = impl->end_of_turn;
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  };
  if (impl->eos) ends_turn(*impl->eos);
  for (const int64_t id : data.more_end_ids) {
    KVANT_ASSIGN_OR_FAIL(const std::optional<int32_t> checked, checked_id("end-of-turn", id, size));
    ends_turn(*checked);
  }
  for (const std::string_view name : kEndOfTurnNames) {
    const auto it = impl->id_of_spelling.find(name);
    if (it != impl->id_of_spelling.end() && impl->control[it->second]) ends_turn(it->second);
  }
  return Tokenizer(std::move(impl));
}

void Tokenizer::Impl::read_vocabulary(TokenizerData& data) {
  // `id_of_spelling` holds views of these strings, which keep their places when the vector moves.
  spelling = std::move(data.tokens);
  const size_t size = spelling.size();
  bytes.reserve(size);
  control.assign(size, 0);
  id_of_byte.fill(-1);
  const auto type_of = [&](size_t i) {
    return data.token_types.empty() ? int64_t{TokenizerData::kNormal} : data.token_types[i];
  };
  for (size_t i = 0; i < size; ++i) {
    const int64_t type = type_of(i);
    const bool literal = type == TokenizerData::kControl || type == TokenizerData::kUserDefined;
    control[i] = type == TokenizerData::kControl || type == TokenizerData::kUnknown;
    std::optional<std::string> decoded;
    if (literal) {
      decoded = spelling[i];
    } else if (rules.byte_level) {
      decoded = bytes_from_spelling(spelling[i]);
    } else if (const auto byte = byte_of_spelling(spelling[i]);
               byte && (rules.byte_fallback || type == TokenizerData::kByte)) {
      decoded = std::string(1, static_cast<char>(*byte));
      if (id_of_byte[*byte] < 0) id_of_byte[*byte] = static_cast<int32_t>(i);
    }
    if (!decoded) decoded = rules.spaces_as_underlines ? replace_all(spelling[i], kUnderline, " ") : spelling[i];
    bytes.push_back(*std::move(decoded));
  }
  // Views into `bytes` and `spelling`, which do not change from here on.
  std::vector<AddedToken> added;
  for (size_t i = 0; i < size; ++i) {
    const int64_t type = type_of(i);
    if (type == TokenizerData::kControl || type == TokenizerData::kUserDefined) {
      added.push_back({.id = static_cast<int64_t>(i), .special = type == TokenizerData::kControl});
    } else if (type == TokenizerData::kNormal || type == TokenizerData::kByte) {
      const std::string_view word = rules.byte_level ? bytes[i] : spelling[i];
      const int32_t id = static_cast<int32_t>(i);
      if (word.empty()) continue;
      id_of_word.emplace(word, id);
      if (rules.byte_level && word.size() == 1 && id_of_byte[static_cast<uint8_t>(word[0])] < 0)
        id_of_byte[static_cast<uint8_t>(word[0])] = id;
    }
  }
  if (!data.added) data.added = std::move(added);
}

Status Tokenizer::Impl::add_tokens(const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) {
    KVANT_ASSIGN_OR_RETURN(const std::optional<int32_t> id, checked_id("added token", token.id, spelling.size()));
    const SpecialTokens::Flags flags{
        .strip_left = token.strip_left, .strip_right = token.strip_right, .single_word = token.single_word};
    const std::string_view text = spelling[static_cast<size_t>(*id)];
    specials.add(text, *id, flags);
    if (!token.special && is_ordinary_text(text)) ordinary.add(text, *id, flags);
  }
  return {};
}

void Tokenizer::Impl::add_byte_symbols(std::string_view word, std::vector<int32_t>& ids) const {
  for (const char byte : word) {
    const int32_t id = id_of_byte[static_cast<uint8_t>(byte)];
    if (id >= 0)
      ids.push_back(id);
    else
      add_unknown(ids);
  }
}

void Tokenizer::Impl::add_character_symbols(std::string_view word, std::vector<int32_t>& ids) const {
  while (!word.empty()) {
    const std::string_view character = word.substr(0, utf8_step(word).length);
    word.remove_prefix(character.size());
    if (const auto it = id_of_word.find(character); it != id_of_word.end()) {
      ids.push_back(it->second);
      continue;
    }
    const bool has_bytes = rules.byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
                             return id_of_byte[static_cast<uint8_t>(byte)] >= 0;
                           });
    if (has_bytes)
      add_byte_symbols(character, ids);
    else
      add_unknown(ids);
  }
}

/// Text without added tokens.
void Tokenizer::Impl::encode_run(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
  BpeScratch scratch;
  std::vector<int32_t> word_ids;
  pretokenizer.split(text, at_start, [&](std::string_view word) {
    if (rules.whole_words_first) {
      if (const auto it = id_of_word.find(word); it != id_of_word.end()) return out.push_back(it->second);
    }
    word_ids.clear();
    if (rules.byte_level)
      add_byte_symbols(word, word_ids);
    else
      add_character_symbols(word, word_ids);
    merge_symbols(merges, word_ids, scratch);
    out.insert(out.end(), word_ids.begin(), word_ids.end());
  });
}

void Tokenizer::Impl::encode_plain(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
  size_t done = 0;
  while (done < text.size()) {
    const SpecialTokens::Hit hit =
        ordinary.empty() ? SpecialTokens::Hit{text.size(), 0, -1, {}} : ordinary.find(text, done);
    std::string_view run = text.substr(done, hit.position - done);
    if (hit.flags.strip_left) run.remove_suffix(trailing_space(run));
    encode_run(run, at_start && done == 0, out);
    if (hit.length == 0) return;
    out.push_back(hit.id);
    done = hit.position + hit.length;
    if (hit.flags.strip_right) done += leading_space(text.substr(done));
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  impl_->encode_plain(text, true, out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_with_specials(std::string_view text) const {
  const PromptPiece piece{.text = std::string(text), .from_template = true};
  return encode(std::span(&piece, 1));
}

std::vector<int32_t> Tokenizer::encode(std::span<const PromptPiece> pieces) const {
  std::vector<int32_t> out;
  std::string plain;  // Text since the last special token, of any origin.
  bool at_start = true, strip = false;
  const auto add_plain = [&](std::string_view text) {
    if (strip && !text.empty()) {
      text.remove_prefix(leading_space(text));
      strip = text.empty();
    }
    plain += text;
  };
  for (const PromptPiece& piece : pieces) {
    const std::string_view text = piece.text;
    size_t done = 0;
    while (piece.from_template && done < text.size()) {
      const SpecialTokens::Hit hit = impl_->specials.find(text, done);
      if (hit.length == 0) break;
      add_plain(text.substr(done, hit.position - done));
      if (hit.flags.strip_left) plain.resize(plain.size() - trailing_space(plain));
      impl_->encode_plain(plain, at_start, out);
      plain.clear();
      out.push_back(hit.id);
      at_start = false;
      strip = hit.flags.strip_right;
      done = hit.position + hit.length;
    }
    add_plain(text.substr(done));
  }
  impl_->encode_plain(plain, at_start, out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<int32_t> ids = encode(text);
  if (add_bos()) ids.insert(ids.begin(), *bos());
  return ids;
}

std::vector<int32_t> Tokenizer::encode_chat(std::span<const PromptPiece> pieces) const {
  std::vector<int32_t> ids = encode(pieces);
  if (!add_bos()) return ids;
  while (ids.size() > 1 && ids[0] == *bos() && ids[1] == *bos()) ids.erase(ids.begin());
  if (ids.empty() || ids[0] != *bos()) ids.insert(ids.begin(), *bos());
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id, bool with_specials) const {
  if (id < 0 || id >= vocabulary_size()) return {};
  if (impl_->control[id] && !with_specials) return {};
  return impl_->bytes[id];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool with_specials) const {
  std::string out;
  for (const int32_t id : ids) out += token_bytes(id, with_specials);
  if (impl_->rules.strips_first_space && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

int32_t Tokenizer::vocabulary_size() const { return static_cast<int32_t>(impl_->bytes.size()); }
std::optional<int32_t> Tokenizer::bos() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
std::span<const int32_t> Tokenizer::end_of_turn() const { return impl_->end_of_turn; }
bool Tokenizer::is_control(int32_t id) const { return id >= 0 && id < vocabulary_size() && impl_->control[id] != 0; }
std::string_view Tokenizer::pretokenizer() const { return impl_->rules.name; }
std::string_view Tokenizer::pattern() const { return impl_->pretokenizer.pattern(); }

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto it = impl_->id_of_spelling.find(token);
  if (it == impl_->id_of_spelling.end()) return std::nullopt;
  return it->second;
}

}  // namespace kvant::engine
