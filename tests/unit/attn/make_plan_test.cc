#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/attention.h"
#include "kvant/attn/kernel_table.h"

namespace kvant::attn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

AttnDesc small() {
  AttnDesc desc;
  desc.num_q_heads = 4;
  desc.layout = {.head_dim_k = 64, .head_dim_v = 64, .num_kv_heads = 2};
  desc.softmax_scale = 0.125f;
  return desc;
}

Result<AttnPlan> plan(const AttnDesc& desc, const DeviceInfo& device = {}) {
  static std::vector<std::byte> memory(1 << 22);
  return make_plan(desc, AttnLimits{}, device, 1, Workspace{memory.data(), memory.size()});
}

TEST(MakePlan, NamesTheRouteAfterTheKernelTable) {
  const Result<AttnPlan> made = plan(small());
  ASSERT_TRUE(made) << made.error().to_string();
  const Result<const KernelRow*> row = select_kernel(AttnOp::kDecode, DeviceInfo{}, small());
  ASSERT_TRUE(row);
  EXPECT_THAT(made->route(), StartsWith(std::string((*row)->name) + "/"));
}

TEST(MakePlan, NeedsNoPreparationOnTheCpu) {
  const Result<AttnPlan> made = plan(small());
  ASSERT_TRUE(made);
  EXPECT_EQ(prepare(*made, Stream{}), Status());
}

TEST(MakePlan, RefusesAGpuThatThisBuildHasNoKernelsFor) {
  if (kernel_table().has_cuda) GTEST_SKIP() << "a CUDA build";
  for (int32_t compute_capability : {80, 90, 100, 110, 121}) {
    const Result<AttnPlan> made = plan(small(), *describe_compute_capability(compute_capability));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), StatusCode::kUnsupported);
    EXPECT_THAT(made.error().message(), AllOf(HasSubstr("no CUDA kernels"), HasSubstr("offered: CPU")));
  }
}

TEST(MakePlan, RefusesInvalidConfigurations) {
  const auto refusal = [](auto change) {
    AttnDesc desc = small();
    change(desc);
    const Result<AttnPlan> made = plan(desc);
    return made ? std::string("made") : made.error().to_string();
  };
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.num_q_heads = 3; }), HasSubstr("3 query heads on 2 KV heads"));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.num_q_heads = 258; }), HasSubstr("129 query heads per KV head"));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.softmax_scale = std::nanf(""); }), HasSubstr("softmax_scale nan"));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.exact_pages = true; }), HasSubstr("exact pages"));
  EXPECT_THAT(refusal([](AttnDesc& desc) { desc.layout.page_size = 24; }), HasSubstr("page size 24"));
}

TEST(MakePlan, RefusesAWorkspaceThatIsTooSmall) {
  const Result<size_t> bytes = workspace_size(small(), AttnLimits{}, DeviceInfo{}, 1);
  ASSERT_TRUE(bytes);
  ASSERT_GT(*bytes, size_t{1});
  std::vector<std::byte> memory(*bytes - 1);
  const Result<AttnPlan> made =
      make_plan(small(), AttnLimits{}, DeviceInfo{}, 1, Workspace{memory.data(), memory.size()});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr(std::to_string(*bytes)));
}

}  // namespace
}  // namespace kvant::attn
