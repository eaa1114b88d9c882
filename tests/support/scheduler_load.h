#pragma once

#include "engine/calibration/calibrate.h"
#include "engine/scheduler/scheduler.h"
#include "support/engine_models.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

namespace kvant::testing {

/// One request of a load: what it asks for, and when it comes and goes.
struct LoadRequest {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 8;
  int32_t arrives = 0;       ///< Before this step.
  int32_t cancel_after = 0;  ///< Tokens; 0 = never.
  int32_t stop_after = 0;    ///< The client wants no more after this many tokens; 0 = never.
  std::vector<int32_t> end_tokens = {};
  ops::SamplingParams sampling = {};
  int32_t logprobs = -1;
  std::string salt = {};
};

/// What a request got.
struct LoadAnswer {
  std::vector<int32_t> tokens;
  std::vector<engine::TokenLogprobs> logprobs;
  engine::TokenResult result;
  bool finished = false;
};

/// A tiny model with a profile, and caches as a scheduler wants them.
class SchedulerModel {
 public:
  explicit SchedulerModel(int num_threads = 1, const TinyLlamaConfig& config = {}, bool cuda = false)
      : pool_(num_threads) {
    engine::ModelSource source = open_model(tiny_llama_gguf(config));
    const std::string hash = source.hash;
    runner_ = engine::Runner::create(std::move(source),
                                     {.weights = cuda ? engine::WeightFormat::kBf16 : engine::WeightFormat::kF32,
                                      .max_batch_tokens = 256,
                                      .max_requests = 16,
                                      .cuda = cuda,
                                      .progress = {}},
                                     pool_)
                  .value();
    const std::vector<int32_t> text = random_tokens(512, vocabulary(), 9);
    profile_ = std::make_shared<const engine::KvProfile>(
        engine::calibrate(*runner_, text, engine::kCalibrationContext, hash, {}).value());
  }

  engine::Runner& runner() { return *runner_; }
  int32_t vocabulary() const { return runner_->config().vocabulary_size; }
  std::unique_ptr<engine::KvCacheSet> cache(std::string_view text, int32_t max_sequences, bool prefix_cache,
                                            int64_t pool_tokens = 0) {
    return runner_
        ->create_cache({.spec = spec(text),
                        .max_sequences = max_sequences,
                        .max_tokens = runner_->config().context_limit,
                        .pool_tokens = pool_tokens,
                        .prefix_cache = prefix_cache,
                        .profile = profile_,
                        .batch_invariant = true})
        .value();
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<engine::Runner> runner_;
  std::shared_ptr<const engine::KvProfile> profile_;
};

inline engine::TokenRequest token_request(const LoadRequest& request, LoadAnswer& answer, engine::Scheduler& scheduler,
                                          engine::RequestId id) {
  return {.prompt = request.prompt,
          .sampling = request.sampling,
          .max_tokens = request.max_tokens,
          .end_tokens = request.end_tokens,
          .logprobs = request.logprobs,
          .salt = request.salt,
          .on_token =
              [&request, &answer, &scheduler, id](int32_t token, const engine::TokenLogprobs* logprobs) {
                answer.tokens.push_back(token);
                if (logprobs != nullptr) answer.logprobs.push_back(*logprobs);
                const auto count = static_cast<int32_t>(answer.tokens.size());
                if (count == request.cancel_after) scheduler.cancel(id);
                return count != request.stop_after;
              },
          .on_finish =
              [&answer](const engine::TokenResult& result) {
                EXPECT_FALSE(answer.finished) << "a request ends once";
                answer.finished = true;
                answer.result = result;
              }};
}

/// Runs a load to its end; `after_step` may look at the scheduler.
template <class AfterStep>
std::vector<LoadAnswer> run_load(engine::Scheduler& scheduler, const std::vector<LoadRequest>& load,
                                 AfterStep after_step) {
  std::vector<LoadAnswer> answers(load.size());
  engine::RequestId id = 0;
  const auto last = std::max_element(load.begin(), load.end(), [](auto& a, auto& b) { return a.arrives < b.arrives; });
  for (int32_t step = 0; step <= last->arrives || !scheduler.idle(); ++step) {
    for (size_t i = 0; i < load.size(); ++i) {
      if (load[i].arrives != step) continue;
      ++id;
      engine::TokenRequest request = token_request(load[i], answers[i], scheduler, id);
      const Status status = scheduler.check(request);
      EXPECT_TRUE(status.ok()) << status.to_string();
      scheduler.submit(id, std::move(request));
    }
    scheduler.step();
    after_step(scheduler);
    if (step > 20'000) {
      ADD_FAILURE() << "the load does not end";
      return answers;
    }
  }
  for (const LoadAnswer& answer : answers) EXPECT_TRUE(answer.finished);
  return answers;
}
inline std::vector<LoadAnswer> run_load(engine::Scheduler& scheduler, const std::vector<LoadRequest>& load) {
  return run_load(scheduler, load, [](engine::Scheduler&) {});
}

/// A prompt that repeats itself, so that prompt look-up finds something, after `common` tokens that all such prompts
/// share.
inline std::vector<int32_t> load_prompt(int32_t tokens, int32_t common, int32_t vocabulary, uint32_t seed) {
  std::vector<int32_t> out = random_tokens(common, vocabulary, 1000);
  const std::vector<int32_t> phrase = random_tokens(7 + static_cast<int32_t>(seed % 20), vocabulary, seed);
  while (static_cast<int32_t>(out.size()) < common + tokens) out.push_back(phrase[out.size() % phrase.size()]);
  return out;
}

/// Requests of all sizes that come at different times; some stop early, some are cancelled.
inline std::vector<LoadRequest> mixed_load(int32_t count, int32_t vocabulary, uint32_t seed, int32_t longest = 400) {
  std::vector<LoadRequest> load;
  for (uint32_t i = 0; i < static_cast<uint32_t>(count); ++i) {
    const auto draw = [&](uint32_t what, int32_t below) {
      return static_cast<int32_t>(tiny_llama::mix(seed * 977u + i * 31u + what) % static_cast<uint32_t>(below));
    };
    const int32_t kind = draw(0, 4);
    const int32_t tokens = 1 + draw(1, kind == 1 ? longest : 60);
    LoadRequest request{.prompt = load_prompt(tokens, kind == 0 ? 290 : 0, vocabulary, i),
                        .max_tokens = 1 + draw(3, 40),
                        .arrives = draw(4, 60)};
    if (draw(5, 4) == 0) request.stop_after = 1 + draw(6, request.max_tokens);
    if (draw(7, 5) == 0) request.cancel_after = 1 + draw(8, request.max_tokens);
    if (draw(9, 3) == 0) request.end_tokens = {draw(10, vocabulary), draw(11, vocabulary)};
    if (draw(12, 4) == 0) request.sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = i};
    load.push_back(std::move(request));
  }
  return load;
}

}  // namespace kvant::testing
