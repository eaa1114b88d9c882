#include "kvant/attn/capability.h"

#include "attn/common/conservative_profile.h"

namespace kvant::attn {
namespace {

Support has_kernel(AttnOp op, const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  const Result<const KernelRow*> row = select_kernel(op, device, desc, host.table);
  return {.supported = row.has_value(), .reason = row ? std::string() : row.error().message()};
}

Support has_attention(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  if (Support decode = has_kernel(AttnOp::kDecode, device, desc, host); !decode) return decode;
  return has_kernel(AttnOp::kPrefill, device, desc, host);
}

}  // namespace

Support supports_configuration(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: {
      if (Support append = has_kernel(AttnOp::kAppend, device, desc, host); !append) return append;
      return has_attention(device, desc, host);
    }
    case HostProfile::kConservative: return conservative::supports_configuration(device, desc, host);
  }
  return {};
}

Support supports_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: return has_kernel(AttnOp::kDecode, device, desc, host);
    case HostProfile::kConservative: return conservative::supports_decode(device, desc, host);
  }
  return {};
}

Support supports_prefill(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: return has_kernel(AttnOp::kPrefill, device, desc, host);
    case HostProfile::kConservative: return conservative::supports_prefill(device, desc, host);
  }
  return {};
}

Support supports_sink(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: {
      AttnDesc with_sinks = desc;
      with_sinks.sinks = true;
      return has_attention(device, with_sinks, host);
    }
    case HostProfile::kConservative: return conservative::supports_sink(device, desc, host);
  }
  return {};
}

SpecDecode supports_spec_as_decode(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: {
      const Result<const KernelRow*> row = select_kernel(AttnOp::kDecode, device, desc, host.table);
      if (!row) return SpecDecode::kNone;
      return (*row)->features.contains(AttnFeature::kRagged) ? SpecDecode::kRagged : SpecDecode::kUniform;
    }
    case HostProfile::kConservative: return conservative::supports_spec_as_decode(device, desc, host);
  }
  return SpecDecode::kNone;
}

GraphSupport graph_support(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: {
      const Result<const KernelRow*> row = select_kernel(AttnOp::kDecode, device, desc, host.table);
      return row ? (*row)->graph : GraphSupport::kNever;
    }
    case HostProfile::kConservative: return conservative::graph_support(device, desc, host);
  }
  return GraphSupport::kNever;
}

QueryType decode_query_type(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: return QueryType::kModel;
    case HostProfile::kConservative: return conservative::decode_query_type(device, desc, host);
  }
  return QueryType::kModel;
}

QueryType prefill_query_type(const DeviceInfo& device, const AttnDesc& desc, const HostOptions& host) {
  switch (host.profile) {
    case HostProfile::kDefault: return QueryType::kModel;
    case HostProfile::kConservative: return conservative::prefill_query_type(device, desc);
  }
  return QueryType::kModel;
}

}  // namespace kvant::attn
