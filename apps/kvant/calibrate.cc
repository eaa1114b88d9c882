#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "engine/cache/profile.h"
#include "engine/calibration/calibrate.h"
#include "engine/text_chunks.h"
#include "file_io.h"
#include "json_output.h"
#include "model_options.h"

namespace kvant::cli {
namespace {

struct CalibrateOptions {
  ModelOptions model;
  std::string text;
  std::string out;
  int32_t tokens = engine::kCalibrationTokens;
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant calibrate model.gguf --out model.kvprofile.safetensors\n"
    "  kvant calibrate model.gguf --text my_domain.txt --tokens 4096 --out model.kvprofile.safetensors\n"
    "  kvant run model.gguf --kv nvfp4 --kv-profile model.kvprofile.safetensors --prompt \"Hello\"\n";

void add_options(CLI::App& app, CalibrateOptions& options) {
  add_model_path(app, options.model.model);
  app.add_option("--text", options.text, "Text to calibrate on; default: a short built-in one")->type_name("FILE");
  app.add_option("--tokens", options.tokens, "Most tokens to use")
      ->capture_default_str()
      ->check(CLI::Range(64, 1 << 24))
      ->type_name("N");
  app.add_option("--out", options.out, "Profile to write (safetensors)")->required()->type_name("FILE");
  add_weight_options(app, options.model);
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
}

Status run(const CalibrateOptions& options) {
  std::string text(engine::neutral_text());
  if (!options.text.empty()) {
    KVANT_ASSIGN_OR_RETURN(text, read_text(options.text));
  }
  ProgressBar bar;
  ModelOptions model_options = options.model;
  model_options.kv_profile = "none";
  engine::LoadOptions load;
  load.context = engine::kCalibrationContext;
  KVANT_ASSIGN_OR_RETURN(const auto model, load_model(model_options, std::move(load), bar));
  std::vector<int32_t> tokens = engine::encode_chunks(model->tokenizer(), text, engine::kCalibrationContext);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(options.tokens)));
  std::vector<float> score_noise;
  KVANT_ASSIGN_OR_RETURN(const engine::KvProfile profile,
                         engine::calibrate(model->runner(), tokens, engine::kCalibrationContext, model->hash(),
                                           progress_to(bar), &score_noise));
  bar.erase();
  KVANT_RETURN_IF_ERROR(engine::save_profile(profile, options.out));
  if (options.json) {
    print_json({{"profile", options.out},
                {"id", profile.id},
                {"tokens", profile.tokens},
                {"context", profile.context},
                {"score_noise", score_noise}});
  } else {
    std::printf("wrote %s: profile %s of %d tokens\n", options.out.c_str(), profile.id.c_str(), profile.tokens);
    if (const std::string rough = engine::describe_rough_layers(score_noise); !rough.empty())
      std::printf("%s\n", rough.c_str());
  }
  return {};
}

}  // namespace

void add_calibrate(CLI::App& parent, Action& action) {
  add_command<CalibrateOptions>(parent, action, "calibrate", "Make the conditioning profile of a model", kExamples,
                                add_options, run);
}

}  // namespace kvant::cli
