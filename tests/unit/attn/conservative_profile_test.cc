#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/capability.h"

// What vLLM 0.33's FlashInfer backend answers, written out family by family.
namespace kvant::attn {
namespace {

using ::testing::HasSubstr;

constexpr KvFormat kAuto = KvFormat::kBf16;
constexpr KvFormat kFp8 = KvFormat::kE4m3;
constexpr KvFormat kFp4 = KvFormat::kNvfp4;
constexpr SpecDecode kNone = SpecDecode::kNone;
constexpr SpecDecode kUniform = SpecDecode::kUniform;
constexpr SpecDecode kRagged = SpecDecode::kRagged;
constexpr GraphSupport kNever = GraphSupport::kNever;
constexpr GraphSupport kSingle = GraphSupport::kSingleToken;
constexpr GraphSupport kBatch = GraphSupport::kUniformBatch;
constexpr QueryType kModel = QueryType::kModel;
constexpr QueryType kE4m3 = QueryType::kE4m3;

const HostOptions kHost{.profile = HostProfile::kConservative};

DeviceInfo device(int32_t compute_capability) {
  return compute_capability == 0 ? DeviceInfo{} : *describe_compute_capability(compute_capability);
}

AttnDesc desc(KvFormat format, int32_t head_dim = 128) {
  AttnDesc value;
  value.num_q_heads = 32;
  value.layout = {.k_format = format,
                  .v_format = format,
                  .head_dim_k = head_dim,
                  .head_dim_v = head_dim,
                  .num_kv_heads = 8,
                  .page_size = 16};
  return value;
}

AttnDesc non_causal(AttnDesc value) {
  value.draft_mask = DraftMask::kFull;
  return value;
}

AttnDesc over_ranks(AttnDesc value) {
  value.context_parallel.size = 2;
  return value;
}

AttnDesc batch_invariant(AttnDesc value) {
  value.batch_invariant = true;
  return value;
}

struct PlatformRow {
  int32_t compute_capability;
  bool decode, prefill;
};
constexpr PlatformRow kPlatforms[] = {
    {0, false, false},   {80, false, false}, {86, false, false}, {87, false, false},
    {89, false, false},  {90, true, false},  {100, true, true},  {103, true, true},
    {110, false, false}, {120, true, false}, {121, true, false},
};

TEST(ConservativeProfile, DedicatedKernelsPerPlatform) {
  for (const PlatformRow& row : kPlatforms) {
    for (KvFormat format : {kAuto, kFp8, kFp4}) {
      const AttnDesc config = desc(format);
      EXPECT_EQ(supports_decode(device(row.compute_capability), config, kHost).supported, row.decode)
          << row.compute_capability;
      EXPECT_EQ(supports_prefill(device(row.compute_capability), config, kHost).supported, row.prefill)
          << row.compute_capability;
    }
  }
}

TEST(ConservativeProfile, DedicatedKernelsAreOffWithBatchInvarianceAHostsVetoOrOddHeadRatios) {
  AttnDesc odd_heads = desc(kAuto);
  odd_heads.num_q_heads = 40;
  odd_heads.layout.num_kv_heads = 6;
  const HostOptions vetoed{.profile = HostProfile::kConservative, .vendor_kernels = false};
  for (const PlatformRow& row : kPlatforms) {
    const DeviceInfo part = device(row.compute_capability);
    EXPECT_FALSE(supports_decode(part, batch_invariant(desc(kAuto)), kHost));
    EXPECT_FALSE(supports_prefill(part, batch_invariant(desc(kAuto)), kHost));
    EXPECT_FALSE(supports_decode(part, desc(kAuto), vetoed));
    EXPECT_FALSE(supports_decode(part, odd_heads, kHost));
  }
}

// One row per (part, format) at head dim 128.
struct Row {
  int32_t compute_capability;
  KvFormat format;
  bool configuration, sink;
  SpecDecode spec, spec_non_causal;
  GraphSupport graph, graph_non_causal;
  QueryType decode_query, prefill_query;
};
constexpr Row kRows[] = {
    {0, kAuto, false, false, kNone, kNone, kNever, kNever, kModel, kModel},
    {0, kFp8, false, false, kNone, kNone, kNever, kNever, kModel, kModel},
    {0, kFp4, false, false, kNone, kNone, kNever, kNever, kModel, kModel},
    {80, kAuto, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {80, kFp8, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {80, kFp4, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {86, kAuto, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {86, kFp8, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {86, kFp4, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {87, kAuto, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {87, kFp8, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {87, kFp4, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {89, kAuto, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {89, kFp8, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {89, kFp4, true, false, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {90, kAuto, true, true, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
    {90, kFp8, true, true, kRagged, kRagged, kBatch, kBatch, kModel, kE4m3},
    {90, kFp4, true, false, kNone, kNone, kSingle, kSingle, kModel, kModel},
    {100, kAuto, true, true, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {100, kFp8, true, true, kUniform, kNone, kBatch, kSingle, kE4m3, kE4m3},
    {100, kFp4, true, true, kUniform, kNone, kBatch, kSingle, kE4m3, kE4m3},
    {103, kAuto, true, true, kUniform, kNone, kBatch, kSingle, kModel, kModel},
    {103, kFp8, true, true, kUniform, kNone, kBatch, kSingle, kE4m3, kE4m3},
    {103, kFp4, true, true, kUniform, kNone, kBatch, kSingle, kE4m3, kE4m3},
    {110, kAuto, true, false, kNone, kNone, kSingle, kSingle, kModel, kModel},
    {110, kFp8, true, false, kNone, kNone, kSingle, kSingle, kModel, kModel},
    {110, kFp4, false, false, kNone, kNone, kSingle, kSingle, kModel, kModel},
    {120, kAuto, true, true, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
    {120, kFp8, true, true, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
    {120, kFp4, true, false, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
    {121, kAuto, true, true, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
    {121, kFp8, true, true, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
    {121, kFp4, true, false, kRagged, kRagged, kBatch, kBatch, kModel, kModel},
};

std::string label(const Row& row) {
  return std::to_string(row.compute_capability) + " " + std::string(to_string(row.format));
}

TEST(ConservativeProfile, AnswersAtHeadDim128) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(label(row));
    const DeviceInfo part = device(row.compute_capability);
    const AttnDesc config = desc(row.format);
    EXPECT_EQ(supports_configuration(part, config, kHost).supported, row.configuration);
    EXPECT_EQ(supports_sink(part, config, kHost).supported, row.sink);
    EXPECT_EQ(supports_spec_as_decode(part, config, kHost), row.spec);
    EXPECT_EQ(supports_spec_as_decode(part, non_causal(config), kHost), row.spec_non_causal);
    EXPECT_EQ(graph_support(part, config, kHost), row.graph);
    EXPECT_EQ(graph_support(part, non_causal(config), kHost), row.graph_non_causal);
    EXPECT_EQ(decode_query_type(part, config, kHost), row.decode_query);
    EXPECT_EQ(prefill_query_type(part, config, kHost), row.prefill_query);
  }
}

TEST(ConservativeProfile, ContextParallelismLeavesSingleTokenGraphsAndNoSpeculation) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(label(row));
    const DeviceInfo part = device(row.compute_capability);
    const AttnDesc config = over_ranks(desc(row.format));
    EXPECT_EQ(supports_spec_as_decode(part, config, kHost), kNone);
    EXPECT_EQ(graph_support(part, config, kHost), row.compute_capability == 0 ? kNever : kSingle);
    EXPECT_EQ(graph_support(part, non_causal(config), kHost), row.compute_capability == 0 ? kNever : kSingle);
    EXPECT_FALSE(supports_configuration(part, non_causal(config), kHost));
    const bool trtllm_gen = part.family == DeviceFamily::kSm10x;
    EXPECT_EQ(supports_sink(part, config, kHost).supported, trtllm_gen);
    if (row.format == kFp4) {
      EXPECT_EQ(supports_configuration(part, config, kHost).supported, trtllm_gen);
    }
  }
}

TEST(ConservativeProfile, BatchInvarianceTurnsDedicatedKernelsOff) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(label(row));
    const DeviceInfo part = device(row.compute_capability);
    const AttnDesc config = batch_invariant(desc(row.format));
    const bool fa2 = part.family == DeviceFamily::kSm8x;
    EXPECT_EQ(supports_spec_as_decode(part, config, kHost), fa2 ? kUniform : kNone);
    EXPECT_EQ(graph_support(part, config, kHost), row.compute_capability == 0 ? kNever : fa2 ? kBatch : kSingle);
    EXPECT_FALSE(supports_sink(part, config, kHost));
    if (part.family == DeviceFamily::kSm10x) {
      EXPECT_EQ(supports_configuration(part, config, kHost).supported, row.format != kFp4);
    }
  }
}

struct HeadDimRow {
  int32_t compute_capability;
  KvFormat format;
  int32_t head_dim;
  bool configuration;
  SpecDecode spec;
  GraphSupport graph;
  QueryType decode_query;
};

TEST(ConservativeProfile, AnswersAtOtherHeadDims) {
  const HeadDimRow rows[] = {
      {80, kAuto, 64, true, kUniform, kBatch, kModel},  {80, kAuto, 256, true, kUniform, kBatch, kModel},
      {80, kAuto, 512, true, kUniform, kBatch, kModel}, {80, kFp4, 64, false, kUniform, kBatch, kModel},
      {80, kFp4, 512, true, kUniform, kBatch, kModel},  {90, kAuto, 64, true, kRagged, kBatch, kModel},
      {90, kFp8, 256, true, kRagged, kBatch, kModel},   {90, kFp8, 512, true, kNone, kSingle, kModel},
      {90, kFp4, 64, false, kNone, kSingle, kModel},    {100, kFp8, 64, true, kUniform, kBatch, kE4m3},
      {100, kFp4, 64, true, kUniform, kBatch, kE4m3},   {100, kAuto, 512, true, kUniform, kBatch, kModel},
      {120, kAuto, 64, true, kRagged, kBatch, kModel},  {120, kFp8, 512, true, kNone, kSingle, kModel},
      {120, kFp4, 64, false, kRagged, kBatch, kModel},  {120, kFp4, 256, true, kRagged, kBatch, kModel},
      {121, kFp4, 512, true, kNone, kSingle, kModel},   {90, kAuto, 80, false, kRagged, kBatch, kModel},
      {90, kAuto, 96, false, kRagged, kBatch, kModel},
  };
  for (const HeadDimRow& row : rows) {
    SCOPED_TRACE(std::to_string(row.compute_capability) + " d" + std::to_string(row.head_dim));
    const DeviceInfo part = device(row.compute_capability);
    const AttnDesc config = desc(row.format, row.head_dim);
    EXPECT_EQ(supports_configuration(part, config, kHost).supported, row.configuration);
    EXPECT_EQ(supports_spec_as_decode(part, config, kHost), row.spec);
    EXPECT_EQ(graph_support(part, config, kHost), row.graph);
    EXPECT_EQ(decode_query_type(part, config, kHost), row.decode_query);
  }
}

TEST(ConservativeProfile, AHostsVetoGivesHopperFp8Queries) {
  const HostOptions vetoed{.profile = HostProfile::kConservative, .vendor_kernels = false};
  EXPECT_EQ(decode_query_type(device(90), desc(kFp8), vetoed), kE4m3);
  EXPECT_EQ(decode_query_type(device(100), desc(kFp8), vetoed), kE4m3);
  EXPECT_EQ(decode_query_type(device(120), desc(kFp8), vetoed), kModel);
  EXPECT_EQ(decode_query_type(device(80), desc(kFp8), vetoed), kModel);
  EXPECT_EQ(supports_spec_as_decode(device(90), desc(kFp8), vetoed), kNone);
  EXPECT_FALSE(supports_configuration(device(100), desc(kFp4), vetoed));
}

TEST(ConservativeProfile, LargePagesNeedGroupedHeadsOnSm10x) {
  AttnDesc config = desc(kAuto);
  for (int32_t page_size : {16, 32, 64}) {
    config.layout.page_size = page_size;
    EXPECT_TRUE(supports_configuration(device(90), config, kHost));
  }
  for (int32_t page_size : {128, 256, 512, 1024}) {
    config.layout.page_size = page_size;
    EXPECT_TRUE(supports_configuration(device(100), config, kHost));
    EXPECT_FALSE(supports_configuration(device(90), config, kHost));
    config.num_q_heads = 8;
    EXPECT_FALSE(supports_configuration(device(100), config, kHost));
    config.num_q_heads = 32;
  }
  config.layout.page_size = 8;
  EXPECT_FALSE(supports_configuration(device(100), config, kHost));
}

TEST(ConservativeProfile, RefusalsSayWhy) {
  AttnDesc with_sinks = desc(kFp4);
  with_sinks.sinks = true;
  AttnDesc mixed = desc(kFp8);
  mixed.layout.v_format = kFp4;
  EXPECT_THAT(supports_configuration(device(0), desc(kAuto), kHost).reason, HasSubstr("needs a GPU"));
  EXPECT_THAT(supports_configuration(device(90), desc(kFp4, 64), kHost).reason, HasSubstr("head dim 64"));
  EXPECT_THAT(supports_configuration(device(120), with_sinks, kHost).reason, HasSubstr("sinks cannot read an nvfp4"));
  EXPECT_THAT(supports_configuration(device(90), mixed, kHost).reason, HasSubstr("same format"));
  EXPECT_THAT(supports_configuration(device(90), non_causal(desc(kFp4)), kHost).reason, HasSubstr("non-causal"));
  EXPECT_THAT(supports_prefill(device(90), desc(kAuto), kHost).reason, HasSubstr("decode only"));
  EXPECT_THAT(supports_decode(device(80), desc(kAuto), kHost).reason, HasSubstr("SM8x has neither"));
}

}  // namespace
}  // namespace kvant::attn
