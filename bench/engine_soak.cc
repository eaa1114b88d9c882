// bench_engine_soak MODEL: random requests against the engine for a while, many at once, some cancelled. Fails when
// memory grows, when nothing happens for too long, or when pages are left over.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "kvant/attn/kv_spec.h"
#include "kvant/engine/engine.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

struct SoakOptions {
  std::string model;
  std::string kv = "nvfp4";
  std::string speculate = "ngram:4";
  int32_t seconds = 600;
  int32_t sequences = 8;
  int32_t context = 1024;
  int32_t threads = 0;
  std::string kv_memory = "1600t";  ///< Too little for all at their longest, so that requests are preempted.
  uint32_t seed = 1;
  double most_growth = 0.02;  ///< Of resident memory, between a quarter of the time and the end.
  double most_quiet = 20.0;   ///< Seconds without a token while requests run.
};

double resident_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::stod(line.substr(6)) / 1024.0;
  return 0.0;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Requests of all kinds: short and long, greedy and drawn, alike and not, some with logprobs, some given up.
class Load {
 public:
  Load(engine::Engine& engine, const SoakOptions& options) : engine_(engine), options_(options), random_(options.seed) {
    text_ = engine
                .encode_prompt(
                    "The quick brown fox jumps over the lazy dog. Pages are counted, aged and given back; a request "
                    "that waits is served in its turn. One, two, three, four, five, six, seven, eight, nine, ten.")
                .value();
  }

  /// Adds requests up to a number in flight, and cancels one now and then.
  Status feed() {
    const engine::EngineStats stats = engine_.stats();
    const int32_t wanted = static_cast<int32_t>(random_() % static_cast<uint32_t>(3 * options_.sequences)) + 1;
    for (int32_t i = stats.running + stats.waiting; i < wanted; ++i) {
      KVANT_ASSIGN_OR_RETURN(last_, engine_.submit(request()));
      ++submitted_;
    }
    if (random_() % 8 == 0 && last_ > 0) engine_.cancel(last_ - std::min<uint64_t>(last_ - 1, random_() % 16));
    return {};
  }

  int64_t submitted() const { return submitted_; }
  int64_t finished() const { return finished_; }
  int64_t failed() const { return failed_; }

 private:
  uint32_t below(int64_t limit) { return static_cast<uint32_t>(random_()) % static_cast<uint32_t>(limit); }

  engine::GenerateRequest request() {
    engine::GenerateRequest out;
    const uint32_t kind = below(10);
    const int64_t longest = options_.context - 160;
    const int64_t length = 1 + (kind < 6 ? below(96) : below(longest));
    const int64_t shared = below(2) == 0 ? 0 : length / 2;  // Starts like others: found in the prefix cache.
    for (int64_t i = 0; i < length; ++i) {
      const auto at = i < shared ? static_cast<uint32_t>(i) : below(std::ssize(text_));
      out.prompt.push_back(text_[at % text_.size()]);
    }
    out.max_tokens = 1 + static_cast<int32_t>(below(128));
    out.ignore_end_of_turn = below(2) == 0;
    if (below(2) == 0) {
      out.sampling = {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .seed = random_()};
      if (below(2) == 0) out.sampling.repetition_penalty = 1.1f;
    }
    if (below(6) == 0) out.logprobs = 3;
    if (below(4) == 0) out.stop = {" the"};
    if (below(3) == 0) out.cache_salt = "another tenant";
    out.on_text = [leave = below(12) == 0](std::string_view) { return !leave; };
    out.on_finish = [this](const engine::Generation& generation) {
      ++finished_;
      if (generation.finish_reason != engine::FinishReason::kError) return;
      ++failed_;
      std::fprintf(stderr, "soak: a request failed: %s\n", generation.status.to_string().c_str());
    };
    return out;
  }

  engine::Engine& engine_;
  const SoakOptions& options_;
  std::mt19937 random_;
  std::vector<int32_t> text_;
  engine::RequestId last_ = 0;
  int64_t submitted_ = 0;
  std::atomic<int64_t> finished_{0}, failed_{0};
};

