#include "engine/loaded_model.h"
#include "engine/models/checkpoint_kv.h"
#include "support/engine_models.h"
#include "support/family_golden.h"
#include "support/tokenizer_files.h"
#include "support/tolerance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using testing::CheckpointDir;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FamilyGolden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFolder = KVANT_SOURCE_DIR "/tests/golden/kv_scales/";

/// A checkpoint with scales, in a folder.
class KvScales : public ::testing::Test {
 protected:
  /// Loads the model with one spec; notices are kept.
  Result<std::unique_ptr<LoadedModel>> load(const FamilyGolden& golden, std::string_view kv,
                                            const std::string& kv_layers = "", const std::string& kv_profile = "auto") {
    dir_.emplace();
    golden.write_folder(*dir_);
    dir_->write("tokenizer.json", testing::byte_tokenizer_json(golden.vocabulary()));
    return reload(kv, kv_layers, kv_profile);
  }
  Result<std::unique_ptr<LoadedModel>> reload(std::string_view kv, const std::string& kv_layers = "",
                                              const std::string& kv_profile = "auto") {
    notices_.clear();
    LoadOptions options;
    options.model = dir_->path();
    options.kv_profile = kv_profile;
    options.kv_layers = kv_layers;
    options.weights = WeightFormat::kF32;
    options.threads = 2;
    options.cache_dir = dir_->path() / "cache";
    options.notice = [this](std::string_view text) { notices_.emplace_back(text); };
    options.kv = {testing::spec(kv)};
    return LoadedModel::load(options);
  }

  static std::vector<float> run(LoadedModel& model, KvCacheSet& cache, const FamilyGolden& golden) {
    const std::vector<int32_t> tokens = golden.tokens();
    const auto vocabulary = static_cast<size_t>(golden.vocabulary());
    std::vector<float> logits(tokens.size() * vocabulary);
    const SequenceId sequence = cache.add_sequence().value();
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = done == 0 ? golden.prompt_tokens() : 1;
      const BatchRow row{.cache = &cache,
                         .sequence = sequence,
                         .tokens = std::span(tokens).subspan(done, count),
                         .phase = done == 0 ? RowPhase::kPrefill : RowPhase::kDecode,
                         .logits = LogitsWanted::kAll};
      const Status status = model.runner().forward({&row, 1}, logits.data() + done * vocabulary);
      EXPECT_TRUE(status.ok()) << status.to_string();
      done += count;
    }
    return logits;
  }

  static double largest_error(const std::vector<float>& logits, const FamilyGolden& golden) {
    double largest = 0;
    for (int32_t position = 0; position < std::ssize(golden.rows()); ++position) {
      const FamilyGolden::Row& row = golden.rows()[static_cast<size_t>(position)];
      for (int32_t i = 0; i < std::ssize(row.samples); ++i) {
        const size_t at = static_cast<size_t>(position * golden.vocabulary() + golden.sample_id(position, i));
        const double error = std::abs(logits[at] - row.samples[static_cast<size_t>(i)]);
        if (!(error <= largest)) largest = error;
      }
    }
    return largest;
  }

  std::unique_ptr<KvCacheSet> cache(LoadedModel& model, std::string_view kv) {
    auto made = model.create_cache(testing::spec(kv), {.max_tokens = 64});
    EXPECT_TRUE(made) << made.error().to_string();
    return *std::move(made);
  }

  std::optional<CheckpointDir> dir_;
  std::vector<std::string> notices_;
};

TEST_F(KvScales, GiveTheLogitsOfTheReference) {
  for (const auto& [name, kv] :
       {std::pair("e4m3.json", "e4m3:edges=none"), std::pair("nvfp4.json", "nvfp4:policy=amax:edges=none")}) {
    const FamilyGolden golden(std::string(kFolder) + name);
    const auto model = load(golden, kv);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto with = cache(**model, kv);
    EXPECT_THAT(with->scale_source(), HasSubstr("checkpoint (4 of 4 used)"));
    EXPECT_LT(largest_error(run(**model, *with, golden), golden), test::golden_kv_scale_tolerance()) << name;
    EXPECT_THAT(notices_, ElementsAre("KV scales: 4 of 4 used, from the checkpoint"));
    const auto without =
        (*model)->runner().create_cache({.spec = with->spec(), .max_tokens = 64, .profile = nullptr}).value();
    EXPECT_GT(largest_error(run(**model, *without, golden), golden), 10 * test::golden_kv_scale_tolerance())
        << "scales of 1 would pass, too";
  }
}

