#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "engine/cache/layer_groups.h"
#include "engine/check_kv.h"
#include "engine/models/checkpoint_kv.h"
#include "engine/models/model_files.h"
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
  std::vector<std::string> kv;
  std::string kv_layers;
  int32_t page = 16;
  bool tokenizer = false;
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant inspect model model.gguf\n"
    "  kvant inspect model checkpoint-folder --kv auto\n"
    "  kvant inspect model model.gguf --kv nvfp4 --kv k=e4m3/v=nvfp4 --json\n";
constexpr int64_t kTokensOf32k = 32768;

void add_options(CLI::App& app, InspectModelOptions& options) {
  add_model_path(app, options.model);
  app.add_option("--kv", options.kv, "KV cache to size and check; may be given several times [auto, bf16, e4m3, nvfp4]")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  app.add_option("--kv-layers", options.kv_layers, "KV cache of single layers, as for run")->type_name("RULES");
  app.add_flag("--tokenizer", options.tokenizer, "Read the tokenizer, too");
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
}

/// What one --kv means for the model: sizes, or why it is refused.
struct KvAnswer {
  std::string text;
  Status status;
  attn::KvSpec resolved;
  std::vector<engine::LayerGroup> groups;

  int64_t bytes_per_token() const {
    int64_t bytes = 0;
    for (const engine::LayerGroup& group : groups)
      bytes += group.desc.layout.bytes_per_token() * static_cast<int64_t>(group.layers.size());
    return bytes;
  }
};

Status answer(const engine::ModelSource& source, const InspectModelOptions& options, KvAnswer& out) {
  const engine::CheckpointKv* kv = source.kv.get();
  ModelConfig config = source.config;
  const auto resolve = [&](const attn::KvSpec& spec) -> Result<attn::KvSpec> {
    KVANT_ASSIGN_OR_FAIL(const attn::KvSpec resolved, engine::resolve_checkpoint_spec(spec, config, kv, false));
    KVANT_FAIL_IF_ERROR(engine::check_checkpoint_spec(resolved, kv));
    return resolved;
  };
  KVANT_ASSIGN_OR_RETURN(const attn::KvSpec spec, attn::parse_kv_spec(out.text));
  KVANT_ASSIGN_OR_RETURN(out.resolved, resolve(spec));
  KVANT_ASSIGN_OR_RETURN(auto rules, engine::layer_specs(options.kv_layers, spec.automatic, config, kv));
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!rules[i]) continue;
    KVANT_ASSIGN_OR_RETURN(config.layers[i].kv_override, resolve(*rules[i]));
  }
  KVANT_RETURN_IF_ERROR(engine::check_kv_spec(out.resolved, config, cpu_device(), {.page_size = options.page}));
  KVANT_ASSIGN_OR_RETURN(out.groups, engine::make_layer_groups(config, out.resolved, options.page, cpu_device()));
  return {};
}

std::string rope_text(const engine::RopeConfig& rope) {
  if (rope.dim == 0) return "none";
  std::string text = fmt::format("{:g}", rope.theta);
  if (rope.scaling.kind != engine::RopeScalingKind::kNone)
    text += fmt::format(" {} x{:g}", to_string(rope.scaling.kind), rope.scaling.factor);
  if (!rope.frequency_factors.empty()) text += " with factors";
  return text;
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
          {"rope_scaling", to_string(layer.rope.scaling.kind)},
          {"rope", rope_text(layer.rope)}};
}

/// Adds the format that every layer has under an answer.
void add_layer_formats(const KvAnswer& kv, Json& layers) {
  for (const engine::LayerGroup& group : kv.groups)
    for (const int32_t index : group.layers) layers[static_cast<size_t>(index)]["kv"] = group.spec.to_string();
}

Json describe_kv(const KvAnswer& kv) {
  if (!kv.status.ok()) return {{"kv", kv.text}, {"refused", kv.status.message()}};
  const int64_t bytes = kv.bytes_per_token();
  return {{"kv", kv.text},
          {"means", kv.resolved.to_string()},
          {"bytes_per_token", bytes},
          {"bytes_per_32k", bytes * kTokensOf32k}};
}

