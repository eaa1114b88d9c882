#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

namespace kvant::ops {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool more_likely(float weight_a, int32_t token_a, float weight_b, int32_t token_b) {
  return weight_a != weight_b ? weight_a > weight_b : token_a < token_b;
}

Status out_of_range(const char* name, float value, const char* need) {
  return {StatusCode::kInvalidArgument, fmt::format("{} {}: needs {}", name, value, need)};
}

}  // namespace

Status validate(const SamplingParams& params) {
  // Written so that NaN fails.
  if (!(params.temperature >= 0.0f && params.temperature <= 100.0f)) {
    return out_of_range("temperature", params.temperature, "0 (most likely token) to 100");
  }
  if (params.top_k < 0) {
    return {StatusCode::kInvalidArgument, fmt::format("top-k {}: needs 0 (all) or more", params.top_k)};
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f))
    return out_of_range("top-p", params.top_p, "above 0, up to 1 (all)");
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) return out_of_range("min-p", params.min_p, "0 (none) to 1");
  if (!(params.repetition_penalty > 0.0f && params.repetition_penalty <= 100.0f)) {
    return out_of_range("repetition penalty", params.repetition_penalty, "above 0, up to 100; 1 is none");
  }
  if (!(params.presence_penalty >= -100.0f && params.presence_penalty <= 100.0f))
    return out_of_range("presence penalty", params.presence_penalty, "-100 to 100; 0 is none");
  if (!(params.frequency_penalty >= -100.0f && params.frequency_penalty <= 100.0f))
    return out_of_range("frequency penalty", params.frequency_penalty, "-100 to 100; 0 is none");
  for (const LogitBias& item : params.logit_bias) {
    if (!(item.bias < std::numeric_limits<float>::infinity()))
      return out_of_range("logit bias", item.bias, "a number, or minus infinity to forbid a token");
    if (item.token < 0) {
      return {StatusCode::kInvalidArgument, fmt::format("logit bias of token {}: needs a token id", item.token)};
    }
  }
  return {};
}

Draw draw_of(const SamplingParams& params, uint64_t step, int32_t alternatives) {
  return {.seed = params.seed,
          .step = step,
          .temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .presence_penalty = params.presence_penalty,
          .frequency_penalty = params.frequency_penalty,
          .alternatives = alternatives};
}

int32_t argmax(std::span<const float> logits) {
  int32_t best = 0;
  float best_logit = kNever;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > best_logit)) continue;
    best = static_cast<int32_t>(i);
    best_logit = logits[i];
  }
  return best;
}

void log_softmax(std::span<const float> logits, std::span<float> out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  for (size_t i = 0; i < logits.size(); ++i) out[i] = static_cast<float>(logits[i] - log_sum);
}

std::vector<int32_t> most_likely(std::span<const float> logprobs, int32_t count) {
  std::vector<int32_t> tokens(logprobs.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end = tokens.begin() + std::min<std::ptrdiff_t>(count, std::ssize(tokens));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](int32_t a, int32_t b) {
    return more_likely(logprobs[static_cast<size_t>(a)], a, logprobs[static_cast<size_t>(b)], b);
  });
  tokens.erase(end, tokens.end());
  return tokens;
}

int32_t Sampler::sample(std::span<float> logits, const TokenHistory& history, uint64_t step) {
  if (is_greedy()) {
    adjust(logits, history);
    return argmax(logits);
  }
  return draw(distribution(logits, history), step);
}

std::span<const Candidate> Sampler::distribution(std::span<float> logits, const TokenHistory& history) {
  adjust(logits, history);
  if (is_greedy()) {
    candidates_.assign(1, {1.0f, argmax(logits)});
    return candidates_;
  }
  gather_candidates(logits);
  if (params_.top_p < 1.0f) keep_top_p();
  // Logits without a number leave no candidate.
  if (candidates_.empty()) candidates_.assign(1, {1.0f, argmax(logits)});
  return candidates_;
}

int32_t Sampler::pick(std::span<const Candidate> candidates, double unit) {
  double sum = 0.0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  double remaining = unit * sum;
  for (const Candidate& candidate : candidates) {
    remaining -= candidate.weight;
    if (remaining < 0.0) return candidate.token;
  }
  // Rounding may leave a sliver behind the last one.
  return candidates.back().token;
}

