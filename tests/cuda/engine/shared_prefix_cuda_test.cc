#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "engine/calibration/calibrate.h"
#include "kvant/core/device.h"
#include "support/compare.h"
#include "support/engine_models.h"
#include "support/tolerance.h"

namespace kvant::engine {
namespace {

using kvant::test::relative_error;
using testing::TinyModel;

/// Sequences of two kinds in turn: those of a kind begin alike.
class SharedPrefixes {
 public:
  static constexpr int32_t kCommon = 320;
  static constexpr int32_t kSequences = 8;

  SharedPrefixes(TinyModel& model, const char* spec, std::shared_ptr<const KvProfile> profile,
                 const attn::SharedRunRules& sharing)
      : model_(model),
        cache_(model.runner()
                   .create_cache({.spec = testing::spec(spec),
                                  .max_sequences = kSequences,
                                  .max_tokens = 1024,
                                  .prefix_cache = true,
                                  .profile = std::move(profile),
                                  .sharing = sharing})
                   .value()) {
    for (uint32_t i = 0; i < kSequences; ++i) {
      std::vector<int32_t> prompt = testing::random_tokens(kCommon, model.vocabulary(), i % 2);
      const std::vector<int32_t> own =
          testing::random_tokens(20 + static_cast<int32_t>(i), model.vocabulary(), 100 + i);
      prompt.insert(prompt.end(), own.begin(), own.end());
      ids_.push_back(cache_->add_sequence().value());
      const int32_t reused = cache_->reuse_prefix(ids_.back(), prompt, "");
      EXPECT_EQ(reused > 0, i >= 2);
      model.run(*cache_, ids_.back(), std::span(prompt).subspan(static_cast<size_t>(reused)),
                reused > 0 ? RowPhase::kExtend : RowPhase::kPrefill);
      cache_->publish_prefix(ids_.back(), prompt, "");
    }
  }

  /// Logits of a decode step of all sequences, in their order.
  std::vector<float> step(uint32_t seed) {
    const std::vector<int32_t> tokens =
        testing::random_tokens(static_cast<int32_t>(ids_.size()), model_.vocabulary(), seed);
    std::vector<BatchRow> rows;
    for (size_t i = 0; i < ids_.size(); ++i)
      rows.push_back({.cache = cache_.get(), .sequence = ids_[i], .tokens = std::span(tokens).subspan(i, 1)});
    std::vector<float> logits(ids_.size() * static_cast<size_t>(model_.vocabulary()), NAN);
    const Status status = model_.runner().forward(rows, logits.data());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logits;
  }
  void remove(size_t index) {
    cache_->remove_sequence(ids_[index]);
    ids_.erase(ids_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  int32_t num_sharing() const { return cache_->num_sharing(); }

 private:
  TinyModel& model_;
  std::unique_ptr<KvCacheSet> cache_;
  std::vector<SequenceId> ids_;
};

class CudaSharedPrefix : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaSharedPrefix, IsReadOnceWithTheSameLogits) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device: GPU tests did not run";
  TinyModel model({.layers = 2,
                   .hidden = 256,
                   .q_heads = 4,
                   .kv_heads = 2,
                   .head_dim = 128,
                   .ffn = 384,
                   .weights = GgufType::kBf16},
                  4, true);
  const auto profile =
      std::make_shared<const KvProfile>(calibrate(model.runner(), testing::random_tokens(512, model.vocabulary(), 9),
                                                  kCalibrationContext, model.hash(), {})
                                            .value());
  SharedPrefixes shared(model, GetParam(), profile, {.min_requests = 3, .min_saved_keys = 1});
  SharedPrefixes plain(model, GetParam(), profile, {.min_requests = 1000});
  const attn::KvFormat format = testing::spec(GetParam()).k_format;
  const auto compare = [&](uint32_t first, uint32_t last, int32_t sharing) {
    for (uint32_t s = first; s < last; ++s) {
      const std::vector<float> got = shared.step(s), want = plain.step(s);
      EXPECT_EQ(shared.num_sharing(), sharing) << "step " << s;
      EXPECT_EQ(plain.num_sharing(), 0);
      ASSERT_LE(relative_error(got, want), kvant::test::cuda_batch_error(format)) << "step " << s;
    }
  };
  const int64_t replayed = model.runner().graph_stats().replayed;
  compare(0, 20, SharedPrefixes::kSequences);
  // All but the first step of each, and of shapes that ageing pages make.
  EXPECT_GE(model.runner().graph_stats().replayed, replayed + 2 * (20 - 3));
  // Two of one kind are left, too few for a run.
  shared.remove(2), plain.remove(2);
  shared.remove(3), plain.remove(3);
  compare(20, 26, SharedPrefixes::kSequences / 2);
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaSharedPrefix,
                         ::testing::Values("bf16", "e4m3-plain", "nvfp4-plain", "e4m3", "nvfp4"));

}  // namespace
}  // namespace kvant::engine
