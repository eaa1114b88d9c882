#include "engine/models/folder_rope.h"

#include <cmath>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace kvant::engine {
namespace {

/// "rope_type", or "type" in older files.
Result<std::string> rope_type(const JsonObject& parameters) {
  if (parameters.contains("rope_type")) return parameters.text("rope_type");
  return parameters.text_or("type", "default");
}

Result<RopeScaling> read_llama3(const JsonObject& parameters) {
  RopeScaling scaling{.kind = RopeScalingKind::kLlama3};
  KVANT_ASSIGN_OR_FAIL(scaling.factor, parameters.positive("factor"));
  KVANT_ASSIGN_OR_FAIL(scaling.low_frequency_factor, parameters.positive("low_freq_factor"));
  KVANT_ASSIGN_OR_FAIL(scaling.high_frequency_factor, parameters.positive("high_freq_factor"));
  KVANT_ASSIGN_OR_FAIL(scaling.original_context, parameters.size("original_max_position_embeddings"));
  return scaling;
}

Result<float> read_attention_factor(const JsonObject& parameters, float factor) {
  if (parameters.contains("attention_factor")) return parameters.positive("attention_factor");
  if (!parameters.contains("mscale") || !parameters.contains("mscale_all_dim")) return yarn_attention_factor(factor);
  KVANT_ASSIGN_OR_FAIL(const double some, parameters.number("mscale"));
  KVANT_ASSIGN_OR_FAIL(const double all, parameters.number("mscale_all_dim"));
  if (some == 0.0 || all == 0.0) return yarn_attention_factor(factor);
  const auto scale = [&](double by) {
    return factor > 1.0f ? 0.1 * by * std::log(static_cast<double>(factor)) + 1.0 : 1.0;
  };
  return static_cast<float>(scale(some) / scale(all));
}

Result<RopeScaling> read_yarn(const JsonObject& parameters, int32_t context) {
  RopeScaling scaling{.kind = RopeScalingKind::kYarn};
  KVANT_ASSIGN_OR_FAIL(scaling.original_context, parameters.size_or("original_max_position_embeddings", context));
  const float ratio = static_cast<float>(context) / static_cast<float>(scaling.original_context);
  KVANT_ASSIGN_OR_FAIL(scaling.factor, parameters.positive_or("factor", ratio));
  KVANT_ASSIGN_OR_FAIL(scaling.fast_turns, parameters.positive_or("beta_fast", scaling.fast_turns));
  KVANT_ASSIGN_OR_FAIL(scaling.slow_turns, parameters.positive_or("beta_slow", scaling.slow_turns));
  KVANT_ASSIGN_OR_FAIL(scaling.whole_pairs, parameters.boolean_or("truncate", true));
  KVANT_ASSIGN_OR_FAIL(scaling.attention_factor, read_attention_factor(parameters, scaling.factor));
  return scaling;
}

Result<RopeScaling> read_scaling(const JsonObject& parameters, int32_t context) {
  KVANT_ASSIGN_OR_FAIL(const auto type, rope_type(parameters));
  if (type == "default") return RopeScaling{};
  if (type == "llama3") return read_llama3(parameters);
  if (type == "yarn") return read_yarn(parameters, context);
  if (type == "linear" || type == "dynamic") {
    RopeScaling scaling{.kind = type == "linear" ? RopeScalingKind::kLinear : RopeScalingKind::kDynamic};
    KVANT_ASSIGN_OR_FAIL(scaling.factor, parameters.positive("factor"));
    return scaling;
  }
  return failure(StatusCode::kUnsupported,
                 fmt::format("{}: RoPE type '{}' is not supported; supported: default, linear, dynamic, yarn, llama3",
                             parameters.name(), type));
}

/// `parameters` holds the scaling and, in the newer spelling, theta too.
Result<RopeConfig> read_rope(const JsonObject& config, const JsonObject& parameters, float theta, int32_t head_dim) {
  RopeConfig rope{.scaling = {}, .frequency_factors = {}};
  KVANT_ASSIGN_OR_FAIL(const int32_t context, config.size("max_position_embeddings"));
  KVANT_ASSIGN_OR_FAIL(rope.theta, parameters.positive_or("rope_theta", theta));
  KVANT_ASSIGN_OR_FAIL(rope.scaling, read_scaling(parameters, context));
  KVANT_ASSIGN_OR_FAIL(const float all_of_head, config.positive_or("partial_rotary_factor", 1.0f));
  KVANT_ASSIGN_OR_FAIL(const float part, parameters.positive_or("partial_rotary_factor", all_of_head));
  rope.dim = static_cast<int32_t>(static_cast<float>(head_dim) * part);
  if (part > 1.0f || rope.dim < 2 || rope.dim % 2 != 0)
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: partial_rotary_factor {} of heads of {} channels turns {} of them; an even number "
                               "up to the head size is needed",
                               config.name(), part, head_dim, rope.dim));
  return rope;
}

}  // namespace

Result<FolderRopes> read_folder_ropes(const JsonObject& config, const Family& family, int32_t head_dim) {
  const float window_theta = family.window_theta > 0.0f ? family.window_theta : family.theta;
  FolderRopes out;
  KVANT_ASSIGN_OR_FAIL(const auto parameters, config.find_object("rope_parameters"));
  if (parameters && parameters->contains("full_attention")) {
    KVANT_ASSIGN_OR_FAIL(const JsonObject full, parameters->object("full_attention"));
    KVANT_ASSIGN_OR_FAIL(out.full, read_rope(config, full, family.theta, head_dim));
    KVANT_ASSIGN_OR_FAIL(const auto window, parameters->find_object("sliding_attention"));
    out.window = out.full;
    if (window) {
      KVANT_ASSIGN_OR_FAIL(out.window, read_rope(config, *window, window_theta, head_dim));
    }
    return out;
  }
  KVANT_ASSIGN_OR_FAIL(const float theta, config.positive_or("rope_theta", family.theta));
  KVANT_ASSIGN_OR_FAIL(const auto old_scaling, config.find_object("rope_scaling"));
  KVANT_ASSIGN_OR_FAIL(const JsonObject none, JsonObject::parse("{}", config.name()));
  const JsonObject& scaling = parameters ? *parameters : old_scaling ? *old_scaling : none;
  KVANT_ASSIGN_OR_FAIL(out.full, read_rope(config, scaling, theta, head_dim));
  out.window = out.full;
  if (family.window_theta > 0.0f) {
    KVANT_ASSIGN_OR_FAIL(const float local, config.positive_or("rope_local_base_freq", window_theta));
    KVANT_ASSIGN_OR_FAIL(out.window, read_rope(config, none, local, head_dim));
  }
  return out;
}

}  // namespace kvant::engine
