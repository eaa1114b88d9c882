#include <gtest/gtest.h>

#include "engine/cache/layer_groups.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/core/device.h"

namespace kvant::engine {
namespace {

ModelConfig model() {
  ModelConfig config;
  config.layers.resize(2);
  for (LayerConfig& layer : config.layers) {
    layer.num_q_heads = 32;
    layer.num_kv_heads = 8;
    layer.head_dim_k = layer.head_dim_v = 128;
    layer.softmax_scale = 0.088f;
  }
  return config;
}

class LayerGroupsOnDevices : public ::testing::TestWithParam<const char*> {
 protected:
  static LayerGroup group(const DeviceInfo& device) {
    const auto groups = make_layer_groups(model(), attn::parse_kv_spec(GetParam()).value(), 16, device);
    EXPECT_TRUE(groups) << groups.error().to_string();
    return groups->front();
  }
};

TEST_P(LayerGroupsOnDevices, HaveLayoutsThatTheDevicesKernelsRead) {
  const DeviceInfo hopper = describe_compute_capability(90).value();
  const attn::KernelTable with_cuda{.rows = attn::kernel_table().rows, .has_cuda = true};
  for (const DeviceInfo& device : {cpu_device(), hopper}) {
    const LayerGroup layers = group(device);
    for (const attn::AttnOp op : {attn::AttnOp::kDecode, attn::AttnOp::kPrefill, attn::AttnOp::kAppend}) {
      const auto kernel = attn::select_kernel(op, device, layers.desc, with_cuda);
      EXPECT_TRUE(kernel) << kernel.error().to_string();
    }
  }
  EXPECT_EQ(group(cpu_device()).desc.q_dtype, DType::kF32);
  EXPECT_EQ(group(hopper).desc.q_dtype, DType::kBf16);
  EXPECT_EQ(group(hopper).desc.layout.page_bytes(), group(cpu_device()).desc.layout.page_bytes());
}

INSTANTIATE_TEST_SUITE_P(Specs, LayerGroupsOnDevices,
                         ::testing::Values("bf16", "e4m3", "e4m3-plain", "nvfp4", "nvfp4-plain", "nvfp4:edges=40,0"));

}  // namespace
}  // namespace kvant::engine
