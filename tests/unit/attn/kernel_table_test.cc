#include "kvant/attn/kernel_table.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/capability.h"

namespace kvant::attn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kComputeCapabilities[] = {80, 86, 87, 89, 90, 100, 103, 110, 120, 121};
constexpr KvFormat kFormats[] = {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
                                 KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};

AttnDesc plain(KvFormat format = KvFormat::kBf16) {
  AttnDesc desc;
  desc.num_q_heads = 32;
  desc.layout = {.k_format = format, .v_format = format, .head_dim_k = 128, .head_dim_v = 128, .num_kv_heads = 8};
  desc.softmax_scale = 1.0f / std::sqrt(128.0f);
  return desc;
}

struct NamedDesc {
  const char* feature;
  AttnDesc desc;
};

// One configuration per option that an AttnDesc can ask for.
std::vector<NamedDesc> one_option_each(KvFormat format) {
  std::vector<NamedDesc> all;
  const auto add = [&](const char* feature, auto change) {
    AttnDesc desc = plain(format);
    change(desc);
    all.push_back({feature, desc});
  };
  add("sliding window", [](AttnDesc& desc) { desc.window = 128; });
  add("soft cap", [](AttnDesc& desc) { desc.soft_cap = 50.0f; });
  add("sinks", [](AttnDesc& desc) { desc.sinks = true; });
  add("full draft mask", [](AttnDesc& desc) { desc.draft_mask = DraftMask::kFull; });
  add("packed draft mask", [](AttnDesc& desc) { desc.draft_mask = DraftMask::kPacked; });
  add("LSE, context parallelism", [](AttnDesc& desc) { desc.context_parallel.size = 2; });
  add("exact pages", [](AttnDesc& desc) { desc.exact_pages = true; });
  add("conditioned keys", [](AttnDesc& desc) { desc.conditioning = KeyConditioning::kFull; });
  add("batch invariance", [](AttnDesc& desc) { desc.batch_invariant = true; });
  add("different K and V formats",
      [&](AttnDesc& desc) { desc.layout.v_format = format == KvFormat::kNvfp4 ? KvFormat::kE4m3 : KvFormat::kNvfp4; });
  add("different K and V head dims", [](AttnDesc& desc) { desc.layout.head_dim_v = 64; });
  add("packed code order", [](AttnDesc& desc) { desc.layout.code_order = CodeOrder::kPacked; });
  add("SM10x V-scale order", [](AttnDesc& desc) { desc.layout.scale_order = ScaleOrder::kSm10xV; });
  add("interleaved planes", [](AttnDesc& desc) { desc.layout.plane_order = PlaneOrder::kInterleaved; });
  add("lane scale order", [](AttnDesc& desc) { desc.layout.scale_order = ScaleOrder::kLanes; });
  return all;
}

TEST(KernelTable, EveryFeatureHasItsOwnName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumAttnFeatures; ++i) names.insert(to_string(static_cast<AttnFeature>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumAttnFeatures));
  EXPECT_FALSE(names.contains("?"));
}

TEST(KernelTable, NeededFeaturesNameEachOption) {
  EXPECT_TRUE(needed_features(plain()).empty());
  for (const NamedDesc& c : one_option_each(KvFormat::kE4m3)) EXPECT_EQ(to_string(needed_features(c.desc)), c.feature);
}

TEST(KernelTable, RowsAreWellFormed) {
  std::set<std::tuple<AttnOp, DeviceFamily, std::string_view>> names;
  for (const KernelRow& row : kernel_table().rows) {
    EXPECT_TRUE(names.insert({row.op, row.family, row.name}).second) << row.name;
    EXPECT_FALSE(row.formats.empty()) << row.name;
    EXPECT_FALSE(row.verified_on.empty() && row.compiled_for.empty()) << row.name;
    if (row.family == DeviceFamily::kCpu) {
      EXPECT_EQ(row.graph, GraphSupport::kNever) << row.name;
    }
  }
}

