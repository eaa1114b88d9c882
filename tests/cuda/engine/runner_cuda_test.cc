#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "engine/calibration/calibrate.h"
#include "kvant/core/device.h"
#include "ops/sampling.h"
#include "support/compare.h"
#include "support/engine_models.h"
#include "support/tolerance.h"

namespace kvant::engine {
namespace {

using kvant::test::relative_error;
using testing::TinyModel;

testing::TinyLlamaConfig config() {
  return {
      .layers = 3, .hidden = 256, .q_heads = 6, .kv_heads = 2, .head_dim = 64, .ffn = 384, .weights = GgufType::kBf16};
}

/// A pass observed is a pass run call by call.
class NoObserver : public LayerObserver {
 public:
  void observe(int32_t, int64_t, const float*, const float*, int64_t, const float*, int64_t) override {}
};

/// A tiny model on the CPU and on CUDA, with bf16 weights on both.
class CudaRunner : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    if (cuda_devices().empty()) return;
    cpu_ = std::make_unique<TinyModel>(config(), 4);
    cuda_ = std::make_unique<TinyModel>(config(), 4, true);
    profile_ =
        std::make_shared<const KvProfile>(calibrate(cpu_->runner(), testing::random_tokens(512, cpu_->vocabulary(), 9),
                                                    kCalibrationContext, cpu_->hash(), {})
                                              .value());
  }
  static void TearDownTestSuite() {
    cpu_.reset();
    cuda_.reset();
    profile_.reset();
  }
  void SetUp() override {
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device: GPU tests did not run";
  }

  static attn::KvFormat format() { return testing::spec(GetParam()).k_format; }

  /// Logits of decode rows of all sequences, a step at a time; row i of step s brings tokens[i][s * width ...].
  struct Batch {
    std::unique_ptr<KvCacheSet> cache;
    std::vector<SequenceId> ids;
  };
  static Batch start(TinyModel& model, int count, int prompt) {
    Batch batch{.cache = model.cache(GetParam(), profile_, 8), .ids = {}};
    for (int i = 0; i < count; ++i) {
      batch.ids.push_back(batch.cache->add_sequence().value());
      model.run(*batch.cache, batch.ids.back(),
                testing::random_tokens(prompt + 37 * i, model.vocabulary(), 100 + static_cast<uint32_t>(i)),
                RowPhase::kPrefill);
    }
    return batch;
  }
  static std::vector<float> step(TinyModel& model, Batch& batch, std::span<const int32_t> widths, uint32_t seed) {
    std::vector<std::vector<int32_t>> tokens;
    for (size_t i = 0; i < batch.ids.size(); ++i)
      tokens.push_back(testing::random_tokens(widths[i], model.vocabulary(), seed + 1000 * static_cast<uint32_t>(i)));
    std::vector<BatchRow> rows;
    size_t wanted = 0;
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      rows.push_back({.cache = batch.cache.get(),
                      .sequence = batch.ids[i],
                      .tokens = tokens[i],
                      .phase = RowPhase::kDecode,
                      .logits = LogitsWanted::kAll});
      wanted += tokens[i].size();
    }
    std::vector<float> logits(wanted * static_cast<size_t>(model.vocabulary()), NAN);
    const Status status = model.runner().forward(rows, logits.data());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logits;
  }

  static inline std::unique_ptr<TinyModel> cpu_, cuda_;
  static inline std::shared_ptr<const KvProfile> profile_;
};

TEST_P(CudaRunner, IsAsNearToAnExactCacheAsTheCpu) {
  constexpr size_t kPrompt = 300;
  const std::vector<int32_t> tokens = testing::random_tokens(kPrompt + 60, cpu_->vocabulary(), 5);
  const auto exact_cache = cpu_->cache("f32"), cpu_cache = cpu_->cache(GetParam(), profile_),
             cuda_cache = cuda_->cache(GetParam(), profile_);
  const std::vector<float> exact = cpu_->run_decoding(*exact_cache, tokens, kPrompt);
  const std::vector<float> cpu = cpu_->run_decoding(*cpu_cache, tokens, kPrompt);
  const std::vector<float> cuda = cuda_->run_decoding(*cuda_cache, tokens, kPrompt);
  // What the format costs on the CPU, and what bf16 activations add to it: independent, so squares add up.
  const double of_format = relative_error(cpu, exact), of_cuda = relative_error(cuda, exact);
  std::printf("%s: relative error of logits %.4f on the CPU, %.4f on CUDA, %.4f between them\n", GetParam(), of_format,
              of_cuda, relative_error(cuda, cpu));
  EXPECT_LE(of_cuda, 1.25 * std::hypot(of_format, kvant::test::cuda_activation_error()));

  const auto vocabulary = static_cast<size_t>(cpu_->vocabulary());
  int clear = 0;
  for (size_t row = 0; row < cpu.size() / vocabulary; ++row) {
    const std::span<const float> a = std::span(cpu).subspan(row * vocabulary, vocabulary),
                                 b = std::span(cuda).subspan(row * vocabulary, vocabulary);
    const int32_t best = ops::argmax(a);
    std::vector<float> others(a.begin(), a.end());
    others[static_cast<size_t>(best)] = -INFINITY;
    // Both logits of a pair can move by several times the typical error.
    const float margin = a[static_cast<size_t>(best)] - *std::max_element(others.begin(), others.end());
    double size = 0;
    for (const float logit : a) size += std::pow(double{logit}, 2);
    if (margin < 5 * std::hypot(of_format, of_cuda) * std::sqrt(size / static_cast<double>(vocabulary))) continue;
    ++clear;
    EXPECT_EQ(ops::argmax(b), best) << "row " << row;
  }
  if (format() == attn::KvFormat::kBf16) {
    EXPECT_GT(clear, 10);
  }
}

