#pragma once

#include "engine/loader/gguf.h"
#include "engine/models/model_source.h"
#include "engine/runner/runner.h"
#include "kvant/core/thread_pool.h"
#include "support/tiny_llama.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::testing {

/// A GGUF image as an open model; the source keeps the bytes alive.
inline engine::ModelSource open_model(std::vector<std::byte> bytes) {
  struct Owner {
    std::vector<std::byte> bytes;
    std::shared_ptr<const engine::GgufFile> file;
  };
  auto owner = std::make_shared<Owner>();
  owner->bytes = std::move(bytes);
  owner->file = std::make_shared<const engine::GgufFile>(engine::GgufFile::parse(owner->bytes, "tiny").value());
  engine::ModelSource source = engine::open_gguf_model(owner->file).value();
  source.owner = owner;
  return source;
}

inline attn::KvSpec spec(std::string_view text) { return attn::parse_kv_spec(text).value(); }

inline std::vector<int32_t> random_tokens(int32_t count, int32_t vocabulary, uint32_t seed) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i)
    out.push_back(static_cast<int32_t>(tiny_llama::mix(seed * 7919u + static_cast<uint32_t>(i)) %
                                       static_cast<uint32_t>(vocabulary)));
  return out;
}

/// A tiny model with its threads, and short ways to run it.
class TinyModel {
 public:
  explicit TinyModel(const TinyLlamaConfig& config = {}, int num_threads = 1, bool cuda = false)
      : config_(config), pool_(num_threads) {
    engine::ModelSource source = open_model(tiny_llama_gguf(config));
    hash_ = source.hash;
    runner_ = engine::Runner::create(std::move(source),
                                     {.weights = cuda ? engine::WeightFormat::kBf16 : engine::WeightFormat::kF32,
                                      .max_batch_tokens = 512,
                                      .max_requests = 8,
                                      .cuda = cuda,
                                      .progress = {}},
                                     pool_)
                  .value();
  }

  engine::Runner& runner() { return *runner_; }
  int32_t vocabulary() const { return config_.vocabulary; }
  const std::string& hash() const { return hash_; }

  std::unique_ptr<engine::KvCacheSet> cache(std::string_view text,
                                            std::shared_ptr<const engine::KvProfile> profile = nullptr,
                                            int32_t max_sequences = 4, int32_t max_tokens = 1024) {
    auto result = runner_->create_cache(
        {.spec = spec(text), .max_sequences = max_sequences, .max_tokens = max_tokens, .profile = std::move(profile)});
    EXPECT_TRUE(result) << result.error().to_string();
    return std::move(result).value();
  }

  /// Logits of the wanted rows, one after the other.
  std::vector<float> run(engine::KvCacheSet& cache, engine::SequenceId sequence, std::span<const int32_t> tokens,
                         engine::RowPhase phase, engine::LogitsWanted wanted = engine::LogitsWanted::kLast) {
    const size_t rows = wanted == engine::LogitsWanted::kAll ? tokens.size() : 1;
    std::vector<float> logits(rows * static_cast<size_t>(vocabulary()));
    const engine::BatchRow row{
        .cache = &cache, .sequence = sequence, .tokens = tokens, .phase = phase, .logits = wanted};
    const Status status = runner_->forward({&row, 1}, logits.data());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logits;
  }

  /// A prompt in one piece, then the other tokens as decode steps; logits of the last prompt token and every step.
  std::vector<float> run_decoding(engine::KvCacheSet& cache, std::span<const int32_t> tokens, size_t prompt_tokens) {
    const engine::SequenceId sequence = cache.add_sequence().value();
    std::vector<float> out = run(cache, sequence, tokens.first(prompt_tokens), engine::RowPhase::kPrefill);
    for (size_t i = prompt_tokens; i < tokens.size(); ++i) {
      const std::vector<float> step = run(cache, sequence, tokens.subspan(i, 1), engine::RowPhase::kDecode);
      out.insert(out.end(), step.begin(), step.end());
    }
    cache.remove_sequence(sequence);
    return out;
  }

 private:
  TinyLlamaConfig config_;
  std::string hash_;
  ThreadPool pool_;
  std::unique_ptr<engine::Runner> runner_;
};

inline float largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts as a difference
  }
  return largest;
}

/// Mean KL divergence of rows of logits from a baseline.
inline double mean_divergence(std::span<const float> baseline, std::span<const float> logits, size_t vocabulary) {
  const auto log_sum_exp = [](std::span<const float> row) {
    double largest = -INFINITY, sum = 0;
    for (const float x : row) largest = std::max(largest, static_cast<double>(x));
    for (const float x : row) sum += std::exp(x - largest);
    return largest + std::log(sum);
  };
  double total = 0;
  const size_t rows = baseline.size() / vocabulary;
  for (size_t r = 0; r < rows; ++r) {
    const auto a = baseline.subspan(r * vocabulary, vocabulary), b = logits.subspan(r * vocabulary, vocabulary);
    const double norm_a = log_sum_exp(a), norm_b = log_sum_exp(b);
    for (size_t i = 0; i < vocabulary; ++i)
      total += std::exp(a[i] - norm_a) * ((a[i] - norm_a) - (b[i] - norm_b)) / static_cast<double>(rows);
  }
  return total;
}

}  // namespace kvant::testing