TEST(SelectKernel, FindsACpuKernelForEveryFormatAndOption) {
  for (AttnOp op : kAttnOps) {
    for (KvFormat format : kFormats) {
      EXPECT_TRUE(select_kernel(op, DeviceInfo{}, plain(format)));
      for (const NamedDesc& c : one_option_each(format)) {
        const Result<const KernelRow*> row = select_kernel(op, DeviceInfo{}, c.desc);
        EXPECT_TRUE(row) << to_string(op) << " " << c.feature << ": " << row.error().to_string();
      }
    }
  }
}

TEST(SelectKernel, TakesAnyGroupSizeUpTo128OnTheCpu) {
  const std::pair<int32_t, int32_t> heads[] = {{14, 2}, {24, 4}, {40, 8}, {64, 4}, {28, 4}, {71, 1}, {9, 3}, {128, 1}};
  for (const auto& [num_q_heads, num_kv_heads] : heads) {
    AttnDesc desc = plain();
    desc.num_q_heads = num_q_heads;
    desc.layout.num_kv_heads = num_kv_heads;
    EXPECT_TRUE(select_kernel(AttnOp::kDecode, DeviceInfo{}, desc)) << num_q_heads << "/" << num_kv_heads;
  }
}

TEST(SelectKernel, TakesEveryUsualHeadDimOnTheCpu) {
  for (int32_t head_dim : {16, 64, 80, 96, 128, 192, 256, 512}) {
    AttnDesc desc = plain();
    desc.layout.head_dim_k = desc.layout.head_dim_v = head_dim;
    EXPECT_TRUE(select_kernel(AttnOp::kPrefill, DeviceInfo{}, desc)) << head_dim;
  }
}

TEST(SelectKernel, RefusalsNameWhatIsNeededAndOffered) {
  const auto refusal = [](auto change) {
    AttnDesc desc = plain();
    change(desc);
    const Result<const KernelRow*> row = select_kernel(AttnOp::kDecode, DeviceInfo{}, desc);
    EXPECT_FALSE(row);
    EXPECT_EQ(row.error().code(), StatusCode::kUnsupported);
    return row.error().message();
  };
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.layout.head_dim_k = 24; }),
              AllOf(HasSubstr("needed: head_dim_k 24"), HasSubstr("16 to 512 in steps of 16")));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.num_q_heads = 129 * 8; }),
              AllOf(HasSubstr("needed: 129 query heads per KV head"), HasSubstr("up to 128")));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.num_q_heads = 30; }), HasSubstr("30 query heads on 8 KV heads"));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.layout.page_size = 48; }),
              AllOf(HasSubstr("needed: page size 48"), HasSubstr("powers of two from 1 to 256")));
}

TEST(SelectKernel, SaysThatABuildHasNoCudaKernels) {
  const KernelTable table{.rows = kernel_table().rows, .has_cuda = false};
  for (int32_t compute_capability : kComputeCapabilities) {
    const DeviceInfo device = *describe_compute_capability(compute_capability);
    for (AttnOp op : kAttnOps) {
      const Result<const KernelRow*> row = select_kernel(op, device, plain(), table);
      ASSERT_FALSE(row);
      EXPECT_EQ(row.error().code(), StatusCode::kUnsupported);
      EXPECT_THAT(row.error().message(),
                  AllOf(HasSubstr("this build has no CUDA kernels"), HasSubstr(std::string(to_string(device.family))),
                        HasSubstr("offered: CPU")));
    }
  }
}

// A table such as a CUDA build may have one day: what follows must come from its rows alone.
constexpr FormatSet kTwoFormats{KvFormat::kBf16, KvFormat::kNvfp4};
constexpr FeatureSet kFewFeatures{AttnFeature::kWindow, AttnFeature::kRagged, AttnFeature::kSinks};
constexpr KernelRow kFakeRows[] = {
    {AttnOp::kAppend, DeviceFamily::kSm90, "fake/append", kTwoFormats, kCudaKvLimits, kFewFeatures,
     GraphSupport::kAlways, "H200", ""},
    {AttnOp::kDecode, DeviceFamily::kSm90, "fake/decode_tuned", FormatSet{KvFormat::kBf16}, kCudaKvLimits,
     FeatureSet{AttnFeature::kRagged}, GraphSupport::kAlways, "H200", ""},
    {AttnOp::kDecode, DeviceFamily::kSm90, "fake/decode", kTwoFormats, kCudaKvLimits, kFewFeatures,
     GraphSupport::kAlways, "H200", ""},
    {AttnOp::kPrefill, DeviceFamily::kSm90, "fake/prefill", kTwoFormats, kCudaKvLimits, kFewFeatures,
     GraphSupport::kAlways, "", "SM90"},
    {AttnOp::kDecode, DeviceFamily::kSm12x, "fake/decode_uniform", kTwoFormats, kCudaKvLimits,
     FeatureSet{AttnFeature::kWindow}, GraphSupport::kUniformBatch, "", "SM12x"},
};
constexpr KernelTable kFakeTable{.rows = kFakeRows, .has_cuda = true};
const HostOptions kFakeHost{.table = kFakeTable};

