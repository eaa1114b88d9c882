#include "support/cuda_stream_test.h"
#include "support/family_golden.h"
#include "support/tolerance.h"

#include <cmath>

namespace kvant::engine {
namespace {

using testing::CheckpointDir;
using testing::FamilyGolden;

/// What transformers says of tiny models of every family, run on CUDA: bf16 activations and a bf16 cache.
class CudaFamilyGoldens : public testing::CudaStreamTest,
                          public ::testing::WithParamInterface<std::filesystem::path> {};

TEST_P(CudaFamilyGoldens, StayCloseToTransformers) {
  const FamilyGolden golden(GetParam());
  const CheckpointDir dir;
  golden.write_folder(dir);
  ThreadPool pool(2);
  auto runner =
      Runner::create(golden.open_folder(dir), {.weights = WeightFormat::kBf16, .cuda = true, .progress = {}}, pool);
  ASSERT_TRUE(runner) << runner.error().to_string();
  const auto cache =
      (*runner)->create_cache({.spec = testing::spec("bf16"), .max_tokens = 64, .profile = nullptr}).value();
  const SequenceId sequence = cache->add_sequence().value();
  const std::vector<int32_t> tokens = golden.tokens();
  std::vector<float> logits(golden.prompt_tokens() * static_cast<size_t>(golden.vocabulary()));
  double difference = 0, total = 0;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = done == 0 ? golden.prompt_tokens() : 1;
    const BatchRow row{.cache = cache.get(),
                       .sequence = sequence,
                       .tokens = std::span(tokens).subspan(done, count),
                       .phase = done == 0 ? RowPhase::kPrefill : RowPhase::kDecode,
                       .logits = LogitsWanted::kAll};
    const Status status = (*runner)->forward({&row, 1}, logits.data());
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(done + i);
      const FamilyGolden::Row& want = golden.rows()[done + i];
      const float* found = logits.data() + i * static_cast<size_t>(golden.vocabulary());
      for (int32_t sample = 0; sample < std::ssize(want.samples); ++sample) {
        const double expected = want.samples[static_cast<size_t>(sample)];
        difference += std::pow(found[golden.sample_id(position, sample)] - expected, 2);
        total += expected * expected;
      }
    }
    done += count;
  }
  EXPECT_LE(std::sqrt(difference / total), test::cuda_activation_error());
}

INSTANTIATE_TEST_SUITE_P(Tiny, CudaFamilyGoldens, ::testing::ValuesIn(testing::family_golden_files()),
                         [](const auto& test) { return test.param.stem().string(); });

}  // namespace
}  // namespace kvant::engine
