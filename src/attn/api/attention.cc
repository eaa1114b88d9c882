#include "kvant/attn/attention.h"

#include <algorithm>

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

Status check_merge(const MergeArgs& args) {
  if (args.num_tokens < 0 || args.num_q_heads < 1 || args.head_dim_v < 1)
    return invalid(fmt::format("merge of [{}, {}, {}] rows; num_q_heads and head_dim_v must be at least 1",
                               args.num_tokens, args.num_q_heads, args.head_dim_v));
  if (args.outs.empty() || args.outs.size() != args.lses.size())
    return invalid(fmt::format("merge of {} outputs and {} LSEs; equal counts, at least 1, are needed",
                               args.outs.size(), args.lses.size()));
  const auto is_null = [](const float* p) { return p == nullptr; };
  if (args.out == nullptr || std::ranges::any_of(args.outs, is_null) || std::ranges::any_of(args.lses, is_null))
    return invalid("merge needs out and every part's output and LSE");
  return {};
}

// A run may hold rows of every phase, so both kinds of kernel are needed. The longest request decides which runs.
Result<const KernelRow*> select_route(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device) {
  KVANT_ASSIGN_OR_FAIL(const KernelRow* prefill, select_kernel(AttnOp::kPrefill, device, desc));
  KVANT_ASSIGN_OR_FAIL(const KernelRow* decode, select_kernel(AttnOp::kDecode, device, desc));
  const int64_t rows = int64_t{limits.max_query_len} * (desc.num_q_heads / desc.layout.num_kv_heads);
  return decode->max_rows == 0 || rows <= decode->max_rows ? decode : prefill;
}

}  // namespace

Result<size_t> workspace_size(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device,
                              int num_threads) {
  KVANT_FAIL_IF_ERROR(check_plan(desc, limits, num_threads));
  KVANT_ASSIGN_OR_FAIL(const KernelRow* kernel, select_route(desc, limits, device));
  if (device.family == DeviceFamily::kCpu) return cpu::attention_workspace(desc, limits, num_threads);
  KVANT_ASSIGN_OR_FAIL(const cuda::AttentionRoute route, cuda::attention_route(desc, limits, device, *kernel));
  return route.workspace_bytes;
}

Result<AttnPlan> make_plan(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int num_threads,
                           Workspace workspace) {
  KVANT_ASSIGN_OR_FAIL(const size_t needed, workspace_size(desc, limits, device, num_threads));
  if (workspace.data == nullptr || workspace.bytes < needed)
    return failure(invalid(fmt::format("a workspace of {} bytes is too small; workspace_size asks for {}",
                                       workspace.data == nullptr ? 0 : workspace.bytes, needed)));
  KVANT_ASSIGN_OR_FAIL(const KernelRow* kernel, select_route(desc, limits, device));
  AttnPlan plan;
  plan.desc_ = desc;
  plan.limits_ = limits;
  plan.device_ = device;
  plan.workspace_ = workspace;
  if (device.family == DeviceFamily::kCpu) {
    plan.route_ = fmt::format("{}/{}", kernel->name, cpu::isa_name());
    return plan;
  }
  KVANT_ASSIGN_OR_FAIL(cuda::AttentionRoute route, cuda::attention_route(desc, limits, device, *kernel));
  plan.route_ = fmt::format("{}/{}", kernel->name, route.name);
  plan.launch_ = route.launch;
  return plan;
}

Status check_kernel_images(const DeviceInfo& device) {
  return device.family == DeviceFamily::kCpu ? Status{} : cuda::check_kernel_images(device);
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
  KVANT_RETURN_IF_ERROR(check_merge(args));
  return stream.pool != nullptr ? cpu::merge_parts(args, *stream.pool) : cuda::merge_parts(args, stream.cuda);
}

}  // namespace kvant::attn