TEST(SelectKernel, PrefersTheFirstRowThatFits) {
  const DeviceInfo hopper = *describe_compute_capability(90);
  AttnDesc windowed = plain();
  windowed.window = 64;
  EXPECT_EQ((*select_kernel(AttnOp::kDecode, hopper, plain(), kFakeTable))->name, "fake/decode_tuned");
  EXPECT_EQ((*select_kernel(AttnOp::kDecode, hopper, windowed, kFakeTable))->name, "fake/decode");
  EXPECT_EQ((*select_kernel(AttnOp::kDecode, hopper, plain(KvFormat::kNvfp4), kFakeTable))->name, "fake/decode");
}

TEST(SelectKernel, NamesTheOptionThatTheNearestRowLacks) {
  const DeviceInfo hopper = *describe_compute_capability(90);
  AttnDesc capped = plain(KvFormat::kNvfp4);
  capped.soft_cap = 30.0f;
  EXPECT_THAT(
      select_kernel(AttnOp::kDecode, hopper, capped, kFakeTable).error().message(),
      AllOf(HasSubstr("needed: soft cap"), HasSubstr("offered by fake/decode: features: sliding window, sinks")));
  EXPECT_THAT(select_kernel(AttnOp::kDecode, hopper, plain(KvFormat::kE5m2), kFakeTable).error().message(),
              AllOf(HasSubstr("K format e5m2"), HasSubstr("formats bf16")));
  EXPECT_THAT(select_kernel(AttnOp::kMerge, hopper, plain(), kFakeTable).error().message(),
              AllOf(HasSubstr("no merge kernel is built for SM90"), HasSubstr("offered: none")));
}

TEST(SelectKernel, NamesWhatARowCannotDoWithout) {
  const KernelRow rows[] = {{AttnOp::kDecode, DeviceFamily::kSm90, "fake/lanes", kTwoFormats, kCudaKvLimits,
                             FeatureSet{AttnFeature::kPackedCodes, AttnFeature::kLaneScales}, GraphSupport::kAlways, "",
                             "SM90", FeatureSet{AttnFeature::kPackedCodes, AttnFeature::kLaneScales}}};
  const KernelTable table{.rows = rows, .has_cuda = true};
  const DeviceInfo hopper = *describe_compute_capability(90);
  AttnDesc desc = plain(KvFormat::kNvfp4);
  desc.layout.code_order = CodeOrder::kPacked;
  EXPECT_THAT(select_kernel(AttnOp::kDecode, hopper, desc, table).error().message(),
              AllOf(HasSubstr("needed: a cache without lane scale order"),
                    HasSubstr("fake/lanes: only with packed code order, lane scale order")));
  desc.layout.scale_order = ScaleOrder::kLanes;
  EXPECT_TRUE(select_kernel(AttnOp::kDecode, hopper, desc, table));
}