/// What the checkpoint says of its cache, against what the first answer applies of it.
Json describe_scales(const engine::CheckpointKv& kv, const KvAnswer& first) {
  Json json = {{"declared", kv.quantisation.kv_format ? Json(to_string(*kv.quantisation.kv_format)) : Json()},
               {"source", kv.quantisation.source},
               {"found", kv.scales == nullptr ? 0 : kv.scales->num_tensors()},
               {"used", kv.scales == nullptr ? 0 : engine::count_used_scales(*kv.scales, first.groups)},
               {"query_scales", kv.num_query_scales},
               {"notices", kv.notices}};
  return json;
}

Json optional_id(std::optional<int32_t> id) { return id ? Json(*id) : Json(); }

Result<Json> describe_tokenizer(const engine::ModelFiles& files) {
  KVANT_ASSIGN_OR_FAIL(const engine::Tokenizer tokenizer, files.gguf != nullptr
                                                              ? engine::Tokenizer::from_gguf(*files.gguf)
                                                              : engine::Tokenizer::from_folder(files.folder->path));
  return Json{{"vocabulary_size", tokenizer.vocabulary_size()},
              {"pretokenizer", tokenizer.pretokenizer()},
              {"pattern", tokenizer.pattern()},
              {"bos", optional_id(tokenizer.bos())},
              {"eos", optional_id(tokenizer.eos())},
              {"add_bos", tokenizer.add_bos()},
              {"end_of_turn", std::vector<int32_t>(tokenizer.end_of_turn().begin(), tokenizer.end_of_turn().end())}};
}

/// `refused`: the first refusal of a cache that was asked for.
Result<Json> describe(const InspectModelOptions& options, Status& refused) {
  KVANT_ASSIGN_OR_FAIL(const engine::ModelFiles files, engine::ModelFiles::open(options.model));
  KVANT_ASSIGN_OR_FAIL(const engine::ModelSource source, files.open_model());
  const ModelConfig& config = source.config;
  const bool is_asked = !options.kv.empty();
  const std::vector<std::string> specs =
      is_asked ? options.kv : std::vector<std::string>{"auto", "bf16", "e4m3", "nvfp4"};
  std::vector<KvAnswer> answers;
  for (const std::string& text : specs) {
    KvAnswer& kv = answers.emplace_back(KvAnswer{.text = text, .status = {}, .resolved = {}, .groups = {}});
    kv.status = answer(source, options, kv);
    // Of the caches that are only shown, what matters is the one that would be used.
    if (!kv.status.ok() && refused.ok() && (is_asked || text == "auto"))
      refused = Status(kv.status.code(), fmt::format("--kv {}: {}", text, kv.status.message()));
  }

  Json json = {{"architecture", config.architecture},       {"name", config.name},
               {"num_layers", config.num_layers()},         {"hidden_size", config.hidden_size},
               {"vocabulary_size", config.vocabulary_size}, {"context_limit", config.context_limit}};
  for (int32_t i = 0; i < config.num_layers(); ++i)
    json["layers"].push_back(describe_layer(i, config.layers[static_cast<size_t>(i)]));
  add_layer_formats(answers.front(), json["layers"]);
  for (const KvAnswer& kv : answers) json["kv"].push_back(describe_kv(kv));
  if (source.kv != nullptr) json["kv_scales"] = describe_scales(*source.kv, answers.front());
  if (options.tokenizer) {
    KVANT_ASSIGN_OR_FAIL(json["tokenizer"], describe_tokenizer(files));
  }
  return json;
}

