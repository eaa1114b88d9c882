#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "engine/models/dummy_model.h"
#include "ops/linear.h"
#include "support/compare.h"
#include "support/cuda_stream_test.h"
#include "support/engine_models.h"
#include "support/temp_dir.h"

namespace kvant::engine {
namespace {

constexpr int32_t kVocabulary = 512;
constexpr int kPrompt = 37, kTokens = 45;

/// A model whose matrices are e4m3, as a file would have them.
/// Weights that are wrong by as much as a value that is rounded to e4m3, each at random: what rounded activations make
/// of a product has the same size.
WeightView with_rounding_errors(WeightView weight, uint32_t seed) {
  weight.read = [=, read = std::move(weight.read), columns = weight.columns](int64_t begin, int64_t end, float* out) {
    read(begin, end, out);
    for (int64_t i = 0; i < (end - begin) * columns; ++i) {
      const auto bits = testing::tiny_llama::mix(seed + static_cast<uint32_t>(begin * columns + i));
      const float value = 1.0f + static_cast<float>(bits % 4096) / 4096.0f;
      out[i] *= e4m3_to_float(float_to_e4m3(value)) / value;
    }
  };
  return weight;
}

class CudaFp8Weights : public testing::CudaStreamTest, public ::testing::WithParamInterface<int> {
 protected:
  std::unique_ptr<Runner> runner(WeightFormat weights, bool errors = false) {
    const std::string json = fmt::format(R"({{"num_layers": {}, "hidden_size": 256, "num_q_heads": 6, "num_kv_heads": 2,
        "head_dim": 64, "ffn_size": 384, "vocabulary_size": 512, "context_limit": 256, "fp8_weights": true}})",
                                         GetParam());
    const auto* bytes = reinterpret_cast<const std::byte*>(json.data());
    auto source = open_dummy_model(dir_.write("shape.json", std::vector<std::byte>(bytes, bytes + json.size())));
    EXPECT_TRUE(source) << source.error().to_string();
    for (auto& layer : source->layers) {
      uint32_t seed = 0;
      for (WeightView* weight : {&layer.q, &layer.k, &layer.v, &layer.output, &layer.gate, &layer.up, &layer.down})
        if (errors) *weight = with_rounding_errors(std::move(*weight), seed += 1 << 20);
    }
    // 45 rows are no whole group of those that the library takes.
    auto out = Runner::create(
        *std::move(source),
        {.weights = weights, .max_batch_tokens = 45, .max_requests = 3, .cuda = true, .progress = {}}, pool_);
    EXPECT_TRUE(out) << out.error().to_string();
    return *std::move(out);
  }

  /// Logits of a prompt in one piece, then of steps.
  static std::vector<float> logits(Runner& runner) {
    const auto cache =
        runner.create_cache({.spec = testing::spec("bf16"), .max_tokens = 64, .profile = nullptr}).value();
    const SequenceId sequence = cache->add_sequence().value();
    const std::vector<int32_t> tokens = testing::random_tokens(kTokens, kVocabulary, 5);
    std::vector<float> out(size_t{kTokens} * kVocabulary);
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = done == 0 ? kPrompt : 1;
      const BatchRow row{.cache = cache.get(),
                         .sequence = sequence,
                         .tokens = std::span(tokens).subspan(done, count),
                         .phase = done == 0 ? RowPhase::kPrefill : RowPhase::kDecode,
                         .logits = LogitsWanted::kAll};
      const Status status = runner.forward({&row, 1}, out.data() + done * kVocabulary);
      EXPECT_TRUE(status.ok()) << status.to_string();
      done += count;
    }
    return out;
  }

  ThreadPool pool_{2};
  testing::TempDir dir_;
};

TEST_P(CudaFp8Weights, AreMultipliedAsTheyAreOnlyWhereNothingElseIsAskedFor) {
  auto context = ops::LinearContext::create(stream(), pool_);
  ASSERT_TRUE(context) << context.error().to_string();
  const bool multiplies = (*context)->multiplies_fp8(384, 256);
  const auto fp8 = runner(WeightFormat::kAuto), bf16 = runner(WeightFormat::kBf16);
  EXPECT_EQ(fp8->weights(), multiplies ? "fp8" : "bf16");
  EXPECT_EQ(bf16->weights(), "bf16");
  const std::vector<float> found = logits(*fp8), want = logits(*bf16);
  EXPECT_EQ(found, logits(*fp8)) << "steps replayed from graphs give the same";
  const double error = test::relative_error(found, want);
  if (!multiplies) {
    EXPECT_EQ(error, 0.0);
    return;
  }
  const double expected = test::relative_error(logits(*runner(WeightFormat::kBf16, true)), want);
  EXPECT_LE(error, 1.5 * expected);
  EXPECT_GE(error, 0.5 * expected) << "activations were not rounded";
  EXPECT_LT(fp8->weight_bytes(), bf16->weight_bytes());
}

INSTANTIATE_TEST_SUITE_P(Layers, CudaFp8Weights, ::testing::Values(1, 3));

}  // namespace
}  // namespace kvant::engine
