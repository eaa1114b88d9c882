#include "kvant/attn/validate.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvant::attn {
namespace {

using ::testing::HasSubstr;

ModelAttentionConfig good() { return {.num_q_heads = 32, .num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128}; }

AttnDesc good_desc() {
  AttnDesc desc;
  desc.num_q_heads = 32;
  desc.layout.num_kv_heads = 8;
  desc.softmax_scale = 0.1f;
  return desc;
}

template <class Change>
Status validated(Change change) {
  ModelAttentionConfig config = good();
  change(config);
  return validate_model_attention(config);
}

using Texts = std::vector<const char*>;

template <class Change>
void expect_refused(StatusCode code, const Texts& texts, Change change) {
  const Status status = validated(change);
  EXPECT_EQ(status.code(), code) << status.to_string();
  for (const char* text : texts) EXPECT_THAT(status.message(), HasSubstr(text));
}

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
using Config = ModelAttentionConfig;

TEST(ValidateModelAttention, AcceptsAnOrdinaryModel) { EXPECT_TRUE(validate_model_attention(good()).ok()); }

TEST(ValidateModelAttention, AcceptsA16BitCacheOtherThanTheModelDtype) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const char* format : {"f16", "bf16", "f32"}) {
      EXPECT_TRUE(validated([&](Config& config) {
                    config.model_dtype = dtype;
                    config.k_format = config.v_format = format;
                  }).ok());
    }
  }
}

TEST(ValidateModelAttention, RefusesAnUnknownFormat) {
  expect_refused(kInvalid, {"\"int4\"", "K cache format", "auto, fp8, f32, f16, bf16, e4m3, e5m2, nvfp4"},
                 [](Config& config) { config.k_format = "int4"; });
  expect_refused(kInvalid, {"\"\"", "V cache format"}, [](Config& config) { config.v_format = ""; });
}

TEST(ValidateModelAttention, RefusesNvfp4WithMla) {
  expect_refused(kInvalid, {"nvfp4", "MLA", "e4m3 (fp8) or auto"}, [](Config& config) {
    config.mla = true;
    config.k_format = config.v_format = "nvfp4";
  });
  // auto that resolves to nvfp4 is no way round.
  expect_refused(kInvalid, {"nvfp4", "MLA"}, [](Config& config) {
    config.mla = true;
    config.checkpoint = CheckpointKv::kFp4Scales;
  });
}

TEST(ValidateModelAttention, RefusesKindsOfAttentionThatItDoesNotHave) {
  expect_refused(kUnsupported, {"MLA", "offers multi-head"}, [](Config& config) { config.mla = true; });
  expect_refused(kUnsupported, {"cross attention", "offers decoder"},
                 [](Config& config) { config.cross_attention = true; });
}

TEST(ValidateModelAttention, RefusesE5m2WithACheckpointThatBringsOtherScales) {
  expect_refused(kInvalid, {"e5m2", "e4m3", "auto"}, [](Config& config) {
    config.k_format = config.v_format = "e5m2";
    config.checkpoint = CheckpointKv::kFp8Scales;
  });
  expect_refused(kInvalid, {"e5m2", "nvfp4"}, [](Config& config) {
    config.v_format = "e5m2";
    config.k_format = "bf16";
    config.checkpoint = CheckpointKv::kFp4Scales;
  });
  EXPECT_TRUE(validated([](Config& config) { config.k_format = config.v_format = "e5m2"; }).ok());
}

TEST(ValidateModelAttention, RefusesSinksOfTheWrongLength) {
  expect_refused(kInvalid, {"8 attention sinks", "32 query heads", "shard"},
                 [](Config& config) { config.num_sinks = 8; });
  EXPECT_TRUE(validated([](Config& config) { config.num_sinks = 32; }).ok());
}

TEST(ValidateModelAttention, RefusesHeadDimsOutsideTheLimits) {
  expect_refused(kInvalid, {"head_dim_k 24", "multiple of 16 from 16 to 512"},
                 [](Config& config) { config.head_dim_k = 24; });
  expect_refused(kInvalid, {"head_dim_v 528", "16 to 512"}, [](Config& config) { config.head_dim_v = 528; });
  for (int32_t head_dim : {64, 80, 96, 128, 192, 256, 512})
    EXPECT_TRUE(validated([&](Config& config) { config.head_dim_k = config.head_dim_v = head_dim; }).ok());
}

TEST(ValidateModelAttention, RefusesFractionsOfQueryHeadsPerKvHead) {
  expect_refused(kInvalid, {"30 query heads on 8 KV heads", "tensor-parallel"},
                 [](Config& config) { config.num_q_heads = 30; });
  expect_refused(kInvalid, {"0 query heads"}, [](Config& config) { config.num_q_heads = 0; });
  expect_refused(kInvalid, {"0 KV heads"}, [](Config& config) { config.num_kv_heads = 0; });
}

TEST(ValidateModelAttention, RefusesPageSizesThatAreNoPowerOfTwo) {
  expect_refused(kInvalid, {"page size 48", "power of two from 1 to 256"},
                 [](Config& config) { config.page_size = 48; });
  expect_refused(kInvalid, {"page size 512"}, [](Config& config) { config.page_size = 512; });
  for (int32_t page_size : {1, 16, 32, 64, 128, 256})
    EXPECT_TRUE(validated([&](Config& config) { config.page_size = page_size; }).ok());
}

