#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "command.h"
#include "engine/quality/kv_quality.h"
#include "file_io.h"
#include "kvant/attn/kv_spec.h"
#include "model_options.h"

namespace kvant::cli {
namespace {

struct EvalOptions {
  ModelOptions model;
  std::string text;
  std::vector<std::string> kv;
  int32_t context = 512;
  int32_t chunks = 0;
  std::string svg;
  bool json = false;
};

// Defaults that keep a run to minutes.
constexpr int32_t kShortContext = 512;
constexpr int32_t kShortChunks = 6;
constexpr int32_t kLongChunks = 3;

constexpr const char* kExamples =
    "  kvant eval kv model.gguf --text book.txt --kv nvfp4 --kv nvfp4-plain --kv e4m3\n"
    "  kvant eval kv --model model.gguf --text book.txt --context 2048 --kv nvfp4 --weights f32 --json\n"
    "  kvant eval kv model.gguf --text book.txt --kv nvfp4 --kv e4m3 --svg quality.svg\n";

void add_options(CLI::App& app, EvalOptions& options) {
  add_model_path(app, options.model.model);
  app.add_option("--text", options.text, "Text to predict")->required()->type_name("FILE");
  app.add_option("--kv", options.kv, "KV cache to measure against an f16 one; several may be given")
      ->required()
      ->type_name("SPEC");
  app.add_option("-c,--context", options.context, "Tokens of a chunk")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20))
      ->type_name("N");
  app.add_option("--chunks", options.chunks, "Chunks of text; 0 = 6 up to a context of 512, else 3")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 16))
      ->type_name("N");
  app.add_option("--svg", options.svg, "Also write a plot: KL divergence against bytes per token")->type_name("FILE");
  options.model.weights = "f32";
  add_load_options(app, options.model);
  app.add_flag("--json", options.json, "Print one JSON object instead of a table");
}

Status run(const EvalOptions& options) {
  engine::KvQualityOptions quality;
  quality.context = options.context;
  quality.chunks = options.chunks;
  if (options.chunks == 0) quality.chunks = options.context <= kShortContext ? kShortChunks : kLongChunks;
  for (const std::string& text : options.kv) {
    KVANT_ASSIGN_OR_RETURN(attn::KvSpec spec, attn::parse_kv_spec(text));
    quality.specs.push_back(std::move(spec));
  }
  KVANT_ASSIGN_OR_RETURN(const std::string text, read_text(options.text));

  ProgressBar bar;
  quality.progress = progress_to(bar);
  engine::LoadOptions load;
  engine::set_load_options(quality, load);
  KVANT_ASSIGN_OR_RETURN(const auto model, load_model(options.model, std::move(load), bar));
  KVANT_ASSIGN_OR_RETURN(const engine::KvQualityReport report, engine::measure_kv_quality(*model, text, quality));
  bar.erase();
  if (!options.svg.empty()) KVANT_RETURN_IF_ERROR(write_atomically(options.svg, engine::to_svg(report)));
  std::string out = options.json ? engine::to_json(report) : engine::to_table(report);
  if (out.empty() || out.back() != '\n') out += '\n';
  std::fputs(out.c_str(), stdout);
  return {};
}

}  // namespace

void add_eval_kv(CLI::App& parent, Action& action) {
  add_command<EvalOptions>(parent, action, "kv", "How far KV caches move a model's predictions from an f16 cache",
                           kExamples, add_options, run);
}

}  // namespace kvant::cli
