#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvant/attn/attention.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/core/device.h"

namespace kvant::attn {

// What a host may ask before it loads a model: pure functions of a device description and a configuration. In an
// AttnDesc asked about here, draft_mask other than kCausal means that batches may hold non-causal draft blocks, and
// context_parallel.size counts the ranks.

/// Whose answers are wanted.
enum class HostProfile : uint8_t {
  kDefault,       ///< kvant's own: what the kernel table of this build can do.
  kConservative,  ///< vLLM 0.33's FlashInfer backend, right or wrong, for hosts whose logic was made round it.
};

struct HostOptions {
  HostProfile profile = HostProfile::kDefault;
  bool vendor_kernels = true;  ///< kConservative only: false = the host forbids XQA and trtllm-gen.
  KernelTable table = kernel_table();
};

/// A yes, or a no with its reason.
struct Support {
  bool supported = false;
  std::string reason;  ///< Empty for a yes.

  explicit operator bool() const { return supported; }
};

/// Whether the configuration can run at all, prefill and decode.
Support supports_configuration(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});

/// kDefault: there is a kernel for decode and verify rows. kConservative: one of the dedicated decode kernels (XQA,
/// trtllm-gen) may be used on the device, whatever the format.
Support supports_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});
Support supports_prefill(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});

/// Sinks in every phase; desc.sinks itself is not looked at.
Support supports_sink(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});

/// Which speculative batches run as decode rows; the others become prefills.
enum class SpecDecode : uint8_t { kNone, kUniform, kRagged };

constexpr std::string_view to_string(SpecDecode spec) {
  switch (spec) {
    case SpecDecode::kNone: return "none";
    case SpecDecode::kUniform: return "uniform batches";
    case SpecDecode::kRagged: return "uniform and ragged batches";
  }
  return "?";
}

SpecDecode supports_spec_as_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});

/// Graph level of decode and verify steps. kNever without a kernel.
GraphSupport graph_support(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});

/// Element type in which a kernel wants its queries.
enum class QueryType : uint8_t { kModel, kE4m3 };

constexpr std::string_view to_string(QueryType type) {
  switch (type) {
    case QueryType::kModel: return "model dtype";
    case QueryType::kE4m3: return "e4m3";
  }
  return "?";
}

/// For decode rows, and for prefill rows. kvant's own kernels always take the model dtype.
QueryType decode_query_type(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});
QueryType prefill_query_type(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host = {});

}  // namespace kvant::attn
