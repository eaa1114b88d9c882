#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "exit_code.h"
#include "facts.h"
#include "interrupt.h"
#include "kvant/engine/engine.h"
#include "model_options.h"
#include "sampling_options.h"

namespace kvant::cli {
namespace {

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
};

constexpr const char* kExamples =
    "  kvant chat model.gguf --kv nvfp4\n"
    "  kvant chat model.gguf --system \"Answer in one sentence.\" --temperature 0.7\n"
    "Inside: /help, /reset, /quit. Ctrl-C stops an answer.\n";

constexpr const char* kCommands =
    "/reset  forget the conversation\n/quit   leave (so does Ctrl-D)\n/help   this list\n";

void add_options(CLI::App& app, ChatOptions& options) {
  add_model_options(app, options.model);
  app.add_option("--system", options.system, "System message")->type_name("TEXT");
  options.sampling.max_tokens = 1024;
  add_sampling_options(app, options.sampling);
}

class Conversation {
 public:
  Conversation(engine::Engine& engine, engine::GenerateRequest request, std::string system)
      : engine_(engine), request_(std::move(request)), system_(std::move(system)) {
    reset();
  }

  void reset() {
    turns_.clear();
    if (!system_.empty()) turns_.push_back({"system", system_});
  }

  /// Streams the answer to stdout. A message that fails leaves the conversation as it was.
  Status answer(std::string message) {
    turns_.push_back({"user", std::move(message)});
    const Result<engine::Generation> generation = generate();
    std::printf("\n");
    if (!generation) {
      turns_.pop_back();
      return generation.error();
    }
    turns_.push_back({"assistant", generation->text});
    print_facts(*generation, engine_.facts());
    return {};
  }

 private:
  Result<engine::Generation> generate() {
    KVANT_ASSIGN_OR_FAIL(request_.prompt, engine_.encode_chat(turns_));
    const InterruptGuard guard;
    request_.on_text = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
      return !interrupted();
    };
    return engine_.generate(request_);
  }

  engine::Engine& engine_;
  engine::GenerateRequest request_;
  std::string system_;
  std::vector<engine::ChatTurn> turns_;
};

Status run(const ChatOptions& options) {
  KVANT_ASSIGN_OR_RETURN(engine::GenerateRequest request, make_request(options.sampling));
  ProgressBar bar;
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, load_engine(options.model, {}, bar));
  Conversation conversation(*engine, std::move(request), options.system);

  const bool terminal = isatty(STDIN_FILENO) == 1;
  std::string line;
  if (terminal) std::printf("%s", kCommands);
  while (true) {
    if (terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/reset") {
      conversation.reset();
    } else if (line == "/help") {
      std::printf("%s", kCommands);
    } else if (line.front() == '/') {
      print_error("no command '" + line + "'; /help lists them");
    } else {
      Status status = conversation.answer(line);
      // At a terminal people can go on, say after /reset; a script gets the failure.
      if (!status.ok() && !terminal) return status;
      if (!status.ok()) print_error(status.message());
    }
  }
  forget_interrupt();
  return {};
}

}  // namespace

void add_chat(CLI::App& parent, Action& action) {
  add_command<ChatOptions>(parent, action, "chat", "Talk with a model; the cache is kept between turns", kExamples,
                           add_options, run);
}

}  // namespace kvant::cli
