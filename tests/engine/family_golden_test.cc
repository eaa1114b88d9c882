#include "support/family_golden.h"
#include "engine/calibration/calibrate.h"
#include "support/tolerance.h"

#include <algorithm>
#include <cmath>

namespace kvant::engine {
namespace {

using testing::CheckpointDir;
using testing::FamilyGolden;

/// What transformers says of tiny models of every family, from folders and from GGUF files.
class FamilyGoldens : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  FamilyGolden golden_{GetParam()};
  ThreadPool pool_{1};

  /// Rows of logits of all tokens: the prompt in one piece, then steps.
  std::vector<float> run(ModelSource source, std::string_view kv, std::shared_ptr<const KvProfile> profile = nullptr) {
    auto runner = Runner::create(std::move(source), {.weights = WeightFormat::kF32, .progress = {}}, pool_);
    EXPECT_TRUE(runner) << runner.error().to_string();
    const auto cache =
        (*runner)->create_cache({.spec = testing::spec(kv), .max_tokens = 64, .profile = std::move(profile)}).value();
    return golden_.logits_of(**runner, *cache);
  }

  void check(std::span<const float> logits, double tolerance) const {
    const auto vocabulary = static_cast<size_t>(golden_.vocabulary());
    ASSERT_EQ(golden_.rows().size() * vocabulary, logits.size());
    for (int32_t position = 0; position < std::ssize(golden_.rows()); ++position) {
      const FamilyGolden::Row& row = golden_.rows()[static_cast<size_t>(position)];
      const auto found = logits.subspan(static_cast<size_t>(position) * vocabulary, vocabulary);
      double sum = 0;
      for (const float logit : found) sum += std::exp(static_cast<double>(logit));
      ASSERT_NEAR(std::log(sum), row.log_sum_exp, tolerance) << "position " << position;
      for (int32_t i = 0; i < std::ssize(row.samples); ++i) {
        ASSERT_NEAR(found[static_cast<size_t>(golden_.sample_id(position, i))], row.samples[static_cast<size_t>(i)],
                    tolerance)
            << "position " << position << " id " << golden_.sample_id(position, i);
      }
    }
  }
};

TEST_P(FamilyGoldens, MatchTransformersFromAFolder) {
  const CheckpointDir dir;
  golden_.write_folder(dir);
  check(run(golden_.open_folder(dir), "f32"), test::golden_logit_tolerance());
}

TEST_P(FamilyGoldens, MatchTransformersFromAGgufFile) {
  if (!golden_.has_gguf()) GTEST_SKIP() << "no GGUF files of such a model exist";
  check(run(testing::open_model(golden_.gguf()), "f32"), test::golden_logit_tolerance());
}

TEST_P(FamilyGoldens, StayCloseWithABf16Cache) {
  const CheckpointDir dir;
  golden_.write_folder(dir);
  check(run(golden_.open_folder(dir), "bf16"), test::golden_bf16_logit_tolerance());
}

TEST_P(FamilyGoldens, StayCloseWithConditionedKeys) {
  // Everything is in the exact tail, so that conditioning alone is seen, and f16 rounding after it.
  constexpr std::string_view kSpec = "nvfp4:cond=full:edges=0,64";
  const CheckpointDir dir;
  golden_.write_folder(dir);
  auto runner =
      Runner::create(golden_.open_folder(dir), {.weights = WeightFormat::kF32, .progress = {}}, pool_).value();
  const std::vector<int32_t> text = testing::random_tokens(160, golden_.vocabulary(), 5);
  auto profile = calibrate(*runner, text, 80, "hash", {});
  ASSERT_TRUE(profile) << profile.error().to_string();
  ModelSource source = golden_.open_folder(dir);
  // Layers with a window would be left alone.
  for (LayerConfig& layer : source.config.layers) layer.kv_override = testing::spec(kSpec);
  check(run(std::move(source), kSpec, std::make_shared<const KvProfile>(*std::move(profile))),
        test::golden_bf16_logit_tolerance());
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamilyGoldens, ::testing::ValuesIn(testing::family_golden_files()),
                         [](const auto& test) { return test.param.stem().string(); });

TEST(FamilyGoldenFiles, CoverEveryFamily) { EXPECT_GE(testing::family_golden_files().size(), 18u); }

}  // namespace
}  // namespace kvant::engine
