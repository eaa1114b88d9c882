#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace kvant::ops {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// A bijection that spreads every input bit over the whole word.
uint64_t mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

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
  return {};
}

double random_unit(uint64_t seed, uint64_t step) {
  // Two rounds with an odd constant between, so that neighbouring seeds and steps share nothing.
  const uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15u) + (step + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
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

int32_t Sampler::sample(std::span<float> logits, std::span<const int32_t> seen, uint64_t step) {
  penalise(logits, seen);
  if (params_.temperature == 0.0f || params_.top_k == 1) return argmax(logits);
  gather_candidates(logits);
  if (params_.top_p < 1.0f) keep_top_p();

  double sum = 0.0;
  for (const Candidate& candidate : candidates_) sum += candidate.weight;
  double remaining = random_unit(params_.seed, step) * sum;
  for (const Candidate& candidate : candidates_) {
    remaining -= candidate.weight;
    if (remaining < 0.0) return candidate.token;
  }
  // Rounding may leave a sliver behind the last one, and logits without a number leave no candidate.
  return candidates_.empty() ? argmax(logits) : candidates_.back().token;
}

void Sampler::penalise(std::span<float> logits, std::span<const int32_t> seen) {
  if (params_.repetition_penalty == 1.0f) return;
  penalised_.assign(logits.size(), false);
  for (const int32_t token : seen) {
    const auto index = static_cast<size_t>(token);
    if (token < 0 || index >= logits.size() || penalised_[index]) continue;
    penalised_[index] = true;
    float& logit = logits[index];
    logit = logit > 0.0f ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
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
