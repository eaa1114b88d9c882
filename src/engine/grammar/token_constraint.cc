#include "engine/grammar/token_constraint.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/grammar/json_schema.h"

namespace kvant::engine {
namespace {

constexpr size_t kMaxKnownShapes = 16;
/// An automaton only grows: after so many answers a new one takes its place.
constexpr int32_t kMaxUses = 256;
constexpr size_t kMaxKeptSets = 512;
constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

const TokenSet& ShapeAutomaton::allowed(ByteAutomaton::State state) {
  if (const auto found = allowed_.find(state); found != allowed_.end()) return found->second;
  if (allowed_.size() >= kMaxKeptSets) allowed_.clear();
  return allowed_.emplace(state, tokens_->allowed(automaton_, state)).first->second;
}

void TokenConstraint::restrict_logits(std::span<float> logits) {
  const bool dead = state_ == ByteAutomaton::kDead;
  const TokenSet nothing(0);
  const TokenSet& allowed = dead ? nothing : shape_->allowed(state_);
  const bool may_end = dead || shape_->automaton().accepting(state_) || allowed.empty();
  const auto ends = tokenizer_.end_of_turn();
  const auto known = std::min(static_cast<int32_t>(logits.size()), tokenizer_.vocabulary_size());
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    const bool inside = !dead && id < known && allowed.contains(id);
    const bool is_end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (!(inside || (may_end && is_end))) logits[static_cast<size_t>(id)] = kNever;
  }
}

bool TokenConstraint::accept(int32_t token) {
  for (const char byte : tokenizer_.token_bytes(token))
    state_ = shape_->automaton().next(state_, static_cast<uint8_t>(byte));
  return !shape_->automaton().exhausted(state_);
}

Result<std::unique_ptr<TokenConstraint>> ConstraintFactory::make(const AnswerShape& shape) {
  const char kind = shape.kind == AnswerShape::Kind::kJsonSchema ? 's' : 'o';
  std::string key = kind + std::to_string(shape.before.size()) + ' ' + std::to_string(shape.after.size()) + ' ' +
                    shape.before + shape.after + shape.schema;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.key == key; });
  if (found != known_.end() && found->uses < kMaxUses) {
    ++found->uses;
    known_.splice(known_.begin(), known_, found);
    return std::make_unique<TokenConstraint>(known_.front().automaton, tokenizer_);
  }
  if (found != known_.end()) known_.erase(found);
  KVANT_ASSIGN_OR_FAIL(ByteProgram program, compile_answer_shape(shape));
  if (tokens_ == nullptr) tokens_ = std::make_shared<const TokenTable>(tokenizer_);
  known_.push_front({std::move(key), std::make_shared<ShapeAutomaton>(std::move(program), tokens_), 1});
  if (known_.size() > kMaxKnownShapes) known_.pop_back();
  return std::make_unique<TokenConstraint>(known_.front().automaton, tokenizer_);
}

}  // namespace kvant::engine