std::string layer_text(const Json& layer) {
  std::string text =
      fmt::format("{:>7} {:>8} {:>7} {:>7} {:>8}   {:<20} {:<34}", layer["q_heads"].get<int>(),
                  layer["kv_heads"].get<int>(), layer["head_dim_k"].get<int>(), layer["head_dim_v"].get<int>(),
                  layer["window"] == 0 ? "full" : std::to_string(layer["window"].get<int>()),
                  layer["rope"].get<std::string>(), layer.value("kv", "-"));
  for (const char* flag : {"sinks", "qk_norm", "qkv_bias"})
    if (layer[flag] == true) text += fmt::format("  {}", flag);
  if (layer["soft_cap"] != 0.0) text += fmt::format("  soft_cap {}", layer["soft_cap"].get<float>());
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

/// Neighbours that are alike share a line.
void print_layers(const Json& layers, const std::string& kv) {
  std::printf("\n layers   q_heads kv_heads   dim_k   dim_v   window   %-20s cache under --kv %s\n", "RoPE",
              kv.c_str());
  for (size_t begin = 0; begin < layers.size();) {
    const std::string text = layer_text(layers[begin]);
    size_t end = begin + 1;
    while (end < layers.size() && layer_text(layers[end]) == text) ++end;
    const std::string range = end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
    std::printf("%7s   %s\n", range.c_str(), text.c_str());
    begin = end;
  }
}

void print_scales(const Json& scales) {
  const int found = scales["found"].get<int>();
  if (!scales["declared"].is_null())
    std::printf("\nKV scheme: %s, from %s\n", scales["declared"].get<std::string>().c_str(),
                scales["source"].get<std::string>().c_str());
  if (found > 0) std::printf("KV scales: %d of %d used, all checked\n", scales["used"].get<int>(), found);
  if (found == 0 && !scales["declared"].is_null()) std::printf("KV scales: none in the checkpoint\n");
  if (const int count = scales["query_scales"].get<int>(); count > 0)
    std::printf("scales of queries: %d, not needed\n", count);
  for (const Json& notice : scales["notices"]) std::printf("%s\n", notice.get<std::string>().c_str());
}

void print_text(const Json& json) {
  const auto text = [&](const char* key) { return json[key].get<std::string>(); };
  std::printf("%s (%s), %d layers, hidden size %d, vocabulary %d, context %d\n", text("name").c_str(),
              text("architecture").c_str(), json["num_layers"].get<int>(), json["hidden_size"].get<int>(),
              json["vocabulary_size"].get<int>(), json["context_limit"].get<int>());
  print_layers(json["layers"], json["kv"][0]["kv"].get<std::string>());
  std::printf("\n%-24s %12s %12s\n", "KV cache", "bytes/token", "MiB at 32k");
  for (const Json& row : json["kv"]) {
    const std::string name = row["kv"].get<std::string>();
    if (row.contains("refused")) {
      std::printf("%-24s refused: %s\n", name.c_str(), row["refused"].get<std::string>().c_str());
      continue;
    }
    std::printf("%-24s %12lld %12.1f\n", name.c_str(), static_cast<long long>(row["bytes_per_token"].get<int64_t>()),
                row["bytes_per_32k"].get<double>() / (1 << 20));
  }
  if (json.contains("kv_scales")) print_scales(json["kv_scales"]);
  if (!json.contains("tokenizer")) return;
  const Json& tokenizer = json["tokenizer"];
  std::printf("\ntokenizer: %d tokens, pre-tokenizer %s: %s\n", tokenizer["vocabulary_size"].get<int>(),
              tokenizer["pretokenizer"].get<std::string>().c_str(), tokenizer["pattern"].get<std::string>().c_str());
}

Status run(const InspectModelOptions& options) {
  Status refused;
  KVANT_ASSIGN_OR_RETURN(const Json json, describe(options, refused));
  if (options.json) {
    print_json(json);
  } else {
    print_text(json);
  }
  return refused;
}

}  // namespace

void add_inspect_model(CLI::App& parent, Action& action) {
  add_command<InspectModelOptions>(parent, action, "model",
                                   "Architecture, layers, KV bytes and KV scales of a model, and what would be refused",
                                   kExamples, add_options, run);
}

}  // namespace kvant::cli
