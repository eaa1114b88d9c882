#include <fmt/format.h>

#include "attn/cuda/backend.h"

namespace kvant::attn::cuda {
namespace {

Status unsupported(std::string_view call) {
  return {StatusCode::kUnsupported,
          fmt::format("{} on a CUDA stream needs a build with CUDA; this build offers the CPU (Stream::on_cpu)", call)};
}

}  // namespace

Result<AttentionRoute> attention_route(const AttnDesc&, const AttnLimits&, const DeviceInfo&, const KernelRow&) {
  return failure(unsupported("attention"));
}
Status check_kernel_images(const DeviceInfo&) { return unsupported("check_kernel_images"); }
Status prepare(const AttnPlan&, void*) { return unsupported("prepare"); }
Status attention(const AttnPlan&, const AttnArgs&, void*) { return unsupported("attention"); }
Status merge_parts(const MergeArgs&, void*) { return unsupported("merge"); }

}  // namespace kvant::attn::cuda
