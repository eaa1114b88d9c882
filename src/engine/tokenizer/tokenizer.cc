#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/tokenizer_data.h"

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

Result<MergeTable> make_merges(const std::vector<std::string>& merges, const IdMap& ids) {
  MergeTable table(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view line = merges[rank];
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) {
      return failure(
          StatusCode::kDataLoss,
          fmt::format("tokenizer: merge {} is '{}', needed are two tokens with a space between", rank, line));
    }
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(space + 1);
    const std::string joined = fmt::format("{}{}", left, right);
    std::array<int32_t, 3> found{};
    size_t i = 0;
    for (const std::string_view token : {left, right, std::string_view(joined)}) {
      const auto it = ids.find(token);
      if (it == ids.end()) {
        return failure(
            StatusCode::kDataLoss,
            fmt::format("tokenizer: merge {} needs token '{}', which the vocabulary does not have", rank, token));
      }
      found[i++] = it->second;
    }
    table.insert(found[0], found[1], {static_cast<int32_t>(rank), found[2]});
  }
  return table;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(Pretokenizer splitter, MergeTable table) : pretokenizer(std::move(splitter)), merges(std::move(table)) {}

  void encode_plain(std::string_view text, std::vector<int32_t>& out) const;

  Pretokenizer pretokenizer;
  MergeTable merges;
  std::vector<std::string> bytes;     ///< By id: what the token decodes to.
  std::vector<uint8_t> control;       ///< By id.
  std::vector<std::string> spelling;  ///< By id: as in the file.
  IdMap id_of_spelling;
  IdMap id_of_bytes;                      ///< Normal tokens.
  std::array<int32_t, 256> id_of_byte{};  ///< -1: the vocabulary has no such byte.
  SpecialTokens specials;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  bool add_bos = false;
  std::vector<int32_t> end_of_turn;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Result<Tokenizer> Tokenizer::from_data(TokenizerData data) {
  if (data.model != "gpt2") {
    return failure(
        StatusCode::kUnsupported,
        fmt::format("tokenizer model '{}' (tokenizer.ggml.model) is not supported; offered is 'gpt2' (byte-level BPE)",
                    data.model));
  }
  const size_t size = data.tokens.size();
  if (size == 0 || size > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return failure(StatusCode::kDataLoss, fmt::format("tokenizer: {} tokens; needed are 1 to 2^31 - 1", size));
  }
  if (!data.token_types.empty() && data.token_types.size() != size) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("tokenizer: {} token types for {} tokens", data.token_types.size(), size));
  }
  KVANT_ASSIGN_OR_FAIL(Pretokenizer pretokenizer, Pretokenizer::make(data.pretokenizer));

  IdMap ids;
  ids.reserve(size);
  for (size_t i = 0; i < size; ++i) ids.emplace(data.tokens[i], static_cast<int32_t>(i));
  KVANT_ASSIGN_OR_FAIL(MergeTable merges, make_merges(data.merges, ids));

  auto impl = std::make_unique<Impl>(std::move(pretokenizer), std::move(merges));
  impl->spelling = std::move(data.tokens);
  impl->id_of_spelling = std::move(ids);
  impl->bytes.reserve(size);
  impl->control.assign(size, 0);
  impl->id_of_byte.fill(-1);
  const auto type_of = [&](size_t i) {
    return data.token_types.empty() ? TokenizerData::kNormal : data.token_types[i];
  };
  for (size_t i = 0; i < size; ++i) {
    const bool literal = type_of(i) == TokenizerData::kControl || type_of(i) == TokenizerData::kUserDefined;
    impl->control[i] = type_of(i) == TokenizerData::kControl || type_of(i) == TokenizerData::kUnknown;
    std::optional<std::string> bytes;
    if (!literal) bytes = bytes_from_spelling(impl->spelling[i]);
    impl->bytes.push_back(bytes ? *std::move(bytes) : impl->spelling[i]);
  }
  // Views into `bytes` and `spelling`, which do not change from here on.
  for (size_t i = 0; i < size; ++i) {
    const int32_t id = static_cast<int32_t>(i);
    if (type_of(i) == TokenizerData::kControl || type_of(i) == TokenizerData::kUserDefined) {
      impl->specials.add(impl->spelling[i], id);
    } else if (type_of(i) == TokenizerData::kNormal || type_of(i) == TokenizerData::kByte) {
      const std::string_view bytes = impl->bytes[i];
      impl->id_of_bytes.emplace(bytes, id);
      if (bytes.size() == 1 && impl->id_of_byte[static_cast<uint8_t>(bytes[0])] < 0) {
        impl->id_of_byte[static_cast<uint8_t>(bytes[0])] = id;
      }
    }
  }

  KVANT_ASSIGN_OR_FAIL(impl->bos, checked_id("bos", data.bos, size));
  KVANT_ASSIGN_OR_FAIL(impl->eos, checked_id("eos", data.eos, size));
  impl->add_bos = impl->bos && data.add_bos.value_or(impl->pretokenizer.adds_bos_by_default());
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

