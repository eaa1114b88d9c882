#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/grammar/byte_automaton.h"
#include "engine/grammar/token_table.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

/// The automaton of one shape with the sets of tokens that its states allow. Used by one thread at a time.
class ShapeAutomaton {
 public:
  ShapeAutomaton(ByteProgram program, std::shared_ptr<const TokenTable> tokens)
      : automaton_(std::move(program)), tokens_(std::move(tokens)) {}

  ByteAutomaton& automaton() { return automaton_; }
  const TokenSet& allowed(ByteAutomaton::State state);

 private:
  ByteAutomaton automaton_;
  std::shared_ptr<const TokenTable> tokens_;
  std::unordered_map<ByteAutomaton::State, TokenSet> allowed_;
};

/// Keeps one answer inside its shape, token by token.
class TokenConstraint {
 public:
  /// Shared with other answers of the same shape, which one thread makes too.
  TokenConstraint(std::shared_ptr<ShapeAutomaton> shape, const Tokenizer& tokenizer)
      : shape_(std::move(shape)), tokenizer_(tokenizer), state_(shape_->automaton().start()) {}

  /// Sets the logits of all tokens that cannot come next to minus infinity. End-of-turn tokens can when the text is
  /// complete, or when nothing else can.
  void restrict_logits(std::span<float> logits);
  /// Takes a token; false when the text is complete and nothing can follow.
  bool accept(int32_t token);

 private:
  std::shared_ptr<ShapeAutomaton> shape_;
  const Tokenizer& tokenizer_;
  ByteAutomaton::State state_;
};

/// Makes constraints; shapes that come again are compiled once. Thread-safe.
class ConstraintFactory {
 public:
  /// `tokenizer` must outlive the factory and its constraints.
  explicit ConstraintFactory(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<std::unique_ptr<TokenConstraint>> make(const AnswerShape& shape);

 private:
  struct Known {
    std::string key;
    std::shared_ptr<ShapeAutomaton> automaton;
    int32_t uses = 0;
  };
  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const TokenTable> tokens_;  ///< Made when first needed.
  std::list<Known> known_;                    ///< Newest first.
};

}  // namespace kvant::engine
