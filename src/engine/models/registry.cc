#include "engine/models/registry.h"

#include <algorithm>

namespace kvant::engine {
namespace {

constexpr Family kFamilies[] = {
    {.name = "llama", .hf_class = "LlamaForCausalLM", .interleaved_gguf_rows = true},
    {.name = "mistral", .hf_class = "MistralForCausalLM", .in_gguf = false},
    {.name = "qwen2", .hf_class = "Qwen2ForCausalLM", .bias = AttentionBias::kQkv, .window_if_told = true},
    {.name = "qwen3", .hf_class = "Qwen3ForCausalLM", .head_dim = 128, .qk_norm = true, .window_if_told = true},
    {.name = "qwen3moe", .hf_class = "Qwen3MoeForCausalLM", .qk_norm = true, .window_if_told = true},
    {.name = "gemma2",
     .hf_class = "Gemma2ForCausalLM",
     .head_dim = 256,
     .post_norms = true,
     .norms_minus_one = true,
     .scaled_embedding = true,
     .activation = Activation::kGeluTanh,
     .window_period = 2,
     .wide_scale_layers = 46,
     .score_cap = 50.0f,
     .final_cap = 30.0f},
    {.name = "gemma3",
     .hf_class = "Gemma3ForCausalLM",
     .head_dim = 256,
     .qk_norm = true,
     .post_norms = true,
     .norms_minus_one = true,
     .scaled_embedding = true,
     .activation = Activation::kGeluTanh,
     .theta = 1e6f,
     .window_theta = 10000.0f,
     .window_period = 6,
     .wide_scale_layers = 62},
    {.name = "gpt-oss",
     .hf_class = "GptOssForCausalLM",
     .gguf_ffn_norm = "post_attention_norm",
     .head_dim = 64,
     .sinks = true,
     .bias = AttentionBias::kAll,
     .activation = Activation::kClampedSwish,
     .theta = 150000.0f,
     .whole_yarn_pairs = false,
     .window_period = 2,
     .expert_files = ExpertFiles::kGptOss},
    {.name = "smollm3",
     .hf_class = "SmolLM3ForCausalLM",
     .interleaved_gguf_rows = true,
     .theta = 2e6f,
     .window_if_told = true,
     .rope_period = 4},
};

template <class Uses, class NameOf>
std::string names(Uses uses, NameOf name_of) {
  std::string out;
  for (const Family& family : kFamilies)
    if (uses(family)) out += (out.empty() ? "" : ", ") + std::string(name_of(family));
  return out;
}

template <class Matches>
const Family* find(Matches matches) {
  const Family* found = std::find_if(std::begin(kFamilies), std::end(kFamilies), matches);
  return found == std::end(kFamilies) ? nullptr : found;
}

}  // namespace

std::string_view to_string(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone: return "none";
    case RopeScalingKind::kLinear: return "linear";
    case RopeScalingKind::kLlama3: return "llama3";
    case RopeScalingKind::kYarn: return "yarn";
    case RopeScalingKind::kDynamic: return "dynamic";
  }
  return "?";
}

std::span<const Family> families() { return kFamilies; }

const Family* find_gguf_family(std::string_view architecture) {
  return find([&](const Family& family) { return family.in_gguf && family.name == architecture; });
}

const Family* find_folder_family(std::string_view hf_class) {
  return find([&](const Family& family) { return family.hf_class == hf_class; });
}

std::string gguf_family_names() {
  return names([](const Family& family) { return family.in_gguf; }, [](const Family& family) { return family.name; });
}

std::string folder_family_names() {
  return names([](const Family&) { return true; }, [](const Family& family) { return family.hf_class; });
}

}  // namespace kvant::engine
