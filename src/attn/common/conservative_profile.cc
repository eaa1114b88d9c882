#include "attn/common/conservative_profile.h"

#include <algorithm>

#include <fmt/format.h>

namespace kvant::attn::conservative {
namespace {

Support yes() { return {.supported = true, .reason = {}}; }
Support no(std::string reason) { return {.supported = false, .reason = std::move(reason)}; }

bool is_nvfp4(const AttnDesc& desc) {
  return desc.layout.k_format == KvFormat::kNvfp4 || desc.layout.v_format == KvFormat::kNvfp4;
}
bool is_fp8(const AttnDesc& desc) {
  const KvFormat format = desc.layout.k_format;
  return format == KvFormat::kE4m3 || format == KvFormat::kE5m2;
}
bool is_causal(const AttnDesc& desc) { return desc.draft_mask == DraftMask::kCausal; }
bool is_context_parallel(const AttnDesc& desc) { return desc.context_parallel.size > 1; }

// Families whose only dedicated decode kernel is XQA.
bool has_xqa(const DeviceInfo& device) {
  return device.family == DeviceFamily::kSm90 || device.family == DeviceFamily::kSm12x;
}
bool has_trtllm_gen(const DeviceInfo& device) { return device.family == DeviceFamily::kSm10x; }
// Families whose NVFP4 caches go through the FA2 wrapper where no dedicated kernel takes them.
bool reads_nvfp4_with_fa2(const DeviceInfo& device) { return device.family == DeviceFamily::kSm8x || has_xqa(device); }

bool xqa_takes(const DeviceInfo& device, const AttnDesc& desc) {
  const int32_t head_dim = desc.layout.head_dim_k;
  if (head_dim < 16 || head_dim > 256 || head_dim % 16 != 0) return false;
  return !is_nvfp4(desc) || device.family == DeviceFamily::kSm12x;
}

// The dedicated decode kernel of the device takes this configuration.
bool uses_dedicated_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (!conservative::supports_decode(device, desc, host)) return false;
  return !has_xqa(device) || xqa_takes(device, desc);
}

Support supports_vendor_kernels(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (!host.vendor_kernels) return no("the host forbids XQA and trtllm-gen");
  if (desc.batch_invariant) return no("batch invariance turns XQA and trtllm-gen off");
  if (!has_xqa(device) && !has_trtllm_gen(device)) {
    return no(fmt::format("{} has neither XQA (SM90, SM12x) nor trtllm-gen (SM10x)", to_string(device.family)));
  }
  if (desc.layout.num_kv_heads < 1 || desc.num_q_heads % desc.layout.num_kv_heads != 0) {
    return no(fmt::format("{} query heads are no multiple of {} KV heads", desc.num_q_heads, desc.layout.num_kv_heads));
  }
  return yes();
}

Support check_page_size(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  static constexpr int32_t kPages[] = {16, 32, 64};
  static constexpr int32_t kLargePages[] = {128, 256, 512, 1024};
  const int32_t page_size = desc.layout.page_size;
  if (std::ranges::find(kPages, page_size) != std::end(kPages)) return yes();
  const bool is_large = std::ranges::find(kLargePages, page_size) != std::end(kLargePages);
  const bool large_allowed = has_trtllm_gen(device) && conservative::supports_decode(device, desc, host) &&
                             desc.num_q_heads > desc.layout.num_kv_heads;
  if (is_large && large_allowed) return yes();
  return no(fmt::format("page size {} is not 16, 32 or 64 (128 to 1024: grouped heads on SM10x only)", page_size));
}

Support check_nvfp4(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (!reads_nvfp4_with_fa2(device)) {
    if (conservative::supports_decode(device, desc, host) && conservative::supports_prefill(device, desc, host))
      return yes();
    return no("an nvfp4 cache here needs trtllm-gen for prefill and decode");
  }
  if (desc.layout.head_dim_k == 64) return no("the FA2 prefill misreads nvfp4 with head dim 64");
  if (is_context_parallel(desc)) return no("nvfp4 on FA2 does not go with context parallelism");
  if (!is_causal(desc) && !uses_dedicated_decode(device, desc, host)) {
    return no("nvfp4 on FA2 does not go with non-causal drafts");
  }
  return yes();
}

}  // namespace

