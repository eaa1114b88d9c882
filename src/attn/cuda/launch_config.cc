#include "attn/cuda/launch_config.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "attn/cuda/common/cuda_status.h"
#include "core/overlapped_launch.h"

namespace kvant::attn::cuda {

std::byte* workspace_base(const AttnPlan& plan) {
  return reinterpret_cast<std::byte*>(aligned(reinterpret_cast<size_t>(plan.workspace().data)));
}

Status check_current_device(const DeviceInfo& device) {
  int index = 0, major = 0, minor = 0;
  KVANT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&index), "cudaGetDevice"));
  KVANT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "cudaDeviceGetAttribute"));
  KVANT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "cudaDeviceGetAttribute"));
  if (10 * major + minor == device.compute_capability) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("the plan is for {} (compute capability {}) but the thread's current device {} has {}.{}; call "
                      "cudaSetDevice first",
                      device.name, device.compute_capability, index, major, minor)};
}

Result<int32_t> count_blocks(const KernelImage& image, int32_t shared_bytes, int32_t max_blocks,
                             const DeviceInfo& device) {
  if (shared_bytes > device.shared_memory_per_block) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("the kernel needs {} bytes of shared memory per block and {} offers {}; fewer requests "
                               "per run, or a smaller head dim, need less",
                               shared_bytes, device.name, device.shared_memory_per_block));
  }
  KVANT_FAIL_IF_ERROR(
      cuda_status(cudaFuncSetAttribute(image.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                  "cudaFuncSetAttribute"));
  int per_multiprocessor = 0;
  KVANT_FAIL_IF_ERROR(cuda_status(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, image.function, image.threads * image.teams,
                                                    static_cast<size_t>(shared_bytes)),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor"));
  if (per_multiprocessor < 1)
    return failure(StatusCode::kUnsupported, fmt::format("no block of the kernel fits {}", device.name));
  return std::min(per_multiprocessor * device.num_multiprocessors, max_blocks);
}

Result<int32_t> count_cluster_blocks(const KernelImage& image, int32_t shared_bytes, int32_t cluster,
                                     int32_t max_blocks) {
  const OverlappedLaunch launch(dim3(static_cast<unsigned>(max_blocks / cluster * cluster)),
                                static_cast<unsigned>(image.threads), static_cast<size_t>(shared_bytes), false, nullptr,
                                static_cast<unsigned>(cluster));
  int clusters = 0;
  KVANT_FAIL_IF_ERROR(cuda_status(cudaOccupancyMaxActiveClusters(&clusters, image.function, launch.config()),
                                  "cudaOccupancyMaxActiveClusters"));
  return std::min(clusters, max_blocks / cluster) * cluster;
}

Status spread_clusters(const KernelImage& image) {
  // As an attribute of launches the driver takes it for another policy: measured.
  return cuda_status(cudaFuncSetAttribute(image.function, cudaFuncAttributeClusterSchedulingPolicyPreference,
                                          cudaClusterSchedulingPolicyLoadBalancing),
                     "cudaFuncSetAttribute");
}

Status launch(const AttnPlan& plan, const KernelImage& image, void* params, bool overlap, void* stream,
              int32_t cluster) {
  const AttnLaunch& config = plan.launch();
  const int32_t num_blocks =
      cluster == 1 ? config.num_blocks
                   : config.cluster_blocks[static_cast<size_t>(std::countr_zero(static_cast<uint32_t>(cluster)) - 1)];
  return launch_blocks(plan, image, num_blocks, config.shared_bytes, params, overlap, stream, cluster);
}

Status launch_blocks(const AttnPlan& plan, const KernelImage& image, int32_t num_blocks, int32_t shared_bytes,
                     void* params, bool overlap, void* stream, int32_t cluster) {
  void* arguments[] = {params};
  const OverlappedLaunch overlapped(dim3(static_cast<unsigned>(num_blocks)),
                                    dim3(static_cast<unsigned>(image.threads), static_cast<unsigned>(image.teams)),
                                    static_cast<size_t>(shared_bytes), overlap, stream, static_cast<unsigned>(cluster));
  const cudaError_t error = cudaLaunchKernelExC(overlapped.config(), image.function, arguments);
  return error == cudaSuccess ? Status{} : cuda_status(error, fmt::format("launch of {}", plan.route()));
}

Status check_image(std::string_view name, const KernelImage& image, const DeviceInfo& device) {
  cudaFuncAttributes attributes;
  KVANT_RETURN_IF_ERROR(
      cuda_status(cudaFuncGetAttributes(&attributes, image.function),
                  fmt::format("{} on {} (compute capability {})", name, device.name, device.compute_capability)));
  if (static_cast<int64_t>(attributes.sharedSizeBytes) + image.shared_bytes <= device.shared_memory_per_block)
    return {};
  return {StatusCode::kUnsupported, fmt::format("{} needs {} bytes of shared memory per block and {} offers {}", name,
                                                image.shared_bytes, device.name, device.shared_memory_per_block)};
}

Status check_alignment(std::string_view what, const void* pointer, int64_t stride) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 16 == 0) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("{}: address and stride ({} bytes) must be multiples of 16", what, stride)};
}

Status check_cache_memory(const AttnDesc& desc, const AttnArgs& args) {
  KVANT_RETURN_IF_ERROR(check_alignment("q", args.q, 0));
  KVANT_RETURN_IF_ERROR(check_alignment("out", args.out, 0));
  KVANT_RETURN_IF_ERROR(check_alignment("base pages", args.cache.base.data, args.cache.base.page_stride));
  if (desc.exact_pages)
    KVANT_RETURN_IF_ERROR(check_alignment("exact pages", args.cache.exact.data, args.cache.exact.page_stride));
  return {};
}

}  // namespace kvant::attn::cuda
