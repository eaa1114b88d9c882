#include "server/props.h"

#include <algorithm>
#include <string_view>

namespace kvant::server {
namespace {

std::string_view name_of(engine::ToolCallStyle style) {
  switch (style) {
    case engine::ToolCallStyle::kNone: return "none";
    case engine::ToolCallStyle::kTagged: return "tagged";
    case engine::ToolCallStyle::kBare: return "bare";
    case engine::ToolCallStyle::kListed: return "listed";
  }
  return "none";
}

/// "nvfp4:policy=search:edges=16,32" to its parts.
Json spec_parts(std::string_view spec) {
  Json out = Json::object();
  size_t begin = 0;
  while (begin <= spec.size()) {
    const size_t end = std::min(spec.find(':', begin), spec.size());
    const std::string_view part = spec.substr(begin, end - begin);
    const size_t equals = part.find('=');
    // "k=e4m3/v=nvfp4" is a format, not an option.
    if (begin == 0 || equals == std::string_view::npos)
      out["encoding"] = part;
    else
      out[std::string(part.substr(0, equals))] = part.substr(equals + 1);
    begin = end + 1;
  }
  return out;
}

}  // namespace

Json props_json(const engine::EngineFacts& facts, const EngineHost& host, const std::string& model_name) {
  return {{"model", model_name},
          {"architecture", facts.architecture},
          {"layers", facts.num_layers},
          {"vocabulary", facts.vocabulary},
          {"kv",
           {{"format", facts.kv_format},
            {"parts", spec_parts(facts.kv_format)},
            {"bytes_per_token", facts.kv_bytes_per_token},
            {"bytes_per_token_16bit", facts.kv_bytes_per_token_16bit},
            {"scales", facts.kv_scale_source},
            {"memory", facts.kv_memory}}},
          {"route", facts.route},
          {"device", facts.device},
          {"weights", facts.weights},
          {"threads", facts.threads},
          {"tool_calls", name_of(facts.tool_calls)},
          {"limits",
           {{"context", facts.context},
            {"longest_request", facts.longest_request},
            {"parallel", facts.max_sequences},
            {"requests", host.max_requests()}}}};
}

}  // namespace kvant::server