// What the CUDA kernels cannot do must be refused by their rows, in words.
TEST(SelectKernel, CudaRowsRefuseByName) {
  const KernelTable table{.rows = kernel_table().rows, .has_cuda = true};
  const DeviceInfo hopper = *describe_compute_capability(90);
  const auto own_nvfp4 = [](AttnDesc& desc) {
    desc.layout.k_format = desc.layout.v_format = KvFormat::kNvfp4;
    desc.layout.code_order = CodeOrder::kPacked;
    desc.layout.scale_order = ScaleOrder::kLanes;
  };
  const auto refusal = [&](auto change) {
    AttnDesc desc = plain();
    change(desc);
    const Result<const KernelRow*> row = select_kernel(AttnOp::kDecode, hopper, desc, table);
    return row ? std::string("offered") : row.error().message();
  };
  EXPECT_EQ(refusal([](AttnDesc&) {}), "offered");
  EXPECT_EQ(refusal(own_nvfp4), "offered");
  EXPECT_EQ(refusal([](AttnDesc& d) { d.batch_invariant = true; }), "offered");
  EXPECT_THAT(refusal([](AttnDesc& d) { d.layout.v_format = KvFormat::kE4m3; }), HasSubstr("K format bf16"));
  EXPECT_THAT(refusal([](AttnDesc& d) { d.exact_pages = true; }), HasSubstr("needed: exact pages"));
  EXPECT_THAT(refusal([](AttnDesc& d) { d.layout.head_dim_k = d.layout.head_dim_v = 528; }),
              HasSubstr("head_dim_k 528"));
  EXPECT_THAT(refusal([](AttnDesc& d) { d.layout.k_format = d.layout.v_format = KvFormat::kF32; }),
              HasSubstr("K format f32"));
  EXPECT_THAT(refusal([&](AttnDesc& d) {
                own_nvfp4(d);
                d.layout.page_size = 4;
              }),
              HasSubstr("page size 4"));
}

// Kernels made for few rows come first; the general one decodes what they leave out.
TEST(SelectKernel, PrefersTheTunedCudaDecode) {
  const KernelTable table{.rows = kernel_table().rows, .has_cuda = true};
  const DeviceInfo hopper = *describe_compute_capability(90);
  const auto name = [&](AttnOp op, auto change) {
    AttnDesc desc = plain();
    change(desc);
    const Result<const KernelRow*> row = select_kernel(op, hopper, desc, table);
    return row ? std::string((*row)->name) : row.error().message();
  };
  EXPECT_EQ(name(AttnOp::kDecode, [](AttnDesc&) {}), "cuda/decode_splitkv_bf16");
  EXPECT_EQ(name(AttnOp::kPrefill, [](AttnDesc&) {}), "cuda/prefill_flash_bf16");
  EXPECT_EQ(name(AttnOp::kDecode, [](AttnDesc& d) { d.batch_invariant = true; }), "cuda/prefill_flash_bf16");
  const auto e5m2 = [](AttnDesc& d) { d.layout.k_format = d.layout.v_format = KvFormat::kE5m2; };
  EXPECT_EQ(name(AttnOp::kDecode, e5m2), "cuda/prefill_flash_quantised");
}

// Codes are linear where the hardware expands them, packed elsewhere; the other order is left to the general kernel.
TEST(SelectKernel, DecodesNvfp4InTheOrderOfItsFamily) {
  const KernelTable table{.rows = kernel_table().rows, .has_cuda = true};
  for (const int32_t capability : {80, 86, 89, 90, 100, 103, 110, 120}) {
    const DeviceInfo device = *describe_compute_capability(capability);
    for (const CodeOrder order : {CodeOrder::kPacked, CodeOrder::kLinear}) {
      AttnDesc desc = plain(KvFormat::kNvfp4);
      desc.layout.code_order = order;
      desc.layout.scale_order = ScaleOrder::kLanes;
      const auto row = select_kernel(AttnOp::kDecode, device, desc, table);
      ASSERT_TRUE(row) << row.error().message();
      const bool own = order == (capability < 100 ? CodeOrder::kPacked : CodeOrder::kLinear);
      EXPECT_EQ((*row)->name.starts_with("cuda/decode_splitkv_nvfp4"), own) << capability << " " << (*row)->name;
    }
  }
}

TEST(SelectKernel, GpuRowsCountOnlyInACudaBuild) {
  const DeviceInfo hopper = *describe_compute_capability(90);
  const KernelTable without_cuda{.rows = kFakeRows, .has_cuda = false};
  EXPECT_FALSE(select_kernel(AttnOp::kDecode, hopper, plain(), without_cuda));
  EXPECT_EQ(graph_support(hopper, plain(), {.table = without_cuda}), GraphSupport::kNever);
}

