#include "kvant/attn/attention.h"

#include <fmt/format.h>

#include "attn/cpu/cpu_attention.h"
#include "attn/cuda/backend.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/attn/validate.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status check_plan(const AttnDesc& desc, const AttnLimits& limits, int num_threads) {
  KVANT_RETURN_IF_ERROR(validate_attention(desc, limits));
  if (num_threads < 1) return invalid(fmt::format("num_threads {} must be at least 1", num_threads));
  return {};
}

// A run may hold rows of every phase, so both kinds of kernel are needed.
Result<const KernelRow*> select_route(const AttnDesc& desc, const DeviceInfo& device) {
  KVANT_FAIL_IF_ERROR(select_kernel(AttnOp::kPrefill, device, desc));
  return select_kernel(AttnOp::kDecode, device, desc);
}

}  // namespace

Result<size_t> workspace_size(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device,
                              int num_threads) {
  KVANT_FAIL_IF_ERROR(check_plan(desc, limits, num_threads));
  KVANT_FAIL_IF_ERROR(select_route(desc, device));
  if (device.family == DeviceFamily::kCpu) return cpu::attention_workspace(desc, limits, num_threads);
  KVANT_ASSIGN_OR_FAIL(const cuda::AttentionRoute route, cuda::attention_route(desc, limits, device));
  return route.workspace_bytes;
}

Result<AttnPlan> make_plan(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int num_threads,
                           Workspace workspace) {
  KVANT_ASSIGN_OR_FAIL(const size_t needed, workspace_size(desc, limits, device, num_threads));
  if (workspace.data == nullptr || workspace.bytes < needed)
    return failure(invalid(fmt::format("a workspace of {} bytes is too small; workspace_size asks for {}",
                                       workspace.data == nullptr ? 0 : workspace.bytes, needed)));
  KVANT_ASSIGN_OR_FAIL(const KernelRow* kernel, select_route(desc, device));
  AttnPlan plan;
  plan.desc_ = desc;
  plan.limits_ = limits;
  plan.device_ = device;
  plan.workspace_ = workspace;
  if (device.family == DeviceFamily::kCpu) {
    plan.route_ = fmt::format("{}/{}", kernel->name, cpu::isa_name());
    return plan;
  }
  KVANT_ASSIGN_OR_FAIL(cuda::AttentionRoute route, cuda::attention_route(desc, limits, device));
  plan.route_ = fmt::format("{}/{}", kernel->name, route.name);
  plan.launch_ = route.launch;
  return plan;
}

Status prepare(const AttnPlan& plan, Stream stream) {
  if (plan.device().family == DeviceFamily::kCpu) return {};
  if (stream.pool != nullptr) return invalid("a CUDA plan needs a CUDA stream, not a thread pool");
  return cuda::prepare(plan, stream.cuda);
}

Status run(const AttnPlan& plan, const AttnArgs& args, Stream stream) {
  if (plan.device().family != DeviceFamily::kCpu) {
    if (stream.pool != nullptr) return invalid("a CUDA plan needs a CUDA stream, not a thread pool");
    return cuda::attention(plan, args, stream.cuda);
  }
  if (stream.pool == nullptr) return invalid("a CPU plan needs a stream with a thread pool");
  return cpu::attention(plan.desc(), plan.limits(), plan.workspace(), args, *stream.pool);
}

Status merge(const MergeArgs& args, Stream stream) {
  if (stream.pool == nullptr)
    return {StatusCode::kUnsupported, "merge on a CUDA stream is not in this build; a stream with a thread pool is"};
  return cpu::merge_parts(args, *stream.pool);
}

}  // namespace kvant::attn
