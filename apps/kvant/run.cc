#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "facts.h"
#include "file_io.h"
#include "interrupt.h"
#include "json_output.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/engine/engine.h"
#include "model_options.h"
#include "run_many.h"
#include "sampling_options.h"
#include "serving_options.h"

namespace kvant::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  ServingOptions serving;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  bool raw = false;
  bool chat = false;
  bool json = false;
  bool strict = false;
};

constexpr const char* kExamples =
    "  kvant run model.gguf --kv nvfp4 --prompt \"What is the capital of France?\"\n"
    "  kvant run -m model.gguf --raw --prompt-file story.txt --max-tokens 64 --temperature 0.8 --seed 1\n"
    "  kvant run model.gguf --prompt \"Name a colour.\" --json\n"
    "  kvant run model.gguf --parallel 8 --prompt-file prompts.txt --kv-memory 1GiB --speculate ngram:4\n";

void add_options(CLI::App& app, RunOptions& options) {
  add_model_options(app, options.model);
  auto* prompt = app.add_option("-p,--prompt", options.prompt, "The prompt")->type_name("TEXT");
  auto* file = app.add_option("--prompt-file", options.prompt_file, "Read the prompt from a file; - is standard input")
                   ->type_name("FILE")
                   ->excludes(prompt);
  app.add_option("--parallel", options.serving.parallel,
                 "Every line of the prompt file is a prompt; answer this many at once")
      ->check(CLI::Range(1, 4096))
      ->type_name("N")
      ->needs(file);
  auto* system = app.add_option("--system", options.system, "System message")->type_name("TEXT");
  auto* chat = app.add_flag("--chat", options.chat, "Put the prompt through the model's chat template (default)");
  app.add_flag("--raw", options.raw, "Complete the prompt as plain text")->excludes(chat)->excludes(system);
  add_sampling_options(app, options.sampling);
  add_serving_options(app, options.serving);
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
  app.add_flag("--strict", options.strict,
               "Refuse when the cache in effect is not the one asked for, or has no scales");
}

Result<std::string> read_prompt(const RunOptions& options) {
  if (options.prompt_file.empty()) {
    if (options.prompt.empty())
      return failure(StatusCode::kInvalidArgument, "no prompt; give --prompt or --prompt-file");
    return options.prompt;
  }
  KVANT_ASSIGN_OR_FAIL(std::string prompt, read_text(options.prompt_file));
  if (prompt.empty()) {
    return failure(StatusCode::kInvalidArgument, fmt::format("prompt file '{}' is empty", options.prompt_file));
  }
  return prompt;
}

Result<std::vector<int32_t>> encode(const engine::Engine& engine, const RunOptions& options, std::string prompt) {
  if (options.raw) return engine.encode_prompt(prompt);
  std::vector<engine::ChatTurn> turns;
  if (!options.system.empty()) turns.push_back({"system", options.system});
  turns.push_back({"user", std::move(prompt)});
  return engine.encode_chat(turns);
}

Json to_json(const engine::Generation& generation, const engine::EngineFacts& facts) {
  return {{"text", generation.text},
          {"token_ids", generation.token_ids},
          {"prompt_tokens", generation.prompt_tokens},
          {"completion_tokens", generation.token_ids.size()},
          {"finish_reason", to_string(generation.finish_reason)},
          {"prompt_tokens_per_s", prompt_tokens_per_s(generation)},
          {"generation_tokens_per_s", generation_tokens_per_s(generation)},
          {"kv_format", facts.kv_format},
          {"kv_bytes_per_token", facts.kv_bytes_per_token},
          {"kv_scale_source", facts.kv_scale_source},
          {"route", facts.route},
          {"device", facts.device}};
}

Status run(const RunOptions& options) {
  KVANT_ASSIGN_OR_RETURN(std::string prompt, read_prompt(options));
  engine::GenerateRequest request;
  KVANT_ASSIGN_OR_RETURN(request, make_request(options.sampling));
  ProgressBar bar;
  engine::EngineOptions serving;
  KVANT_RETURN_IF_ERROR(apply_serving_options(options.serving, serving));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, load_engine(options.model, serving, bar));
  if (options.strict) KVANT_RETURN_IF_ERROR(check_strict(options.model.kv, engine->facts()));
  if (options.serving.parallel > 0) {
    std::vector<std::vector<int32_t>> prompts;
    for (const std::string& line : prompt_lines(prompt)) {
      KVANT_ASSIGN_OR_RETURN(prompts.emplace_back(), encode(*engine, options, line));
    }
    return run_many(*engine, request, prompts, options.json, bar);
  }
  KVANT_ASSIGN_OR_RETURN(request.prompt, encode(*engine, options, std::move(prompt)));

  const InterruptGuard guard;
  request.on_text = [&](std::string_view text) {
    bar.erase();
    if (!options.json) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    return !interrupted();
  };
  KVANT_ASSIGN_OR_RETURN(const engine::Generation generation, engine->generate(request));
  bar.erase();
  if (options.json) {
    print_json(to_json(generation, engine->facts()));
    return {};
  }
  std::printf("\n");
  std::fflush(stdout);
  print_facts(generation, engine->facts());
  return {};
}

}  // namespace

void add_run(CLI::App& parent, Action& action) {
  add_command<RunOptions>(parent, action, "run", "Generate text from one prompt", kExamples, add_options, run);
}

}  // namespace kvant::cli
