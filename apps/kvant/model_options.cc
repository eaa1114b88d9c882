#include "model_options.h"

#include <cstdio>
#include <string_view>
#include <utility>

#include "kvant/attn/kv_spec.h"

namespace kvant::cli {

void add_model_path(CLI::App& app, std::string& model) {
  app.add_option("-m,--model,model", model, "GGUF file or Hugging Face folder")->required()->type_name("PATH");
}

void add_weight_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--weights", options.weights, "How weights are held: auto, f32, bf16 or int8")
      ->capture_default_str()
      ->type_name("FORMAT");
  app.add_option("-t,--threads", options.threads, "Threads; 0 = one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024))
      ->type_name("N");
}

void add_load_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--kv-profile", options.kv_profile,
                 "Conditioning profile: a file, none, or auto (made by self-calibration when needed)")
      ->capture_default_str()
      ->type_name("FILE|auto|none");
  add_weight_options(app, options);
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_model_path(app, options.model);
  app.add_option("--kv", options.kv,
                 "KV cache: FORMAT[:policy=P][:cond=none|mean|full][:edges=H,T|none], FORMAT one of auto, f32, f16, "
                 "bf16, e4m3, e5m2, nvfp4, FORMAT-plain or k=F/v=F")
      ->capture_default_str()
      ->type_name("SPEC");
  app.add_option("--kv-layers", options.kv_layers,
                 "KV cache of single layers: rules LAYERS=SPEC separated by ';', such as \"0,27=bf16;*=nvfp4\"")
      ->type_name("RULES");
  app.add_option("-c,--context", options.context, "Tokens the cache can hold; 0 = the model's limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 27))
      ->type_name("N");
  app.add_option("--device", options.device, "Where the model runs: auto (the GPU if there is one), cpu or cuda")
      ->capture_default_str()
      ->type_name("DEVICE");
  add_load_options(app, options);
}

engine::ProgressFn progress_to(ProgressBar& bar) {
  return [&bar](std::string_view step, int64_t done, int64_t total) { bar.update(step, done, total); };
}

engine::NoticeFn notice_to(ProgressBar& bar) {
  return [&bar](std::string_view text) {
    bar.erase();
    std::fprintf(stderr, "kvant: %.*s\n", static_cast<int>(text.size()), text.data());
  };
}

Result<std::unique_ptr<engine::LoadedModel>> load_model(const ModelOptions& options, engine::LoadOptions out,
                                                        ProgressBar& bar) {
  KVANT_ASSIGN_OR_FAIL(out.weights, engine::parse_weight_format(options.weights));
  out.model = options.model;
  out.kv_profile = options.kv_profile;
  out.kv_layers = options.kv_layers;
  out.threads = options.threads;
  out.progress = progress_to(bar);
  out.notice = notice_to(bar);
  auto model = engine::LoadedModel::load(out);
  bar.erase();
  return model;
}

Result<engine::EngineOptions> engine_options(const ModelOptions& options, engine::EngineOptions out, ProgressBar& bar) {
  out.model = options.model;
  KVANT_ASSIGN_OR_FAIL(out.kv, attn::parse_kv_spec(options.kv));
  KVANT_ASSIGN_OR_FAIL(out.device, engine::parse_device(options.device));
  KVANT_ASSIGN_OR_FAIL(out.weights, engine::parse_weight_format(options.weights));
  out.kv_profile = options.kv_profile;
  out.kv_layers = options.kv_layers;
  out.threads = options.threads;
  out.context = options.context;
  out.progress = progress_to(bar);
  out.notice = notice_to(bar);
  return out;
}

Result<std::unique_ptr<engine::Engine>> load_engine(const ModelOptions& options, engine::EngineOptions out,
                                                    ProgressBar& bar) {
  KVANT_ASSIGN_OR_FAIL(const engine::EngineOptions complete, engine_options(options, std::move(out), bar));
  auto engine = engine::Engine::load(complete);
  bar.erase();
  return engine;
}

}  // namespace kvant::cli
