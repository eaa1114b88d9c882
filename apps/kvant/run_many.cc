#include "run_many.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "facts.h"
#include "file_io.h"
#include "interrupt.h"
#include "json_output.h"
#include "statistics.h"

namespace kvant::cli {
namespace {

double rate(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; }

Json acceptance(const engine::EngineStats& stats) {
  Json out = Json::array();
  for (size_t i = 0; i < stats.drafted.size(); ++i)
    out.push_back(rate(stats.accepted[i], static_cast<double>(stats.drafted[i])));
  return out;
}

Json to_json(const engine::Generation& generation) {
  return {{"text", generation.text},
          {"token_ids", generation.token_ids},
          {"prompt_tokens", generation.prompt_tokens},
          {"reused_tokens", generation.reused_tokens},
          {"completion_tokens", generation.token_ids.size()},
          {"finish_reason", to_string(generation.finish_reason)},
          {"error", generation.status.message()},
          {"preemptions", generation.preemptions},
          {"drafted_tokens", generation.drafted_tokens},
          {"accepted_tokens", generation.accepted_tokens},
          {"queue_s", generation.queue_seconds},
          {"prompt_s", generation.prompt_seconds},
          {"generation_s", generation.generation_seconds}};
}

Json to_json(const engine::EngineStats& stats, const engine::EngineFacts& facts, double seconds) {
  return {{"seconds", seconds},
          {"generated_tokens", stats.generated_tokens},
          {"generated_tokens_per_s", rate(stats.generated_tokens, seconds)},
          {"prompt_tokens", stats.prompt_tokens},
          {"reused_tokens", stats.reused_tokens},
          {"steps", stats.steps},
          {"preemptions", stats.preemptions},
          {"acceptance", acceptance(stats)},
          {"parallel", facts.max_sequences},
          {"kv_format", facts.kv_format},
          {"kv_memory", facts.kv_memory},
          {"kv_bytes_per_token", facts.kv_bytes_per_token},
          {"kv_scale_source", facts.kv_scale_source},
          {"route", facts.route},
          {"weights", facts.weights},
          {"device", facts.device}};
}

void print_summary(const engine::EngineStats& stats, const engine::EngineFacts& facts, double seconds) {
  std::string line = fmt::format(
      "[{} requests, {} at once | kv {} | {} | generated {} tokens in {:.1f} s, {:.1f}/s | prompts {} tokens, {} "
      "reused | {} steps, {} preemptions",
      stats.finished, facts.max_sequences, facts.kv_format, facts.kv_memory, stats.generated_tokens, seconds,
      rate(stats.generated_tokens, seconds), stats.prompt_tokens, stats.reused_tokens, stats.steps, stats.preemptions);
  for (size_t i = 0; i < stats.drafted.size(); ++i)
    line += fmt::format("{}{:.0f} %", i == 0 ? " | drafts taken " : ", ",
                        100.0 * rate(stats.accepted[i], static_cast<double>(stats.drafted[i])));
  std::fprintf(stderr, "%s]\n", line.c_str());
}

/// Prints answers in the order of their prompts.
class OrderedPrinter {
 public:
  explicit OrderedPrinter(const std::vector<std::optional<engine::Generation>>& answers) : answers_(answers) {}

  void print_ready() {
    for (; next_ < answers_.size() && answers_[next_]; ++next_) {
      const engine::Generation& answer = *answers_[next_];
      std::printf("[%zu] %s%s\n", next_ + 1, answer.text.c_str(),
                  answer.status.ok() ? "" : (" (" + answer.status.message() + ")").c_str());
    }
    std::fflush(stdout);
  }

 private:
  const std::vector<std::optional<engine::Generation>>& answers_;
  size_t next_ = 0;
};

}  // namespace

std::vector<std::string> prompt_lines(const std::string& text) {
  std::vector<std::string> prompts = lines_of(text);
  std::erase_if(prompts, [](const std::string& line) { return line.find_first_not_of(" \t") == std::string::npos; });
  return prompts;
}

Status run_many(engine::Engine& engine, const engine::GenerateRequest& like,
                const std::vector<std::vector<int32_t>>& prompts, bool json, ProgressBar& bar) {
  std::vector<std::optional<engine::Generation>> answers(prompts.size());
  std::vector<engine::RequestId> ids;
  for (size_t i = 0; i < prompts.size(); ++i) {
    engine::GenerateRequest request = like;
    request.prompt = prompts[i];
    request.on_finish = [&answers, i](const engine::Generation& generation) { answers[i] = generation; };
    auto id = engine.submit(std::move(request));
    if (!id) return {id.error().code(), fmt::format("prompt {}: {}", i + 1, id.error().message())};
    ids.push_back(*id);
  }
  const InterruptGuard guard;
  const Stopwatch watch;
  OrderedPrinter printer(answers);
  bool cancelled = false;
  const auto total = static_cast<int64_t>(prompts.size());
  while (engine.step()) {
    const engine::EngineStats stats = engine.stats();
    if (!json && stats.finished > 0) {
      bar.erase();
      printer.print_ready();
    }
    bar.update(fmt::format("{} of {} done, {} running, {:.0f} tokens/s", stats.finished, total, stats.running,
                           rate(stats.generated_tokens, watch.seconds())),
               stats.finished, total);
    if (!interrupted() || cancelled) continue;
    cancelled = true;
    for (const engine::RequestId id : ids) engine.cancel(id);
  }
  const double seconds = watch.seconds();
  bar.erase();
  if (json) {
    Json out = to_json(engine.stats(), engine.facts(), seconds);
    Json results = Json::array();
    for (const auto& answer : answers) results.push_back(to_json(answer.value_or(engine::Generation{})));
    out["results"] = std::move(results);
    print_json(out);
    return {};
  }
  printer.print_ready();
  print_summary(engine.stats(), engine.facts(), seconds);
  return {};
}

}  // namespace kvant::cli