TEST_P(CudaRunner, ReplaysDecodesBitForBit) {
  NoObserver observer;
  for (const int count : {1, 2, 4}) {
    Batch captured = start(*cuda_, count, 250), called = start(*cuda_, count, 250);
    const std::vector<int32_t> widths(static_cast<size_t>(count), 1);
    const int64_t replayed = cuda_->runner().graph_stats().replayed;
    // Pages age on the way, in some steps and not in others.
    for (uint32_t s = 0; s < 40; ++s) {
      const std::vector<float> got = step(*cuda_, captured, widths, s);
      cuda_->runner().set_observer(&observer);
      const std::vector<float> want = step(*cuda_, called, widths, s);
      cuda_->runner().set_observer(nullptr);
      ASSERT_EQ(testing::largest_difference(got, want), 0.0f) << count << " requests, step " << s;
    }
    EXPECT_GE(cuda_->runner().graph_stats().replayed, replayed + 34);
  }
}

TEST_P(CudaRunner, ReplaysPaddedAndRaggedBatches) {
  NoObserver observer;
  const std::vector<int32_t> patterns[] = {{1, 1, 1}, {4, 4, 4}, {4, 1, 2}, {1, 3, 1, 2, 4}};
  for (const std::vector<int32_t>& widths : patterns) {
    const auto count = static_cast<int>(widths.size());
    Batch captured = start(*cuda_, count, 30), called = start(*cuda_, count, 30);
    for (uint32_t s = 0; s < 12; ++s) {
      const std::vector<float> got = step(*cuda_, captured, widths, s);
      cuda_->runner().set_observer(&observer);
      const std::vector<float> want = step(*cuda_, called, widths, s);
      cuda_->runner().set_observer(nullptr);
      ASSERT_LE(relative_error(got, want), kvant::test::cuda_batch_error(format())) << count << " requests, step " << s;
      // Rejected drafts: all but the first token of each block.
      for (Batch* batch : {&captured, &called})
        for (size_t i = 0; i < batch->ids.size(); ++i)
          batch->cache->rollback(batch->ids[i], batch->cache->length(batch->ids[i]) - widths[i] + 1);
    }
  }
}

TEST_P(CudaRunner, StaysInGraphsOnceEveryShapeWasSeen) {
  Batch batch = start(*cuda_, 3, 20);
  const std::vector<int32_t> plain = {1, 1, 1}, verify = {4, 2, 1};
  const auto run = [&](int steps) {
    for (int s = 0; s < steps; ++s) {
      const bool is_verify = s % 3 == 0;
      step(*cuda_, batch, is_verify ? verify : plain, static_cast<uint32_t>(s));
      if (!is_verify) continue;
      for (size_t i = 0; i < batch.ids.size(); ++i)
        batch.cache->rollback(batch.ids[i], batch.cache->length(batch.ids[i]) - verify[i] + 1);
    }
  };
  run(120);
  const GraphStats before = cuda_->runner().graph_stats();
  run(500);
  const GraphStats after = cuda_->runner().graph_stats();
  EXPECT_EQ(after.decode_misses(), before.decode_misses());
  EXPECT_EQ(after.replayed, before.replayed + 500);
  EXPECT_GT(after.captured, 0);
}

TEST_P(CudaRunner, GivesTheMostLikelyTokenInPlaceOfLogits) {
  for (TinyModel* model : {cpu_.get(), cuda_.get()}) {
    Batch with_logits = start(*model, 2, 40), with_tokens = start(*model, 2, 40);
    for (uint32_t s = 0; s < 5; ++s) {
      const std::vector<int32_t> widths = {1, 1};
      const std::vector<float> logits = step(*model, with_logits, widths, s);
      std::vector<int32_t> best(2, -1);
      std::vector<std::vector<int32_t>> tokens;
      std::vector<BatchRow> rows;
      for (uint32_t i = 0; i < 2; ++i) tokens.push_back(testing::random_tokens(1, model->vocabulary(), s + 1000 * i));
      for (size_t i = 0; i < 2; ++i)
        rows.push_back({.cache = with_tokens.cache.get(),
                        .sequence = with_tokens.ids[i],
                        .tokens = tokens[i],
                        .phase = RowPhase::kDecode,
                        .drawn = &best[i]});
      ASSERT_TRUE(model->runner().forward(rows, nullptr).ok());
      const auto vocabulary = static_cast<size_t>(model->vocabulary());
      for (size_t i = 0; i < 2; ++i)
        EXPECT_EQ(best[i], ops::argmax(std::span(logits).subspan(i * vocabulary, vocabulary)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaRunner,
                         ::testing::Values("bf16", "e4m3-plain", "e4m3", "nvfp4-plain", "nvfp4", "nvfp4:edges=40,0"));

TEST_F(CudaRunner, CalibratesLikeTheCpu) {
  const auto made = calibrate(cuda_->runner(), testing::random_tokens(512, cuda_->vocabulary(), 9), kCalibrationContext,
                              cuda_->hash(), {});
  ASSERT_TRUE(made) << made.error().to_string();
  for (size_t layer = 0; layer < made->layers.size(); ++layer) {
    const LayerProfile &got = made->layers[layer], &want = profile_->layers[layer];
    EXPECT_LE(relative_error(got.z, want.z), kvant::test::cuda_activation_error());
    EXPECT_LE(relative_error(got.g_v, want.g_v), kvant::test::cuda_activation_error());
  }
}

TEST_F(CudaRunner, RefusesCachesThatItsKernelsDoNotRead) {
  const auto cache = cuda_->runner().create_cache({.spec = testing::spec("f32"), .max_tokens = 64, .profile = nullptr});
  ASSERT_FALSE(cache);
  EXPECT_EQ(cache.error().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace kvant::engine
