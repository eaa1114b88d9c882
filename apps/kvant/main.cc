#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>

#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "kvant/core/status.h"

namespace kvant::cli {
namespace {

void add_commands(CLI::App& app, Action& action) {
  add_run(app, action);
  add_chat(app, action);
  add_serve(app, action);
  CLI::App* eval = app.add_subcommand("eval", "Measure quality");
  eval->require_subcommand(1);
  add_eval_kv(*eval, action);
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  add_bench_model(*bench, action);
  add_bench_attention(*bench, action);
  add_calibrate(app, action);
  CLI::App* inspect = app.add_subcommand("inspect", "Show what a model, a cache page or this build holds");
  inspect->require_subcommand(1);
  add_inspect_model(*inspect, action);
  add_inspect_kv(*inspect, action);
  add_inspect_kernels(*inspect, action);
  CLI::App* kv = app.add_subcommand("kv", "Convert rows to cache bytes and back");
  kv->require_subcommand(1);
  add_kv_quantize(*kv, action);
  add_kv_dequantize(*kv, action);
}

ExitCode parse_and_run(int argc, char** argv) {
  CLI::App app("kvant: language models with a quantised KV cache", "kvant");
  Action action;
  app.set_version_flag("--version", std::string("kvant ") + KVANT_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not supported, 130 interrupted.\n"
      "kvant COMMAND --help shows options and examples.");
  add_commands(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help and --version
    app.exit(request);
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    print_error(std::string(error.what()) + "; see --help");
    return ExitCode::kUsage;
  }
  const Status status = action();
  if (!status.ok()) {
    print_error(status.message());
    return exit_code_of(status.code());
  }
  return interrupted() ? ExitCode::kInterrupted : ExitCode::kOk;
}

}  // namespace
}  // namespace kvant::cli

int main(int argc, char** argv) {
  try {
    return static_cast<int>(kvant::cli::parse_and_run(argc, argv));
  } catch (const std::exception& error) {  // Out of memory, for one: still one line.
    kvant::cli::print_error(error.what());
  }
  return static_cast<int>(kvant::cli::ExitCode::kFailed);
}
