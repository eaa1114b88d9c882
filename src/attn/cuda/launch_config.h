#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "attn/cuda/common/kernel_image.h"
#include "kvant/attn/attention.h"
#include "kvant/core/status.h"

namespace kvant::attn::cuda {

inline constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t aligned(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
/// First aligned byte of a plan's workspace.
std::byte* workspace_base(const AttnPlan& plan);

/// kInvalidArgument where the calling thread's current device is another kind.
Status check_current_device(const DeviceInfo& device);

/// Raises the kernel's shared-memory limit and counts the blocks that the device holds at once, `max_blocks` at most.
/// kUnsupported where none fits; a kernel without an image for the device is kCudaError.
Result<int32_t> count_blocks(const KernelImage& image, int32_t shared_bytes, int32_t max_blocks,
                             const DeviceInfo& device);

/// Blocks that the device holds at once in clusters of `cluster`, `max_blocks` at most; 0 where it holds none.
Result<int32_t> count_cluster_blocks(const KernelImage& image, int32_t shared_bytes, int32_t cluster,
                                     int32_t max_blocks);

/// Clusters of the kernel spread evenly over the multiprocessors, of which some get several and others none else.
Status spread_clusters(const KernelImage& image);

/// Launches `image` with one argument on the plan's grid, or on its grid for clusters of `cluster` blocks. Allocates
/// nothing unless it fails. With `overlap` the kernel may start before the stream's previous one has ended, and waits
/// for it by itself.
Status launch(const AttnPlan& plan, const KernelImage& image, void* params, bool overlap, void* stream,
              int32_t cluster = 1);
/// The same on any grid.
Status launch_blocks(const AttnPlan& plan, const KernelImage& image, int32_t num_blocks, int32_t shared_bytes,
                     void* params, bool overlap, void* stream, int32_t cluster = 1);

/// kCudaError where the device has no image of the kernel, kUnsupported where its shared memory does not fit.
Status check_image(std::string_view name, const KernelImage& image, const DeviceInfo& device);

/// Addresses and strides that kernels read 16 bytes at a time.
Status check_alignment(std::string_view what, const void* pointer, int64_t stride);
Status check_cache_memory(const AttnDesc& desc, const AttnArgs& args);

}  // namespace kvant::attn::cuda
