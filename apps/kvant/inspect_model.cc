#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "engine/cache/layer_groups.h"
#include "engine/loader/gguf.h"
#include "engine/models/model_source.h"
#include "engine/tokenizer/tokenizer.h"
#include "json_output.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/engine/model_config.h"
#include "model_options.h"

namespace kvant::cli {
namespace {

using engine::LayerConfig;
using engine::ModelConfig;

struct InspectModelOptions {
  std::string model;
  std::vector<std::string> kv = {"bf16", "e4m3", "nvfp4"};
  int32_t page = 16;
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant inspect model model.gguf\n"
    "  kvant inspect model model.gguf --kv nvfp4 --kv k=e4m3/v=nvfp4 --json\n";
constexpr const char* kChatTemplateKey = "tokenizer.chat_template";
constexpr int64_t kTokensOf32k = 32768;

void add_options(CLI::App& app, InspectModelOptions& options) {
  add_model_path(app, options.model);
  app.add_option("--kv", options.kv, "KV cache to size; may be given several times")
      ->type_name("SPEC")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
}

Result<int64_t> cache_bytes_per_token(const ModelConfig& config, const std::string& spec_text, int32_t page_size) {
  KVANT_ASSIGN_OR_FAIL(const attn::KvSpec spec, attn::parse_kv_spec(spec_text));
  KVANT_ASSIGN_OR_FAIL(
      const std::vector<engine::LayerGroup> groups,
      engine::make_layer_groups(config, attn::resolve_kv_spec(spec, config.kv_dtype), page_size, cpu_device()));
  int64_t bytes = 0;
  for (const engine::LayerGroup& group : groups)
    bytes += group.desc.layout.bytes_per_token() * static_cast<int64_t>(group.layers.size());
  return bytes;
}

Json describe_layer(int32_t index, const LayerConfig& layer) {
  return {{"layer", index},
          {"q_heads", layer.num_q_heads},
          {"kv_heads", layer.num_kv_heads},
          {"head_dim_k", layer.head_dim_k},
          {"head_dim_v", layer.head_dim_v},
          {"window", layer.window},
          {"soft_cap", layer.soft_cap},
          {"sinks", layer.sinks},
          {"qk_norm", layer.qk_norm},
          {"qkv_bias", layer.qkv_bias},
          {"rope_dim", layer.rope.dim},
          {"rope_theta", layer.rope.theta},
          {"rope_scaling", to_string(layer.rope.scaling.kind)}};
}

Json optional_id(std::optional<int32_t> id) { return id ? Json(*id) : Json(); }

Result<Json> describe(const InspectModelOptions& options) {
  KVANT_ASSIGN_OR_FAIL(engine::GgufFile opened, engine::GgufFile::open(options.model));
  const auto file = std::make_shared<const engine::GgufFile>(std::move(opened));
  KVANT_ASSIGN_OR_FAIL(const engine::ModelSource source, engine::open_gguf_model(file));
  KVANT_ASSIGN_OR_FAIL(const engine::Tokenizer tokenizer, engine::Tokenizer::from_gguf(*file));
  const ModelConfig& config = source.config;

  Json json = {{"architecture", config.architecture},
               {"name", config.name},
               {"num_layers", config.num_layers()},
               {"hidden_size", config.hidden_size},
               {"context_limit", config.context_limit}};
  for (int32_t i = 0; i < config.num_layers(); ++i)
    json["layers"].push_back(describe_layer(i, config.layers[static_cast<size_t>(i)]));
  for (const std::string& spec : options.kv) {
    KVANT_ASSIGN_OR_FAIL(const int64_t bytes, cache_bytes_per_token(config, spec, options.page));
    json["kv"].push_back({{"kv", spec}, {"bytes_per_token", bytes}, {"bytes_per_32k", bytes * kTokensOf32k}});
  }
  json["tokenizer"] = {{"vocabulary_size", tokenizer.vocabulary_size()},
                       {"pretokenizer", tokenizer.pretokenizer()},
                       {"pattern", tokenizer.pattern()},
                       {"bos", optional_id(tokenizer.bos())},
                       {"eos", optional_id(tokenizer.eos())},
                       {"add_bos", tokenizer.add_bos()}};
  json["chat_template"] = file->contains(kChatTemplateKey);
  return json;
}

std::string layer_text(const Json& layer) {
  std::string text =
      fmt::format("{:>7} {:>8} {:>7} {:>7} {:>8}", layer["q_heads"].get<int>(), layer["kv_heads"].get<int>(),
                  layer["head_dim_k"].get<int>(), layer["head_dim_v"].get<int>(),
                  layer["window"] == 0 ? "full" : std::to_string(layer["window"].get<int>()));
  for (const char* flag : {"sinks", "qk_norm", "qkv_bias"})
    if (layer[flag] == true) text += fmt::format("  {}", flag);
  if (layer["soft_cap"] != 0.0) text += fmt::format("  soft_cap {}", layer["soft_cap"].get<float>());
  return text;
}

/// Neighbours that are alike share a line.
void print_layers(const Json& layers) {
  std::printf("\n layers   q_heads kv_heads   dim_k   dim_v   window\n");
  for (size_t begin = 0; begin < layers.size();) {
    const std::string text = layer_text(layers[begin]);
    size_t end = begin + 1;
    while (end < layers.size() && layer_text(layers[end]) == text) ++end;
    const std::string range = end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
    std::printf("%7s   %s\n", range.c_str(), text.c_str());
    begin = end;
  }
}

void print_text(const Json& json) {
  const auto text = [&](const char* key) { return json[key].get<std::string>(); };
  std::printf("%s (%s), %d layers, hidden size %d, context %d\n", text("name").c_str(), text("architecture").c_str(),
              json["num_layers"].get<int>(), json["hidden_size"].get<int>(), json["context_limit"].get<int>());
  print_layers(json["layers"]);
  std::printf("\n%-24s %12s %12s\n", "KV cache", "bytes/token", "MiB at 32k");
  for (const Json& row : json["kv"]) {
    std::printf("%-24s %12lld %12.1f\n", row["kv"].get<std::string>().c_str(),
                static_cast<long long>(row["bytes_per_token"].get<int64_t>()),
                row["bytes_per_32k"].get<double>() / (1 << 20));
  }
  const Json& tokenizer = json["tokenizer"];
  std::printf("\ntokenizer: %d tokens, pre-tokenizer %s; chat template: %s\n", tokenizer["vocabulary_size"].get<int>(),
              tokenizer["pretokenizer"].get<std::string>().c_str(), json["chat_template"] == true ? "yes" : "no");
}

Status run(const InspectModelOptions& options) {
  KVANT_ASSIGN_OR_RETURN(const Json json, describe(options));
  if (options.json) {
    print_json(json);
  } else {
    print_text(json);
  }
  return {};
}

}  // namespace

void add_inspect_model(CLI::App& parent, Action& action) {
  add_command<InspectModelOptions>(parent, action, "model", "Architecture, layers, KV bytes and tokenizer of a model",
                                   kExamples, add_options, run);
}

}  // namespace kvant::cli
