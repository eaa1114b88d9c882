#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvant/core/status.h"
#include "kvant/engine/engine.h"
#include "server/engine_host.h"

namespace kvant::server {

/// Something new about one of several answers.
struct AnswerEvent {
  size_t choice = 0;
  std::string text;
  std::vector<engine::TokenLogprobs> tokens;  ///< Those that the text begins with or in; empty unless asked for.
  std::optional<engine::Generation> end;      ///< The last event of the choice.
};

/// Answers that the engine makes on its thread while another one waits for them. Whoever drops this cancels what still
/// runs.
class GenerationRun {
 public:
  /// Submits the requests, or none of them. Their callbacks are set here.
  static Result<std::unique_ptr<GenerationRun>> start(engine::Engine& engine,
                                                      std::vector<engine::GenerateRequest> requests,
                                                      EngineHost::Seats seats);
  ~GenerationRun();
  GenerationRun(const GenerationRun&) = delete;
  GenerationRun& operator=(const GenerationRun&) = delete;

  /// The next event in the order in which things happened; nothing after the timeout.
  std::optional<AnswerEvent> next(std::chrono::milliseconds timeout);

 private:
  class Channel;
  GenerationRun(engine::Engine& engine, EngineHost::Seats seats);

  engine::Engine& engine_;
  EngineHost::Seats seats_;
  // Shared with the engine's callbacks, which may outlive a run that was dropped.
  std::shared_ptr<Channel> channel_;
  std::vector<engine::RequestId> ids_;
};

}  // namespace kvant::server
