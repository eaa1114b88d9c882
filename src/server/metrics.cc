#include "server/metrics.h"

#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace kvant::server {
namespace {

/// Writes families of samples.
class MetricsWriter {
 public:
  void family(std::string_view name, std::string_view kind, std::string_view help) {
    name_ = name;
    out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
  }
  template <class Number>
  void sample(Number value, std::string_view labels = {}) {
    out_ += labels.empty() ? fmt::format("{} {}\n", name_, value) : fmt::format("{}{{{}}} {}\n", name_, labels, value);
  }
  template <class Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    family(name, "gauge", help);
    sample(value);
  }
  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    family(name, "counter", help);
    sample(value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
  std::string name_;
};

void write_pages(MetricsWriter& out, const engine::EngineStats& stats, const engine::EngineFacts& facts) {
  const std::string base = fmt::format("pool=\"base\",format=\"{}\"", facts.kv_format);
  const std::string exact = "pool=\"exact\",format=\"16 bit\"";
  out.family("kvant_pages", "gauge", "KV cache pages of a pool.");
  out.sample(stats.base_pages, base);
  out.sample(stats.exact_pages, exact);
  out.family("kvant_pages_used", "gauge", "Pages that requests or cached prefixes hold.");
  out.sample(stats.base_pages_used, base);
  out.sample(stats.exact_pages_used, exact);
  out.gauge("kvant_prefix_blocks", "Blocks in the prefix cache.", stats.prefix_blocks);
}

void write_drafts(MetricsWriter& out, const engine::EngineStats& stats) {
  const auto write = [&](const std::vector<int64_t>& counts) {
    for (size_t i = 0; i < counts.size(); ++i) out.sample(counts[i], fmt::format("position=\"{}\"", i + 1));
  };
  out.family("kvant_drafted_tokens_total", "counter", "Guessed tokens that were verified, by their place in a block.");
  write(stats.drafted);
  out.family("kvant_accepted_tokens_total", "counter", "Guessed tokens that were right, by their place in a block.");
  write(stats.accepted);
}

void write_engine(MetricsWriter& out, const engine::EngineStats& stats, const engine::EngineFacts& facts) {
  out.gauge("kvant_requests_running", "Requests in the engine's batch.", stats.running);
  out.gauge("kvant_requests_waiting", "Requests that wait for room in the batch.", stats.waiting);
  out.counter("kvant_requests_finished_total", "Requests that have ended, for whatever reason.", stats.finished);
  out.counter("kvant_prompt_tokens_total", "Prompt tokens computed.", stats.prompt_tokens);
  out.counter("kvant_reused_tokens_total", "Prompt tokens found in the prefix cache.", stats.reused_tokens);
  out.counter("kvant_generated_tokens_total", "Tokens generated.", stats.generated_tokens);
  out.counter("kvant_preemptions_total", "Times a request gave its pages to others.", stats.preemptions);
  out.counter("kvant_graph_replays_total", "Passes that replayed a captured graph.", stats.graph_replays);
  out.counter("kvant_graph_misses_total", "Decode passes that could not.", stats.graph_misses);
  write_pages(out, stats, facts);
  write_drafts(out, stats);
}

}  // namespace

void ResponseCounts::add(const std::string& endpoint, int status) {
  const std::lock_guard lock(mutex_);
  ++counts_[{endpoint, status}];
}

ResponseCounts::Counts ResponseCounts::get() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::string metrics_text(const EngineHost& host, const ResponseCounts& responses) {
  MetricsWriter out;
  out.gauge("kvant_ready", "1 when requests are served.", host.health().state == EngineHost::State::kReady ? 1 : 0);
  out.gauge("kvant_requests_admitted", "Requests that hold a seat: running, waiting, or being answered.",
            host.requests());
  out.gauge("kvant_requests_limit", "Seats.", host.max_requests());
  out.family("kvant_responses_total", "counter", "Responses by endpoint and status.");
  for (const auto& [key, count] : responses.get())
    out.sample(count, fmt::format("endpoint=\"{}\",status=\"{}\"", key.first, key.second));
  const EngineHost::StepTimes steps = host.step_times();
  out.counter("kvant_step_seconds_total", "Time in engine steps.", steps.seconds);
  out.counter("kvant_steps_total", "Engine steps.", steps.count);
  out.gauge("kvant_step_seconds_max", "The longest step.", steps.longest);
  if (const engine::Engine* engine = host.engine()) write_engine(out, engine->stats(), engine->facts());
  return out.take();
}

}  // namespace kvant::server
