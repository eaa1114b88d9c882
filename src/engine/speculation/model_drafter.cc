#include "engine/speculation/model_drafter.h"

#include <algorithm>
#include <utility>

namespace kvant::engine {
namespace {

/// Keeps a draft's draw apart from those that verify it.
constexpr uint64_t kDraftSeedSalt = 0x6a09e667f3bcc909u;

ops::SamplingParams draft_sampling(const ops::SamplingParams& params) {
  ops::SamplingParams out = params;
  out.seed ^= kDraftSeedSalt;
  return out;
}

}  // namespace

ModelDrafter::ModelDrafter(Runner& runner, std::unique_ptr<KvCacheSet> cache)
    : runner_(runner), cache_(std::move(cache)) {
  KVANT_CHECK(!cache_->has_exact_edges());
}

void ModelDrafter::forget(uint64_t sequence) {
  const auto found = followers_.find(sequence);
  if (found == followers_.end()) return;
  cache_->remove_sequence(found->second.id);
  followers_.erase(found);
}

Status ModelDrafter::start(const DraftRequest& request) {
  const int64_t longest = std::ssize(request.tokens) + request.max_tokens;
  if (longest > cache_->max_tokens()) return {};  // Beyond the small model's context: no drafts.
  auto [place, is_new] = followers_.try_emplace(request.sequence);
  Follower& follower = place->second;
  if (is_new) {
    const Result<SequenceId> id = cache_->add_sequence();
    if (!id) {
      followers_.erase(place);
      return id.error();
    }
    follower.id = *id;
  }
  const auto differs =
      std::mismatch(follower.tokens.begin(), follower.tokens.end(), request.tokens.begin(), request.tokens.end());
  // The newest token is always run: what follows it is wanted.
  const auto keep = std::min(differs.first - follower.tokens.begin(), std::ssize(request.tokens) - 1);
  cache_->rollback(follower.id, static_cast<int32_t>(keep));
  follower.tokens.resize(static_cast<size_t>(keep));
  active_.push_back({.request = &request,
                     .follower = &follower,
                     .sampler = ops::Sampler(draft_sampling(*request.sampling)),
                     .tokens = {request.tokens.begin(), request.tokens.end()}});
  return {};
}

Status ModelDrafter::propose(std::span<const DraftRequest> requests) {
  active_.clear();
  for (const DraftRequest& request : requests) KVANT_RETURN_IF_ERROR(start(request));
  while (!active_.empty()) {
    if (Status status = run_step(); !status.ok()) {
      // Its sequences are in an unknown state.
      for (const Active& active : active_) forget(active.request->sequence);
      return status;
    }
    std::erase_if(active_, [](const Active& active) {
      return std::ssize(active.request->draft->tokens) >= active.request->max_tokens;
    });
  }
  return {};
}

Status ModelDrafter::run_step() {
  rows_.clear();
  for (const Active& active : active_) {
    const Follower& follower = *active.follower;
    const auto new_tokens = std::span(active.tokens).subspan(follower.tokens.size());
    rows_.push_back({.cache = cache_.get(),
                     .sequence = follower.id,
                     .tokens = new_tokens,
                     .phase = follower.tokens.empty()  ? RowPhase::kPrefill
                              : new_tokens.size() == 1 ? RowPhase::kDecode
                                                       : RowPhase::kExtend,
                     .logits = LogitsWanted::kLast});
  }
  const auto vocabulary = static_cast<size_t>(runner_.config().vocabulary_size);
  if (logits_.size() < active_.size() * vocabulary) logits_.resize(active_.size() * vocabulary);
  KVANT_RETURN_IF_ERROR(runner_.forward(rows_, logits_.data()));
  for (size_t i = 0; i < active_.size(); ++i) {
    active_[i].follower->tokens = active_[i].tokens;
    draw(active_[i], std::span(logits_).subspan(i * vocabulary, vocabulary));
  }
  return {};
}

void ModelDrafter::draw(Active& active, std::span<float> logits) {
  const ops::TokenHistory history{.tokens = active.tokens, .prompt_tokens = active.request->prompt_tokens};
  const auto step = static_cast<uint64_t>(active.tokens.size());
  Draft& draft = *active.request->draft;
  int32_t token = 0;
  if (active.sampler.is_greedy()) {
    token = active.sampler.sample(logits, history, step);
  } else {
    const std::span<const ops::Candidate> proposal = active.sampler.distribution(logits, history);
    token = active.sampler.draw(proposal, step);
    draft.proposals.emplace_back(proposal.begin(), proposal.end());
  }
  draft.tokens.push_back(token);
  active.tokens.push_back(token);
}

}  // namespace kvant::engine