int32_t Sampler::verify(std::span<float> logits, const TokenHistory& history, int32_t draft,
                        std::span<const Candidate> proposal, uint64_t step, bool& accepted) {
  // Keeps the two draws apart from each other and from those of `sample`.
  constexpr uint64_t kAcceptSalt = 0x5bf03635f0935ad1u, kRestSalt = 0xc2b2ae3d27d4eb4fu;
  const std::span<const Candidate> target = distribution(logits, history);
  const auto sum_of = [](std::span<const Candidate> candidates) {
    double sum = 0.0;
    for (const Candidate& candidate : candidates) sum += candidate.weight;
    return sum;
  };
  const double p_sum = sum_of(target), q_sum = sum_of(proposal);
  proposed_.resize(std::max(proposed_.size(), logits.size()), 0.0f);
  for (const Candidate& candidate : proposal) proposed_[static_cast<size_t>(candidate.token)] = candidate.weight;
  const auto q_of = [&](int32_t token) { return proposed_[static_cast<size_t>(token)] / q_sum; };

  double p_draft = 0.0;
  rest_.clear();
  for (const Candidate& candidate : target) {
    const double p = candidate.weight / p_sum;
    if (candidate.token == draft) p_draft = p;
    if (const double beyond = p - q_of(candidate.token); beyond > 0.0)
      rest_.push_back({static_cast<float>(beyond), candidate.token});
  }
  accepted = random_unit(params_.seed ^ kAcceptSalt, step) * q_of(draft) < p_draft;
  for (const Candidate& candidate : proposal) proposed_[static_cast<size_t>(candidate.token)] = 0.0f;
  if (accepted) return draft;
  // Equal distributions differ by rounding only.
  if (rest_.empty()) return pick(target, random_unit(params_.seed ^ kRestSalt, step));
  return pick(rest_, random_unit(params_.seed ^ kRestSalt, step));
}

void Sampler::adjust(std::span<float> logits, const TokenHistory& history) {
  for (const LogitBias& item : params_.logit_bias)
    if (static_cast<size_t>(item.token) < logits.size()) logits[static_cast<size_t>(item.token)] += item.bias;
  const bool counts_matter = params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
  if (params_.repetition_penalty == 1.0f && !counts_matter) return;
  // Every token that occurs gets a mark, and a count of its occurrences in the answer.
  constexpr int32_t kMark = 1 << 30;
  counts_.resize(std::max(counts_.size(), logits.size()), 0);
  const auto in_vocabulary = [&](int32_t token) { return token >= 0 && static_cast<size_t>(token) < logits.size(); };
  for (size_t i = 0; i < history.tokens.size(); ++i) {
    if (!in_vocabulary(history.tokens[i])) continue;
    int32_t& count = counts_[static_cast<size_t>(history.tokens[i])];
    count |= kMark;
    if (static_cast<int64_t>(i) >= history.prompt_tokens) ++count;
  }
  for (const int32_t token : history.tokens) {
    if (!in_vocabulary(token) || counts_[static_cast<size_t>(token)] == 0) continue;
    const int32_t count = std::exchange(counts_[static_cast<size_t>(token)], 0) & ~kMark;
    float& logit = logits[static_cast<size_t>(token)];
    logit = penalised_logit(logit, count, params_);
  }
}

void Sampler::gather_candidates(std::span<const float> logits) {
  candidates_.clear();
  const float largest = logits[static_cast<size_t>(argmax(logits))];
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = std::exp((logits[i] - largest) / params_.temperature);
    // False for NaN too.
    if (weight > 0.0f && weight >= params_.min_p) candidates_.push_back({weight, static_cast<int32_t>(i)});
  }
  const auto top_k = static_cast<size_t>(params_.top_k);
  if (top_k == 0 || top_k >= candidates_.size()) return;
  std::nth_element(
      candidates_.begin(), candidates_.begin() + params_.top_k - 1, candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return more_likely(a.weight, a.token, b.weight, b.token); });
  candidates_.resize(top_k);
}

void Sampler::keep_top_p() {
  double sum = 0.0;
  for (const Candidate& candidate : candidates_) sum += candidate.weight;
  // A heap finds the few most likely tokens without sorting the vocabulary.
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return more_likely(b.weight, b.token, a.weight, a.token);
  };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto kept = candidates_.end();
  for (double kept_sum = 0.0; kept != candidates_.begin() && kept_sum < params_.top_p * sum;) {
    std::pop_heap(candidates_.begin(), kept--, less_likely);
    kept_sum += kept->weight;
  }
  candidates_.erase(candidates_.begin(), kept);
}

}  // namespace kvant::ops