void Tokenizer::Impl::encode_plain(std::string_view text, std::vector<int32_t>& out) const {
  BpeScratch scratch;
  std::vector<int32_t> word_ids;
  pretokenizer.split(text, [&](std::string_view word) {
    if (pretokenizer.whole_words_first()) {
      if (const auto it = id_of_bytes.find(word); it != id_of_bytes.end()) return out.push_back(it->second);
    }
    word_ids.clear();
    for (const char byte : word) {
      const int32_t id = id_of_byte[static_cast<uint8_t>(byte)];
      if (id >= 0) word_ids.push_back(id);
    }
    merge_symbols(merges, word_ids, scratch);
    out.insert(out.end(), word_ids.begin(), word_ids.end());
  });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  impl_->encode_plain(text, out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_with_specials(std::string_view text) const {
  const PromptPiece piece{.text = std::string(text), .from_template = true};
  return encode(std::span(&piece, 1));
}

std::vector<int32_t> Tokenizer::encode(std::span<const PromptPiece> pieces) const {
  std::vector<int32_t> out;
  std::string plain;  // Text since the last special token, of any origin.
  for (const PromptPiece& piece : pieces) {
    if (!piece.from_template) {
      plain += piece.text;
      continue;
    }
    const std::string_view text = piece.text;
    size_t done = 0;
    while (done < text.size()) {
      const SpecialTokens::Hit hit = impl_->specials.find(text, done);
      plain += text.substr(done, hit.position - done);
      done = hit.position + hit.length;
      if (hit.length == 0) break;
      impl_->encode_plain(plain, out);
      plain.clear();
      out.push_back(hit.id);
    }
  }
  impl_->encode_plain(plain, out);
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id, bool with_specials) const {
  if (id < 0 || id >= vocabulary_size()) return {};
  if (impl_->control[id] && !with_specials) return {};
  return impl_->bytes[id];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool with_specials) const {
  std::string out;
  for (const int32_t id : ids) out += token_bytes(id, with_specials);
  return out;
}

int32_t Tokenizer::vocabulary_size() const { return static_cast<int32_t>(impl_->bytes.size()); }
std::optional<int32_t> Tokenizer::bos() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
std::span<const int32_t> Tokenizer::end_of_turn() const { return impl_->end_of_turn; }
bool Tokenizer::is_control(int32_t id) const { return id >= 0 && id < vocabulary_size() && impl_->control[id] != 0; }
std::string_view Tokenizer::pretokenizer() const { return impl_->pretokenizer.name(); }
std::string_view Tokenizer::pattern() const { return impl_->pretokenizer.pattern(); }

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto it = impl_->id_of_spelling.find(token);
  if (it == impl_->id_of_spelling.end()) return std::nullopt;
  return it->second;
}

}  // namespace kvant::engine
