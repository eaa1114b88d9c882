#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/speculation/ngram_drafter.h"
#include "kvant/core/device.h"
#include "kvant/core/thread_pool.h"
#include "ops/decoder_ops.h"
#include "ops/logit_changes.h"
#include "support/cuda_stream_test.h"
#include "support/scheduler_load.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

/// Biases, penalties and log probabilities on CUDA beside the CPU's.
class CudaChangedDraw : public kvant::testing::CudaStreamTest {};

TEST_F(CudaChangedDraw, GivesTheBitsAndTokensOfTheCpu) {
  constexpr int32_t kRows = 24;
  ThreadPool pool(1);
  const Stream cpu_stream = Stream::on_cpu(pool);
  const DeviceSampler cpu = DeviceSampler::create(kRows, cpu_stream).value();
  auto cuda = DeviceSampler::create(kRows, stream());
  ASSERT_TRUE(cuda) << cuda.error().to_string();
  for (const int32_t vocabulary : {40, 1024, 1025, 32007, 151936}) {
    std::vector<float> logits = test::random_values(int64_t{kRows} * vocabulary, static_cast<uint32_t>(vocabulary));
    for (float& logit : logits) logit *= 3.0f;
    logits[5] = -std::numeric_limits<float>::infinity();
    // Equal alternatives come by id.
    for (int32_t i = 0; i < vocabulary; i += 3) logits[static_cast<size_t>(vocabulary + i)] = 0.5f;
    std::vector<Draw> draws(kRows);
    std::vector<LogitChange> changes;
    std::vector<int32_t> indices(kRows);
    for (int32_t row = 0; row < kRows; ++row) {
      indices[static_cast<size_t>(row)] = (row * 7) % kRows;
      Draw& draw = draws[static_cast<size_t>(row)];
      draw = {.seed = static_cast<uint64_t>(row),
              .repetition_penalty = 1.0f + 0.13f * static_cast<float>(row % 5),
              .presence_penalty = 0.21f * static_cast<float>(row % 3),
              .frequency_penalty = 0.17f * static_cast<float>(row % 4),
              .first_change = static_cast<int32_t>(changes.size()),
              .num_changes = row % 6 == 0 ? 0 : std::min(vocabulary, 100 * row),
              .alternatives = row % 4 == 3 ? -1 : (row * 5) % (kMaxAlternatives + 1)};
      for (int32_t i = 0; i < draw.num_changes; ++i)
        changes.push_back({.token = i == 7 ? vocabulary + 3 : (i * 17 + row) % vocabulary,
                           .bias = i % 9 == 0 ? 1.7f : 0.0f,
                           .occurrences = i % 11 - 1});
    }
    std::vector<float> cpu_logits = logits;
    std::vector<int32_t> cpu_out(kRows, -1);
    std::vector<DrawnLogprobs> cpu_logprobs(kRows);
    ASSERT_TRUE(cpu.run({.logits = cpu_logits.data(),
                         .num_rows = kRows,
                         .vocabulary = vocabulary,
                         .draws = draws.data(),
                         .row_indices = indices.data(),
                         .out = cpu_out.data(),
                         .changes = changes.data(),
                         .logprobs = cpu_logprobs.data()},
                        cpu_stream)
                    .ok());
    const DeviceBuffer device_logits = send(logits), device_draws = send(draws), device_changes = send(changes),
                       device_indices = send(indices), device_out = send(std::vector<int32_t>(kRows, -1)),
                       device_logprobs = send(std::vector<DrawnLogprobs>(kRows));
    const Status status = cuda->run({.logits = device_logits.as<float>(),
                                     .num_rows = kRows,
                                     .vocabulary = vocabulary,
                                     .draws = device_draws.as<Draw>(),
                                     .row_indices = device_indices.as<int32_t>(),
                                     .out = device_out.as<int32_t>(),
                                     .changes = device_changes.as<LogitChange>(),
                                     .logprobs = device_logprobs.as<DrawnLogprobs>()},
                                    stream());
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::vector<float> got = read<float>(device_logits);
    EXPECT_EQ(std::memcmp(got.data(), cpu_logits.data(), got.size() * sizeof(float)), 0) << vocabulary;
    EXPECT_EQ(read<int32_t>(device_out), cpu_out) << vocabulary;
    const std::vector<DrawnLogprobs> logprobs = read<DrawnLogprobs>(device_logprobs);
    for (size_t row = 0; row < kRows; ++row) {
      EXPECT_FLOAT_EQ(logprobs[row].drawn, cpu_logprobs[row].drawn) << vocabulary << " row " << row;
      for (size_t i = 0; i < static_cast<size_t>(kMaxAlternatives); ++i) {
        EXPECT_EQ(logprobs[row].tokens[i], cpu_logprobs[row].tokens[i]) << vocabulary << " row " << row;
        EXPECT_FLOAT_EQ(logprobs[row].logprobs[i], cpu_logprobs[row].logprobs[i]) << vocabulary << " row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace kvant::ops

namespace kvant::engine {
namespace {

using testing::LoadRequest;

/// Requests with every kind of change to their logits, some of which repeat themselves, so that drafts are found.
std::vector<LoadRequest> changed_load(int32_t vocabulary, int32_t logprobs) {
  std::vector<LoadRequest> load;
  for (uint32_t i = 0; i < 6; ++i) {
    LoadRequest request{
        .prompt = testing::load_prompt(40, 0, vocabulary, i), .max_tokens = 40, .arrives = static_cast<int32_t>(i)};
    if (i % 3 != 0) request.sampling.repetition_penalty = 1.05f;
    if (i % 2 == 0) request.sampling.frequency_penalty = 0.02f;
    if (i == 4) request.sampling.logit_bias = {{7, 1.0f}, {9, -INFINITY}};
    request.logprobs = logprobs;
    load.push_back(std::move(request));
  }
  return load;
}

TEST(CudaScheduler, ChangesLogitsOnTheDeviceAsOnTheHost) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device: GPU tests did not run";
  testing::SchedulerModel model(
      2, {.hidden = 256, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 384, .weights = GgufType::kBf16}, true);
  NgramDrafter drafter;
  for (Drafter* drafts : {static_cast<Drafter*>(nullptr), static_cast<Drafter*>(&drafter)}) {
    const auto answers_of = [&](int32_t logprobs) {
      const auto cache = model.cache("bf16", 6, false);
      Scheduler scheduler(model.runner(), *cache,
                          {.max_sequences = 6, .step_tokens = 128, .drafter = drafts, .max_drafts = 3});
      return testing::run_load(scheduler, changed_load(model.vocabulary(), logprobs));
    };
    // More alternatives than the device gives: logits go to the host.
    const auto on_host = answers_of(ops::kMaxAlternatives + 1), on_device = answers_of(ops::kMaxAlternatives);
    for (size_t i = 0; i < on_host.size(); ++i) {
      EXPECT_EQ(on_device[i].tokens, on_host[i].tokens) << "request " << i;
      ASSERT_EQ(on_device[i].logprobs.size(), on_host[i].logprobs.size());
      for (size_t t = 0; t < on_host[i].logprobs.size(); ++t) {
        const TokenLogprobs &got = on_device[i].logprobs[t], &want = on_host[i].logprobs[t];
        EXPECT_EQ(got.chosen.token, want.chosen.token);
        EXPECT_FLOAT_EQ(got.chosen.logprob, want.chosen.logprob);
        ASSERT_EQ(got.top.size(), static_cast<size_t>(ops::kMaxAlternatives));
        for (size_t rank = 0; rank < got.top.size(); ++rank) {
          EXPECT_EQ(got.top[rank].token, want.top[rank].token);
          EXPECT_FLOAT_EQ(got.top[rank].logprob, want.top[rank].logprob);
        }
      }
    }
    // Without log probabilities too.
    const auto plain = answers_of(-1);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].tokens, on_host[i].tokens) << "request " << i;
  }
}

}  // namespace
}  // namespace kvant::engine
