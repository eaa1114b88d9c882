#include "kvant/attn/kv_spec.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/kv_test_cache.h"

namespace kvant::attn {
namespace {

using ::testing::HasSubstr;

TEST(KvSpec, HasTheDocumentedDefaults) {
  struct Row {
    const char* text;
    KvFormat k, v;
    ScalePolicy policy;
    KeyConditioning conditioning;
    ExactEdges edges;
    const char* canonical;
  };
  using enum KvFormat;
  constexpr auto kSearch = ScalePolicy::kSearch;
  constexpr auto kAmax = ScalePolicy::kAmax;
  constexpr auto kNone = KeyConditioning::kNone;
  constexpr auto kFull = KeyConditioning::kFull;
  const Row rows[] = {
      {"nvfp4", kNvfp4, kNvfp4, kSearch, kFull, {16, 32}, "nvfp4:policy=search:cond=full:edges=16,32"},
      {"nvfp4-plain", kNvfp4, kNvfp4, kAmax, kNone, {0, 0}, "nvfp4:policy=amax:cond=none:edges=none"},
      {"e4m3", kE4m3, kE4m3, kAmax, kNone, {16, 32}, "e4m3:cond=none:edges=16,32"},
      {"fp8", kE4m3, kE4m3, kAmax, kNone, {16, 32}, "e4m3:cond=none:edges=16,32"},
      {"e5m2", kE5m2, kE5m2, kAmax, kNone, {16, 32}, "e5m2:cond=none:edges=16,32"},
      {"fp8-plain", kE4m3, kE4m3, kAmax, kNone, {0, 0}, "e4m3:cond=none:edges=none"},
      {"e5m2-plain", kE5m2, kE5m2, kAmax, kNone, {0, 0}, "e5m2:cond=none:edges=none"},
      {"k=e4m3/v=nvfp4", kE4m3, kNvfp4, kSearch, kFull, {16, 32}, "k=e4m3/v=nvfp4:policy=search:cond=full:edges=16,32"},
      {"k=f16/v=nvfp4", kF16, kNvfp4, kSearch, kNone, {16, 32}, "k=f16/v=nvfp4:policy=search:cond=none:edges=16,32"},
      {"k=fp8/v=e4m3", kE4m3, kE4m3, kAmax, kNone, {16, 32}, "e4m3:cond=none:edges=16,32"},
      {"f32", kF32, kF32, kAmax, kNone, {0, 0}, "f32"},
      {"f16", kF16, kF16, kAmax, kNone, {0, 0}, "f16"},
      {"bf16", kBf16, kBf16, kAmax, kNone, {0, 0}, "bf16"},
      {"k=bf16/v=f16", kBf16, kF16, kAmax, kNone, {0, 0}, "k=bf16/v=f16"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    const Result<KvSpec> spec = parse_kv_spec(row.text);
    ASSERT_TRUE(spec) << spec.error().to_string();
    EXPECT_EQ(spec->text, row.text);
    EXPECT_FALSE(spec->automatic);
    EXPECT_EQ(spec->k_format, row.k);
    EXPECT_EQ(spec->v_format, row.v);
    EXPECT_EQ(spec->policy, row.policy);
    EXPECT_EQ(spec->conditioning, row.conditioning);
    EXPECT_EQ(spec->edges, row.edges);
    EXPECT_EQ(spec->to_string(), row.canonical);
    EXPECT_EQ(*parse_kv_spec(spec->to_string()), *spec);
  }
}

TEST(KvSpec, ReadsOptionsInAnyOrder) {
  const KvSpec spec = *parse_kv_spec("nvfp4:edges=0,64:policy=four_over_six:cond=mean");
  EXPECT_EQ(spec.policy, ScalePolicy::kFourOverSix);
  EXPECT_EQ(spec.conditioning, KeyConditioning::kMean);
  EXPECT_EQ(spec.edges, (ExactEdges{0, 64}));
  EXPECT_EQ(parse_kv_spec("nvfp4:edges=none")->edges, ExactEdges());
  EXPECT_EQ(parse_kv_spec("nvfp4:edges=0,0")->to_string(), "nvfp4:policy=search:cond=full:edges=none");
  EXPECT_EQ(parse_kv_spec("nvfp4-plain:edges=16,32")->to_string(), "nvfp4:policy=amax:cond=none:edges=16,32");
  EXPECT_EQ(parse_kv_spec("f16:edges=none:cond=none")->to_string(), "f16");
}

TEST(KvSpec, AutoFollowsTheModel) {
  const KvSpec spec = *parse_kv_spec("auto");
  EXPECT_TRUE(spec.automatic);
  EXPECT_EQ(spec.to_string(), "auto");
  EXPECT_EQ(resolve_kv_spec(spec, DType::kF16).to_string(), "f16");
  EXPECT_EQ(resolve_kv_spec(spec, DType::kBf16).to_string(), "bf16");
  EXPECT_EQ(resolve_kv_spec(spec, DType::kF32).to_string(), "bf16");
  EXPECT_EQ(resolve_kv_spec(spec, DType::kF16).text, "auto");
  EXPECT_EQ(resolve_kv_spec(*parse_kv_spec("nvfp4"), DType::kF16), *parse_kv_spec("nvfp4"));
}

TEST(KvSpec, RefusesByNameAndSaysWhatIsKnown) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "unknown format \"\""},
      {"int4", "unknown format \"int4\"; known are f32, f16, bf16, e4m3, e5m2, nvfp4, fp8 (= e4m3), and \"auto\""},
      {"NVFP4", "unknown format \"NVFP4\""},
      {"k=e4m3", "not of the form k=FORMAT/v=FORMAT"},
      {"v=e4m3/k=e4m3", "not of the form"},
      {"k=e4m3/v=int8", "unknown format \"int8\""},
      {"f16-plain", "write \"f16\""},
      {"nvfp4:polcy=amax", "unknown option \"polcy\"; known are policy=, cond=, edges="},
      {"nvfp4:policy=best", "unknown policy \"best\"; known are amax, four_over_six, search"},
      {"e4m3:policy=search", "needs an nvfp4 plane"},
      {"nvfp4:cond=half", "unknown conditioning \"half\"; known are none, mean, full"},
      {"bf16:cond=full", "cond=full needs a quantised K format, not bf16"},
      {"k=f16/v=nvfp4:cond=mean", "needs a quantised K format, not f16"},
      {"f16:edges=16,32", "edges=16,32 needs a quantised format: f16 is exact already"},
      {"nvfp4:edges=-1,32", "edges \"-1,32\" must be HEAD,TAIL"},
      {"nvfp4:edges=16", "edges \"16\" must be"},
      {"nvfp4:edges=16,32,1", "must be HEAD,TAIL"},
      {"nvfp4:edges=16,99999999999", "must be HEAD,TAIL"},
      {"nvfp4:edges=", "must be HEAD,TAIL"},
      {"nvfp4:", "an option is missing"},
      {"nvfp4::cond=none", "unknown option \"\""},
      {"nvfp4:cond=none:cond=full", "given twice"},
      {"auto:edges=1,1", "auto takes no options"},
      {"auto:", "auto takes no options"},
  };
  for (const auto& [text, message] : cases) {
    const Result<KvSpec> spec = parse_kv_spec(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(spec.error().message(), HasSubstr(std::string("KV spec \"") + text + "\""));
    EXPECT_THAT(spec.error().message(), HasSubstr(message));
  }
}

TEST(KvSpec, SurvivesMutatedTexts) {
  const std::string seeds[] = {"nvfp4:policy=search:cond=full:edges=16,32", "k=e4m3/v=nvfp4:edges=none", "fp8-plain",
                               "auto"};
  const std::string alphabet = "=:/,-0159knvefpat\xff";
  test::Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = seeds[random.below(4)];
    for (int edits = 1 + random.below(4); edits > 0; --edits) {
      const auto at = static_cast<size_t>(random.below(static_cast<int32_t>(text.size()) + 1));
      const char letter = alphabet[static_cast<size_t>(random.below(static_cast<int32_t>(alphabet.size())))];
      if (random.below(2) == 0 && at < text.size())
        text.erase(at, 1);
      else
        text.insert(at, 1, letter);
    }
    const Result<KvSpec> spec = parse_kv_spec(text);
    if (!spec) continue;
    const Result<KvSpec> again = parse_kv_spec(spec->to_string());
    ASSERT_TRUE(again) << text;
    EXPECT_EQ(*again, *spec) << text;
  }
}

}  // namespace
}  // namespace kvant::attn