Status soak(const SoakOptions& options) {
  engine::EngineOptions load;
  load.model = options.model;
  load.threads = options.threads;
  load.context = options.context;
  load.max_sequences = options.sequences;
  KVANT_ASSIGN_OR_RETURN(load.kv, attn::parse_kv_spec(options.kv));
  KVANT_ASSIGN_OR_RETURN(load.speculation, engine::parse_speculation(options.speculate));
  KVANT_ASSIGN_OR_RETURN(load.kv_memory, engine::parse_kv_memory(options.kv_memory));
  // A cache of prefixes would keep pages by intent, and the end could not tell them from lost ones.
  load.prefix_cache = false;
  KVANT_ASSIGN_OR_RETURN(const auto engine, engine::Engine::load(load));
  Load requests(*engine, options);

  std::atomic<bool> running{true};
  std::thread stepper([&] {
    while (running || engine->stats().running + engine->stats().waiting > 0)
      if (!engine->step()) engine->wait_for_work(std::chrono::milliseconds(20));
  });
  Status outcome;
  double settled_mib = 0.0;
  int64_t tokens = 0, reported = -1;
  const auto start = Clock::now();
  auto last_token = start;
  while (outcome.ok() && seconds_since(start) < options.seconds) {
    outcome = requests.feed();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const engine::EngineStats stats = engine->stats();
    const int64_t now = stats.generated_tokens + stats.prompt_tokens;
    if (now != tokens || stats.running + stats.waiting == 0) last_token = Clock::now();
    tokens = now;
    if (seconds_since(last_token) > options.most_quiet)
      outcome = {StatusCode::kInternal,
                 fmt::format("no token for {} seconds with {} requests running", options.most_quiet, stats.running)};
    const double elapsed = seconds_since(start);
    if (settled_mib == 0.0 && elapsed > options.seconds / 4.0) settled_mib = resident_mib();
    if (const auto ten = static_cast<int64_t>(elapsed / 10.0); ten != reported) {
      reported = ten;
      std::printf(
          "%4.0f s: %ld finished, %d running, %d waiting, %ld tokens, %ld preemptions, pages %ld base %ld exact, "
          "%.1f MiB\n",
          elapsed, requests.finished(), stats.running, stats.waiting, stats.generated_tokens, stats.preemptions,
          stats.base_pages_used, stats.exact_pages_used, resident_mib());
      std::fflush(stdout);
    }
  }
  const double end_mib = resident_mib();
  running = false;
  stepper.join();
  KVANT_RETURN_IF_ERROR(outcome);
  const engine::EngineStats stats = engine->stats();
  std::printf(
      "%ld submitted, %ld finished, %ld tokens generated, %ld preemptions; resident %.1f MiB after a quarter, "
      "%.1f MiB at the end; pages left: %ld base, %ld exact\n",
      requests.submitted(), requests.finished(), stats.generated_tokens, stats.preemptions, settled_mib, end_mib,
      stats.base_pages_used, stats.exact_pages_used);
  if (requests.failed() > 0) return {StatusCode::kInternal, fmt::format("{} requests failed", requests.failed())};
  if (requests.finished() != requests.submitted())
    return {StatusCode::kInternal, fmt::format("{} requests were lost", requests.submitted() - requests.finished())};
  if (stats.base_pages_used + stats.exact_pages_used > 0) return {StatusCode::kInternal, "pages are left over"};
  if (end_mib > settled_mib * (1.0 + options.most_growth))
    return {StatusCode::kInternal, fmt::format("resident memory grew from {:.1f} to {:.1f} MiB", settled_mib, end_mib)};
  return {};
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  kvant::SoakOptions options;
  CLI::App app("Random load on the engine: no leak, no stall, no page left over");
  app.add_option("model", options.model, "Model file (GGUF)")->required();
  app.add_option("--kv", options.kv, "KV cache")->capture_default_str();
  app.add_option("--speculate", options.speculate, "Drafts")->capture_default_str();
  app.add_option("--seconds", options.seconds, "How long")->capture_default_str();
  app.add_option("--sequences", options.sequences, "Requests that run at once")->capture_default_str();
  app.add_option("--context", options.context, "Tokens of a sequence")->capture_default_str();
  app.add_option("--threads", options.threads, "Threads; 0 = one per core")->capture_default_str();
  app.add_option("--kv-memory", options.kv_memory, "Memory of the KV cache")->capture_default_str();
  app.add_option("--seed", options.seed, "Of the requests")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const kvant::Status status = kvant::soak(options);
  if (!status.ok()) std::fprintf(stderr, "soak: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