TEST_F(KvScales, AutoFollowsTheDeclaredScheme) {
  const auto fp8 = load(FamilyGolden(std::string(kFolder) + "e4m3.json"), "auto");
  ASSERT_TRUE(fp8) << fp8.error().to_string();
  EXPECT_EQ(cache(**fp8, "auto")->format(), "e4m3:cond=none:edges=16,32");
  const auto nvfp4 = load(FamilyGolden(std::string(kFolder) + "nvfp4.json"), "auto");
  ASSERT_TRUE(nvfp4) << nvfp4.error().to_string();
  const auto made = cache(**nvfp4, "auto");
  EXPECT_EQ(made->format(), "nvfp4:policy=search:cond=none:edges=16,32");
  EXPECT_EQ((*nvfp4)->describe_scales(*made), "checkpoint (4 of 4 used)");
  EXPECT_FALSE(std::filesystem::exists(dir_->path() / "cache")) << "no profile is made";
}

TEST_F(KvScales, DoNotTouchA16BitCache) {
  const FamilyGolden golden(std::string(kFolder) + "e4m3.json");
  const auto with = load(golden, "bf16");
  ASSERT_TRUE(with) << with.error().to_string();
  const auto logits = run(**with, *cache(**with, "bf16"), golden);
  EXPECT_THAT(notices_, ElementsAre("KV scales: 0 of 4 used: a cache in bf16 has none"));
  const FamilyGolden stripped = golden.without("_scale");
  const auto without = load(stripped, "bf16");
  ASSERT_TRUE(without) << without.error().to_string();
  EXPECT_EQ(run(**without, *cache(**without, "bf16"), golden), logits);
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(KvScales, AreMissedOnceWhenDeclaredAndAbsent) {
  const auto model = load(FamilyGolden(std::string(kFolder) + "e4m3.json").without("_scale"), "auto");
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ(cache(**model, "auto")->scale_source(), "1.0");
  cache(**model, "auto");
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("declares a KV cache of e4m3, but the checkpoint holds no scales; 1.0 is used"));
}

TEST_F(KvScales, GiveWayToAProfileThatIsAskedFor) {
  const auto plain = load(FamilyGolden(std::string(kFolder) + "nvfp4.json"), "nvfp4:cond=full");
  ASSERT_TRUE(plain) << plain.error().to_string();
  const auto conditioned = cache(**plain, "nvfp4:cond=full");
  EXPECT_TRUE(conditioned->uses_profile()) << "conditioning by name needs one";
  EXPECT_EQ(conditioned->num_checkpoint_scales(), 0);
  std::filesystem::path profile;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_->path() / "cache"))
    if (entry.is_regular_file()) profile = entry.path();
  const auto model = reload("auto", "", profile.string());
  ASSERT_TRUE(model) << model.error().to_string();
  const auto made = cache(**model, "auto");
  EXPECT_EQ(made->format(), "nvfp4:policy=search:cond=full:edges=16,32");
  EXPECT_TRUE(made->uses_profile());
  EXPECT_THAT(notices_, Contains("KV scales: 0 of 4 used: those of the profile are in effect"));
}

TEST_F(KvScales, ReachSingleLayers) {
  const auto model = load(FamilyGolden(std::string(kFolder) + "nvfp4.json"), "auto", "0=bf16");
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ(cache(**model, "auto")->format(), "bf16 (1 layers), nvfp4:policy=search:cond=none:edges=16,32 (1 layers)");
  EXPECT_THAT(notices_, ElementsAre("KV scales: 2 of 4 used, from the checkpoint"));
  EXPECT_THAT(reload("auto", "2=bf16").error().message(), HasSubstr("there is no layer 2"));
  EXPECT_THAT(reload("e5m2").error().message(), HasSubstr("e5m2 cache does not go with a quantised checkpoint"));
  EXPECT_THAT(reload("auto", "*=e5m2").error().message(), HasSubstr("e5m2"));
}

}  // namespace
}  // namespace kvant::engine