TEST(DefaultProfile, AnswersYesToEverythingOnTheCpu) {
  const DeviceInfo cpu;
  for (KvFormat format : kFormats) {
    for (const NamedDesc& c : one_option_each(format)) {
      SCOPED_TRACE(c.feature);
      EXPECT_TRUE(supports_configuration(cpu, c.desc));
      EXPECT_TRUE(supports_decode(cpu, c.desc));
      EXPECT_TRUE(supports_prefill(cpu, c.desc));
      EXPECT_TRUE(supports_sink(cpu, c.desc));
      EXPECT_EQ(supports_spec_as_decode(cpu, c.desc), SpecDecode::kRagged);
      EXPECT_EQ(graph_support(cpu, c.desc), GraphSupport::kNever);  // There are no graphs on a CPU.
      EXPECT_EQ(decode_query_type(cpu, c.desc), QueryType::kModel);
      EXPECT_EQ(prefill_query_type(cpu, c.desc), QueryType::kModel);
    }
  }
}

// A family without rows must not be promised anything, whatever is planned for it.
TEST(DefaultProfile, PromisesNothingForFamiliesWithoutRows) {
  for (int32_t compute_capability : kComputeCapabilities) {
    const DeviceInfo device = *describe_compute_capability(compute_capability);
    const auto has_row = [&](const KernelRow& row) { return row.family == device.family; };
    const KernelTable table = kernel_table();
    if (table.has_cuda && std::ranges::any_of(table.rows, has_row)) continue;
    for (KvFormat format : kFormats) {
      for (const NamedDesc& c : one_option_each(format)) {
        EXPECT_FALSE(supports_configuration(device, c.desc));
        EXPECT_FALSE(supports_decode(device, c.desc));
        EXPECT_FALSE(supports_prefill(device, c.desc));
        EXPECT_FALSE(supports_sink(device, c.desc));
        EXPECT_FALSE(supports_sink(device, c.desc).reason.empty());
        EXPECT_EQ(supports_spec_as_decode(device, c.desc), SpecDecode::kNone);
        EXPECT_EQ(graph_support(device, c.desc), GraphSupport::kNever);
      }
    }
  }
}

TEST(DefaultProfile, FollowsTheRowsOfWhateverTableItIsGiven) {
  const DeviceInfo hopper = *describe_compute_capability(90);
  const DeviceInfo spark = *describe_compute_capability(121);
  const AttnDesc fp4 = plain(KvFormat::kNvfp4);
  EXPECT_TRUE(supports_configuration(hopper, fp4, kFakeHost));
  EXPECT_TRUE(supports_sink(hopper, fp4, kFakeHost));
  EXPECT_EQ(graph_support(hopper, fp4, kFakeHost), GraphSupport::kAlways);
  EXPECT_EQ(supports_spec_as_decode(hopper, fp4, kFakeHost), SpecDecode::kRagged);
  EXPECT_EQ(graph_support(spark, fp4, kFakeHost), GraphSupport::kUniformBatch);
  EXPECT_EQ(supports_spec_as_decode(spark, fp4, kFakeHost), SpecDecode::kUniform);
  EXPECT_TRUE(supports_decode(spark, fp4, kFakeHost));
  EXPECT_FALSE(supports_prefill(spark, fp4, kFakeHost));
  EXPECT_FALSE(supports_sink(spark, fp4, kFakeHost));
  EXPECT_THAT(supports_configuration(spark, fp4, kFakeHost).reason, HasSubstr("no append kernel is built for SM12x"));
}

TEST(SupportMatrix, ShowsFamiliesWithoutRowsAsNotBuilt) {
  const std::string page = support_matrix_markdown(kFakeTable);
  EXPECT_THAT(page, HasSubstr("| SM90 | 9.0 | not built yet | built, not run | not built yet | not built yet | built, "
                              "not run |"));
  EXPECT_THAT(page, HasSubstr("| CPU | x86-64, ARM64 | not built yet |"));
  EXPECT_THAT(page, HasSubstr("| SM12x | 12.0, 12.1 | not built yet | not built yet |"));
  EXPECT_THAT(page, HasSubstr("| `fake/decode_uniform` | bf16, nvfp4 | 64 to 512, step 16 | up to 64 | 8 to 256 | "
                              "uniform batch | - | SM12x |"));
}

}  // namespace
}  // namespace kvant::attn
