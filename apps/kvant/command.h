#pragma once

#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "kvant/core/status.h"

namespace kvant::cli {

/// The work of the subcommand that was named on the command line; the parser sets it, main runs it.
using Action = std::function<Status()>;

// One function per subcommand file: adds the subcommand to `parent`; parsing it fills `action`.
void add_run(CLI::App& parent, Action& action);
void add_chat(CLI::App& parent, Action& action);
void add_serve(CLI::App& parent, Action& action);
void add_calibrate(CLI::App& parent, Action& action);
void add_eval_kv(CLI::App& parent, Action& action);
void add_bench_model(CLI::App& parent, Action& action);
void add_bench_attention(CLI::App& parent, Action& action);
void add_inspect_kernels(CLI::App& parent, Action& action);
void add_inspect_kv(CLI::App& parent, Action& action);
void add_inspect_model(CLI::App& parent, Action& action);
void add_kv_quantize(CLI::App& parent, Action& action);
void add_kv_dequantize(CLI::App& parent, Action& action);

/// Adds a subcommand whose options live in `Options` and whose work is `run(options)`.
template <class Options, class AddOptions>
void add_command(CLI::App& parent, Action& action, const std::string& name, const std::string& description,
                 const std::string& examples, AddOptions add_options, Status (*run)(const Options&)) {
  CLI::App* app = parent.add_subcommand(name, description);
  // Shared, because the parser writes into the options long after this function has returned.
  auto options = std::make_shared<Options>();
  add_options(*app, *options);
  app->footer("Examples:\n" + examples);
  app->callback([&action, options, run] { action = [options, run] { return run(*options); }; });
}

}  // namespace kvant::cli