TEST(ValidateModelAttention, RefusesAnInterleaveThatDoesNotDivideThePage) {
  expect_refused(kInvalid, {"interleave 3", "page size 16", "divisor"},
                 [](Config& config) { config.context_parallel = {.rank = 0, .size = 2, .interleave = 3}; });
  expect_refused(kInvalid, {"rank 2 of 2"}, [](Config& config) { config.context_parallel = {.rank = 2, .size = 2}; });
  EXPECT_TRUE(
      validated([](Config& config) { config.context_parallel = {.rank = 1, .size = 2, .interleave = 8}; }).ok());
}

TEST(ValidateModelAttention, RefusesMaskRowsThatAreTooNarrow) {
  expect_refused(kInvalid, {"mask rows of 1 words hold 32 keys", "2 words are needed for 33"}, [](Config& config) {
    config.draft_mask = DraftMask::kPacked;
    config.max_query_len = 33;
    config.mask_row_words = 1;
  });
  expect_refused(kInvalid, {"mask rows of 1 words", "packed draft mask"},
                 [](Config& config) { config.mask_row_words = 1; });
  expect_refused(kInvalid, {"max_query_len 0"}, [](Config& config) { config.max_query_len = 0; });
}

TEST(ValidateModelAttention, RefusesAWindowOverTreesWithoutPositions) {
  const auto tree = [](Config& config) {
    config.draft_mask = DraftMask::kPacked;
    config.max_query_len = 8;
    config.mask_row_words = 1;
    config.window = 128;
  };
  expect_refused(kInvalid, {"window 128", "position per row"}, tree);
  EXPECT_TRUE(validated([&](Config& config) {
                tree(config);
                config.row_positions = true;
              }).ok());
  expect_refused(kInvalid, {"position per row needs a packed draft mask"},
                 [](Config& config) { config.row_positions = true; });
}

TEST(ValidateModelAttention, RefusesBadWindowsAndCaps) {
  expect_refused(kInvalid, {"window -1", "0 means no window"}, [](Config& config) { config.window = -1; });
  expect_refused(kInvalid, {"soft cap -2"}, [](Config& config) { config.soft_cap = -2.0f; });
  expect_refused(kInvalid, {"soft cap nan"}, [](Config& config) { config.soft_cap = std::nanf(""); });
  expect_refused(kInvalid, {"soft cap inf"},
                 [](Config& config) { config.soft_cap = std::numeric_limits<float>::infinity(); });
}

TEST(ValidateModelAttention, RefusesEdgesAndConditioningOnA16BitBase) {
  expect_refused(kInvalid, {"exact edges 16,32", "not bf16", "edges=none"}, [](Config& config) {
    config.edges = {16, 32};
  });
  expect_refused(kInvalid, {"exact edges -1,0"}, [](Config& config) {
    config.edges = {-1, 0};
    config.k_format = config.v_format = "nvfp4";
  });
  expect_refused(kInvalid, {"cond=full", "not bf16", "cond=none"},
                 [](Config& config) { config.conditioning = KeyConditioning::kFull; });
  EXPECT_TRUE(validated([](Config& config) {
                config.k_format = config.v_format = "nvfp4";
                config.edges = {16, 32};
                config.conditioning = KeyConditioning::kFull;
              }).ok());
}

TEST(ValidateModelAttention, NamesTheLayer) {
  expect_refused(kInvalid, {"layer 7: window -1"}, [](Config& config) {
    config.layer = 7;
    config.window = -1;
  });
}

TEST(ValidateAttention, AcceptsAGoodDescriptor) { EXPECT_TRUE(validate_attention(good_desc(), {}).ok()); }

TEST(ValidateAttention, RefusesWhatNoKernelCouldRun) {
  const auto message = [](auto change) {
    AttnDesc desc = good_desc();
    AttnLimits limits;
    change(desc, limits);
    const Status status = validate_attention(desc, limits);
    EXPECT_EQ(status.code(), kInvalid);
    return status.message();
  };
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) { desc.num_q_heads = 30; }), HasSubstr("30 query heads"));
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) { desc.layout.head_dim_v = 8; }), HasSubstr("head_dim_v 8"));
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) { desc.exact_pages = true; }), HasSubstr("exact pages"));
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) { desc.conditioning = KeyConditioning::kMean; }),
              HasSubstr("cond=mean"));
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) {
                desc.context_parallel = {0, 2, 0};
              }),
              HasSubstr("interleave 0"));
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) { desc.window = -3; }), HasSubstr("window -3"));
  EXPECT_THAT(message([](AttnDesc& desc, AttnLimits&) { desc.softmax_scale = 0.0f; }), HasSubstr("softmax_scale 0"));
  EXPECT_THAT(message([](AttnDesc&, AttnLimits& limits) { limits.max_tokens = 0; }), HasSubstr("0 tokens"));
}

}  // namespace
}  // namespace kvant::attn