Support supports_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  return supports_vendor_kernels(device, desc, host);
}

Support supports_prefill(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (Support support = supports_vendor_kernels(device, desc, host); !support) return support;
  if (has_xqa(device)) return no(fmt::format("XQA on {} has decode only", to_string(device.family)));
  return yes();
}

Support supports_sink(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (Support support = conservative::supports_decode(device, desc, host); !support) return support;
  if (is_nvfp4(desc) && reads_nvfp4_with_fa2(device)) {
    return no("the prefill wrapper for sinks cannot read an nvfp4 cache");
  }
  // XQA gives no LSE, so context parallelism leaves it for a wrapper that has no sinks.
  if (is_context_parallel(desc) && has_xqa(device)) return no("sinks on XQA do not go with context parallelism");
  return yes();
}

Support supports_configuration(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  static constexpr int32_t kHeadDims[] = {64, 128, 256, 512};
  const KvLayout& layout = desc.layout;
  if (device.family == DeviceFamily::kCpu) return no("the FlashInfer backend needs a GPU");
  if (device.compute_capability < 80 || device.compute_capability > 121) {
    return no(fmt::format("compute capability {} is outside 80 to 121", device.compute_capability));
  }
  if (layout.k_format != layout.v_format) return no("K and V need the same format");
  if (layout.k_format == KvFormat::kF32) return no("an f32 cache is not offered");
  if (layout.head_dim_k != layout.head_dim_v) return no("K and V need the same head dim");
  if (std::ranges::find(kHeadDims, layout.head_dim_k) == std::end(kHeadDims)) {
    return no(fmt::format("head dim {} is not 64, 128, 256 or 512", layout.head_dim_k));
  }
  if (Support support = check_page_size(device, desc, host); !support) return support;
  if (desc.sinks) {
    if (Support support = conservative::supports_sink(device, desc, host); !support) return support;
  }
  if (!is_causal(desc) && is_context_parallel(desc)) return no("non-causal drafts do not go with context parallelism");
  return is_nvfp4(desc) ? check_nvfp4(device, desc, host) : yes();
}

SpecDecode supports_spec_as_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (is_context_parallel(desc)) return SpecDecode::kNone;
  // Without XQA a non-causal batch is prefill as a whole.
  if (!is_causal(desc) && !has_xqa(device)) return SpecDecode::kNone;
  if (device.family == DeviceFamily::kSm8x) return SpecDecode::kUniform;
  if (!uses_dedicated_decode(device, desc, host)) return SpecDecode::kNone;
  return has_xqa(device) ? SpecDecode::kRagged : SpecDecode::kUniform;
}

GraphSupport graph_support(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (device.family == DeviceFamily::kCpu) return GraphSupport::kNever;
  if (is_context_parallel(desc)) return GraphSupport::kSingleToken;
  if (device.family == DeviceFamily::kSm8x) {
    return is_causal(desc) ? GraphSupport::kUniformBatch : GraphSupport::kSingleToken;
  }
  if (!uses_dedicated_decode(device, desc, host)) return GraphSupport::kSingleToken;
  return is_causal(desc) || has_xqa(device) ? GraphSupport::kUniformBatch : GraphSupport::kSingleToken;
}

QueryType decode_query_type(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  // Hopper's XQA and the wide-head wrapper take the model dtype with an fp8 cache; only the plain wrapper that a host
  // gets by forbidding XQA wants fp8 queries.
  if (device.family == DeviceFamily::kSm90 && is_fp8(desc)) {
    const bool wide_head = desc.layout.head_dim_k > 256;
    return host.vendor_kernels || wide_head ? QueryType::kModel : QueryType::kE4m3;
  }
  return conservative::prefill_query_type(device, desc);
}

QueryType prefill_query_type(const DeviceInfo& device, const AttnDesc& desc) {
  if (is_fp8(desc)) {
    const bool reads_fp8_queries = device.family == DeviceFamily::kSm90 || has_trtllm_gen(device);
    return reads_fp8_queries ? QueryType::kE4m3 : QueryType::kModel;
  }
  return is_nvfp4(desc) && has_trtllm_gen(device) ? QueryType::kE4m3 : QueryType::kModel;
}

}  // namespace kvant::attn::conservative
