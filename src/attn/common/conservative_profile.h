#pragma once

#include "kvant/attn/capability.h"

namespace kvant::attn::conservative {

// The answers of vLLM 0.33's FlashInfer backend, restated as rules; docs/design/2026-11-29-batch-semantics.md says
// where kvant's own differ.

Support supports_configuration(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
Support supports_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
Support supports_prefill(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
Support supports_sink(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
SpecDecode supports_spec_as_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
GraphSupport graph_support(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
QueryType decode_query_type(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host);
QueryType prefill_query_type(const DeviceInfo& device, const AttnDesc& desc);

}  // namespace kvant::attn::conservative
