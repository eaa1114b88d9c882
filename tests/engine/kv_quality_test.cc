#include "engine/quality/kv_quality.h"

#include "engine/loaded_model.h"
#include "support/temp_dir.h"
#include "support/tiny_llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::TinyLlamaConfig;

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "hello world and then " + std::to_string(i * i) + "\n";
  return text;
}

KvQualityOptions options(const std::vector<std::string>& specs, int32_t context, int32_t chunks) {
  KvQualityOptions result{.specs = {}, .context = context, .chunks = chunks, .progress = {}};
  for (const std::string& spec : specs) result.specs.push_back(attn::parse_kv_spec(spec).value());
  return result;
}

class KvQuality : public ::testing::Test {
 protected:
  Result<KvQualityReport> measure(const KvQualityOptions& options, const std::string& text) {
    LoadOptions load;
    load.model = dir_.write("tiny.gguf", testing::tiny_llama_gguf({.q_heads = 4, .kv_heads = 2, .head_dim = 64}));
    load.weights = WeightFormat::kF32;
    load.threads = 2;
    load.cache_dir = dir_.path();
    set_load_options(options, load);
    KVANT_ASSIGN_OR_FAIL(const std::unique_ptr<LoadedModel> model, LoadedModel::load(load));
    return measure_kv_quality(*model, text, options);
  }
  TempDir dir_;
};

TEST_F(KvQuality, FindsNoDifferenceBetweenTwoF16Caches) {
  const auto report = measure(options({"f16", "f32"}, 64, 3), sample_text());
  ASSERT_TRUE(report.has_value()) << report.error().to_string();
  EXPECT_EQ(report->scored_tokens, 3 * 31);
  const KvQualityRow& f16 = report->rows[0];
  EXPECT_LT(std::abs(f16.kld_mean), 1e-9);
  EXPECT_LT(f16.kld_p99, 1e-9);
  EXPECT_EQ(f16.top1_agreement, 1.0);
  EXPECT_NEAR(f16.ppl, report->baseline_ppl, 1e-6 * report->baseline_ppl);
  EXPECT_EQ(f16.base_bits, 16.0);
  EXPECT_EQ(f16.effective_bits, 16.0);
  EXPECT_EQ(f16.bytes_per_token, 2 * 2 * 2 * 64 * 2);
  EXPECT_GT(report->rows[1].kld_mean, 0.0) << "rounding to f16 must be seen";
  EXPECT_LT(report->rows[1].kld_mean, 1e-5);
}

TEST_F(KvQuality, RanksFormatsAndCountsTheirBits) {
  const auto report = measure(options({"nvfp4-plain", "e4m3-plain", "e4m3", "nvfp4"}, 128, 2), sample_text());
  ASSERT_TRUE(report.has_value()) << report.error().to_string();
  const auto& rows = report->rows;
  EXPECT_GT(rows[0].kld_mean, rows[1].kld_mean);
  EXPECT_GT(rows[1].kld_mean, rows[2].kld_mean);
  EXPECT_GT(rows[0].kld_mean, rows[3].kld_mean);
  for (const KvQualityRow& row : rows) EXPECT_GE(row.kld_p99, row.kld_mean) << row.kv;
  EXPECT_EQ(rows[0].base_bits, 4.5);
  EXPECT_EQ(rows[0].effective_bits, 4.5);
  EXPECT_EQ(rows[0].edges, "none");
  EXPECT_EQ(rows[0].policy, "amax");
  EXPECT_EQ(rows[1].base_bits, 8.0);
  EXPECT_EQ(rows[1].policy, "none");
  EXPECT_EQ(rows[3].base_bits, 4.5);
  EXPECT_GE(rows[3].effective_bits, 4.5 + 11.5 * 48 / 128);
  EXPECT_LE(rows[3].effective_bits, 4.5 + 11.5 * 64 / 128);
  EXPECT_EQ(rows[3].conditioning, "full");
  EXPECT_EQ(rows[3].edges, "16,32");
}

TEST_F(KvQuality, GivesTheSameNumbersTwice) {
  const auto first = measure(options({"nvfp4:cond=none"}, 64, 2), sample_text());
  const auto second = measure(options({"nvfp4:cond=none"}, 64, 2), sample_text());
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(to_json(*first), to_json(*second));
}

TEST_F(KvQuality, RefusesWhatItCannotMeasure) {
  EXPECT_THAT(measure(options({"f16"}, 512, 100), sample_text()).error().message(), HasSubstr("need 51200"));
  EXPECT_THAT(measure(options({"f16"}, 2, 1), sample_text()).error().message(), HasSubstr("context 2"));
  EXPECT_THAT(measure(options({}, 64, 1), sample_text()).error().message(), HasSubstr("no KV spec"));
  EXPECT_THAT(measure(options({"f16"}, 4096, 1), sample_text()).error().message(), HasSubstr("4096"));
}

}  // namespace
}  // namespace kvant::engine
