#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/loaded_model.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"
#include "progress_bar.h"

namespace kvant::cli {

/// Options of every command that loads a model.
struct ModelOptions {
  std::string model;
  std::string kv = "auto";
  std::string kv_profile = "auto";
  std::string kv_layers;
  std::string device = "auto";
  std::string weights = "auto";
  int32_t threads = 0;
  int32_t context = 0;
};

void add_model_path(CLI::App& app, std::string& model);
/// --weights and --threads.
void add_weight_options(CLI::App& app, ModelOptions& options);
/// --kv-profile and the weight options.
void add_load_options(CLI::App& app, ModelOptions& options);
/// MODEL, --kv, --kv-layers, --context and the load options.
void add_model_options(CLI::App& app, ModelOptions& options);

engine::ProgressFn progress_to(ProgressBar& bar);
/// Prints each notice as a line on stderr.
engine::NoticeFn notice_to(ProgressBar& bar);

/// Loads a model for measurements: everything but `options.kv` and `options.context` is put into `load`.
Result<std::unique_ptr<engine::LoadedModel>> load_model(const ModelOptions& options, engine::LoadOptions load,
                                                        ProgressBar& bar);

/// `out` with what the command line says about the model; progress goes to `bar`, which must outlive the engine.
Result<engine::EngineOptions> engine_options(const ModelOptions& options, engine::EngineOptions out, ProgressBar& bar);

/// Loads the model for text; progress goes to `bar`, which must outlive the engine. `out` says how it serves.
Result<std::unique_ptr<engine::Engine>> load_engine(const ModelOptions& options, engine::EngineOptions out,
                                                    ProgressBar& bar);

}  // namespace kvant::cli
