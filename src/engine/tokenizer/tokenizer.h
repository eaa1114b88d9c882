#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loader/gguf.h"
#include "kvant/core/status.h"

namespace kvant::engine {

struct PromptPiece;
struct TokenizerData;

/// BPE over a vocabulary, of bytes or of characters as SentencePiece has it. Immutable after load; every call is
/// thread-safe.
class Tokenizer {
 public:
  /// Reads tokenizer.ggml.* metadata. Unknown models and pre-tokenizers are refused by name.
  static Result<Tokenizer> from_gguf(const GgufFile& file);
  /// Reads tokenizer.json of a Hugging Face folder, and what tokenizer_config.json, special_tokens_map.json,
  /// generation_config.json and config.json say of BOS, EOS and the ends of a turn. What it does not know is refused by
  /// name.
  static Result<Tokenizer> from_folder(const std::filesystem::path& folder);
  /// The same from data in memory (tests, other sources).
  static Result<Tokenizer> from_data(TokenizerData data);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Plain text to ids. No BOS is added and no special token is recognised: text typed by a user stays text.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Text that comes from a template: special tokens in it become their ids.
  std::vector<int32_t> encode_with_specials(std::string_view text) const;

  /// A rendered prompt. Special tokens are recognised inside template pieces only; all other text is split as one, so
  /// that the ids are those of the joined text whenever message text holds no special token.
  std::vector<int32_t> encode(std::span<const PromptPiece> pieces) const;

  /// A prompt to complete: BOS where the file asks for it, then the text.
  std::vector<int32_t> encode_prompt(std::string_view text) const;
  /// A rendered prompt with one BOS, whether the template writes it, the file asks for it, or both.
  std::vector<int32_t> encode_chat(std::span<const PromptPiece> pieces) const;

  /// Bytes of one token, not always valid UTF-8 on their own. Control tokens give "" unless `with_specials`.
  std::string_view token_bytes(int32_t id, bool with_specials = false) const;
  std::string decode(std::span<const int32_t> ids, bool with_specials = false) const;

  int32_t vocabulary_size() const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  bool add_bos() const;  ///< The file asks for BOS before a plain prompt.
  /// Ids that end a turn: union of eos, eot and eom of the file and of well-known end-of-turn tokens in the vocabulary.
  std::span<const int32_t> end_of_turn() const;
  bool is_control(int32_t id) const;
  std::optional<int32_t> find(std::string_view token) const;
  /// Pre-tokenizer name and the regular expression in use, for `inspect`.
  std::string_view pretokenizer() const;
  std::string_view pattern() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns a stream of token bytes into text that is valid UTF-8 at every step: an incomplete character is held until it
/// is complete; bytes that can never become valid turn into U+FFFD.
class StreamDecoder {
 public:
  /// Appends bytes, returns the text that is now complete.
  std::string push(std::string_view bytes);
  /// What is still held, as U+FFFD per incomplete character. Call once at the end.
  std::string flush();

 private:
  std::string held_;
};

}  // namespace kvant::engine
