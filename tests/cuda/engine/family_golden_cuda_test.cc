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
  const std::vector<float> logits = golden.logits_of(**runner, *cache);
  double difference = 0, total = 0;
  for (int32_t position = 0; position < std::ssize(golden.rows()); ++position) {
    const FamilyGolden::Row& want = golden.rows()[static_cast<size_t>(position)];
    const float* found = logits.data() + int64_t{position} * golden.vocabulary();
    for (int32_t sample = 0; sample < std::ssize(want.samples); ++sample) {
      const double expected = want.samples[static_cast<size_t>(sample)];
      difference += std::pow(found[golden.sample_id(position, sample)] - expected, 2);
      total += expected * expected;
    }
  }
  EXPECT_LE(std::sqrt(difference / total), test::cuda_activation_error());
}

INSTANTIATE_TEST_SUITE_P(Tiny, CudaFamilyGoldens, ::testing::ValuesIn(testing::family_golden_files()),
                         [](const auto& test) { return test.param.stem().string(); });

}  // namespace
}  // namespace kvant::engine
