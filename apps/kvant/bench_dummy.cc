#include "bench_dummy.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "core/device_memory.h"
#include "engine/models/dummy_model.h"
#include "engine/runner/runner.h"
#include "kvant/core/device.h"
#include "kvant/core/thread_pool.h"
#include "model_options.h"
#include "statistics.h"

namespace kvant::cli {
namespace {

/// Steps before a time counts: the first of a shape is not captured yet, and a GPU that was idle runs slowly at first.
constexpr int32_t kWarmUpSteps = 20;

struct Cell {
  int32_t batch = 0;
  int32_t context = 0;
};

/// One batch of sequences at a context, in one cache.
class DecodeSteps {
 public:
  DecodeSteps(engine::Runner& runner, engine::KvCacheSet& cache, const Cell& cell, int32_t query_len)
      : runner_(runner), cache_(cache), cell_(cell), tokens_(static_cast<size_t>(query_len)) {
    const int32_t vocabulary = runner.config().vocabulary_size;
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<int32_t>(i * 7919) % vocabulary;
    best_.resize(static_cast<size_t>(cell.batch) * tokens_.size());
  }

  /// Sequences of the context's length whose pages hold noise.
  Status fill(int32_t chunk) {
    KVANT_RETURN_IF_ERROR(cache_.fill_with_noise());
    for (int32_t i = 0; i < cell_.batch; ++i) {
      KVANT_ASSIGN_OR_RETURN(const engine::SequenceId sequence, cache_.add_sequence());
      sequences_.push_back(sequence);
      for (int32_t done = 0; done < cell_.context;) {
        const int32_t count = std::min({chunk, cell_.context - done, cache_.tokens_to_grid_point(done)});
        const engine::StepRow row{.sequence = sequence,
                                  .num_tokens = count,
                                  .phase = done == 0 ? engine::RowPhase::kPrefill : engine::RowPhase::kExtend};
        KVANT_RETURN_IF_ERROR(cache_.begin_step({&row, 1}));
        KVANT_RETURN_IF_ERROR(synchronise(runner_.stream()));
        cache_.end_step();
        done += count;
      }
    }
    return {};
  }

  /// Median milliseconds of a step, drawn tokens on the host. Drafts are taken back, so that the context grows by one.
  Result<double> measure(engine::PassParts parts, int32_t steps) {
    runner_.set_parts(parts);
    std::vector<double> times;
    for (int32_t step = 0; step < steps + kWarmUpSteps; ++step) {
      const Stopwatch watch;
      KVANT_FAIL_IF_ERROR(run());
      if (step >= kWarmUpSteps) times.push_back(1e3 * watch.seconds());
    }
    runner_.set_parts(engine::PassParts::kAll);
    return median(std::move(times));
  }

 private:
  Status run() {
    rows_.clear();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      rows_.push_back({.cache = &cache_,
                       .sequence = sequences_[i],
                       .tokens = tokens_,
                       .phase = engine::RowPhase::kDecode,
                       .logits = engine::LogitsWanted::kAll,
                       .drawn = best_.data() + i * tokens_.size()});
    }
    KVANT_RETURN_IF_ERROR(runner_.forward(rows_, nullptr));
    const auto drafts = static_cast<int32_t>(tokens_.size()) - 1;
    if (drafts > 0)
      for (const engine::SequenceId sequence : sequences_) cache_.rollback(sequence, cache_.length(sequence) - drafts);
    return {};
  }

  engine::Runner& runner_;
  engine::KvCacheSet& cache_;
  Cell cell_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> best_;
  std::vector<engine::SequenceId> sequences_;
  std::vector<engine::BatchRow> rows_;
};

Result<Json> measure_cell(engine::Runner& runner, const attn::KvSpec& spec, const Cell& cell,
                          const DummyBenchOptions& options) {
  // Every part is measured for `steps` steps, each of which adds a token.
  const int32_t room = cell.context + 4 * (options.steps + kWarmUpSteps) + options.query_len + 16;
  auto cache = runner.create_cache({.spec = spec, .max_sequences = cell.batch, .max_tokens = room, .profile = nullptr});
  if (!cache) return failure(cache.error());
  DecodeSteps steps(runner, **cache, cell, options.query_len);
  KVANT_FAIL_IF_ERROR(steps.fill(256));
  const int64_t replayed = runner.graph_stats().replayed;
  KVANT_ASSIGN_OR_FAIL(const double step_ms, steps.measure(engine::PassParts::kAll, options.steps));
  const int64_t in_graphs = runner.graph_stats().replayed - replayed;
  KVANT_ASSIGN_OR_FAIL(const double products_ms, steps.measure(engine::PassParts::kProducts, options.steps));
  KVANT_ASSIGN_OR_FAIL(const double attention_ms, steps.measure(engine::PassParts::kAttention, options.steps));
  KVANT_ASSIGN_OR_FAIL(const double empty_ms, steps.measure(engine::PassParts::kNothing, options.steps));
  const double kv_bytes = (*cache)->effective_bytes_per_token(cell.context) * cell.context * cell.batch;
  return Json{{"tpot_ms", step_ms},
              {"products_ms", products_ms},
              {"attention_ms", attention_ms},
              // Each of the three holds a pass's own costs once.
              {"rest_ms", step_ms - products_ms - attention_ms + empty_ms},
              {"empty_ms", empty_ms},
              {"tokens_per_s", cell.batch / step_ms * 1e3},
              {"kv_bytes", kv_bytes},
              {"steps_in_graphs", in_graphs},
              {"steps", options.steps + kWarmUpSteps},
              {"route", (*cache)->route()}};
}

}  // namespace

void add_dummy_options(CLI::App& app, DummyBenchOptions& options) {
  app.add_option(
         "--dummy", options.shape,
         "In place of a model: a JSON file with a model's shape, run with random weights. Measures decode steps")
      ->type_name("FILE");
  app.add_option("--at-context", options.contexts, "With --dummy: tokens in the cache of each sequence")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N");
  app.add_option("--query-len", options.query_len, "With --dummy: tokens of a sequence per step, drafts included")
      ->capture_default_str()
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  app.add_option("--steps", options.steps, "With --dummy: steps measured, of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  app.add_flag("--dummy-on-cpu", options.cpu, "With --dummy: run on the CPU even where there is a GPU");
}

Result<Json> bench_dummy(const DummyBenchOptions& options, const std::vector<std::string>& kv, int32_t threads,
                         ProgressBar& bar) {
  KVANT_ASSIGN_OR_FAIL(engine::ModelSource source, engine::open_dummy_model(options.shape));
  const int32_t most_requests = *std::max_element(options.batches.begin(), options.batches.end());
  const int32_t longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  const bool cuda = !options.cpu && !cuda_devices().empty();
  ThreadPool pool(threads);
  const std::string name = source.config.name;
  KVANT_ASSIGN_OR_FAIL(const auto runner,
                       engine::Runner::create(std::move(source),
                                              {.max_batch_tokens = std::max(256, most_requests * options.query_len),
                                               .max_requests = most_requests,
                                               .max_context = longest + 4096,
                                               .cuda = cuda,
                                               .progress = progress_to(bar)},
                                              pool));
  Json rows = Json::array();
  const size_t total = kv.size() * options.batches.size() * options.contexts.size();
  for (const std::string& text : kv) {
    KVANT_ASSIGN_OR_FAIL(const attn::KvSpec parsed, attn::parse_kv_spec(text));
    attn::KvSpec spec = attn::resolve_kv_spec(parsed, runner->config().kv_dtype);
    // Random weights have no profile to condition keys by.
    spec.conditioning = attn::KeyConditioning::kNone;
    for (const int32_t batch : options.batches) {
      for (const int32_t context : options.contexts) {
        bar.update("bench", static_cast<int64_t>(rows.size()), static_cast<int64_t>(total));
        Json row = {{"kv", spec.to_string()}, {"batch", batch}, {"context", context}, {"query_len", options.query_len}};
        auto cell = measure_cell(*runner, spec, {.batch = batch, .context = context}, options);
        if (cell) {
          row.update(*cell);
        } else if (cell.error().code() == StatusCode::kResourceExhausted) {
          row["does_not_fit"] = cell.error().message();
        } else {
          return failure(cell.error());
        }
        rows.push_back(std::move(row));
      }
    }
  }
  bar.erase();
  const engine::GraphStats& graphs = runner->graph_stats();
  return Json{{"model", name},
              {"device", device_of(runner->stream()).name},
              {"weights", runner->weights()},
              {"weight_bytes", runner->weight_bytes()},
              {"graphs", graphs.captured},
              {"graph_bytes", graphs.bytes},
              {"rows", std::move(rows)}};
}

BarChart dummy_chart(const Json& json) {
  BarChart chart{.title = fmt::format("{} on {}: time of a decode step", json["model"].get<std::string>(),
                                      json["device"].get<std::string>()),
                 .unit = "milliseconds",
                 .parts = {"matrix products", "attention", "rest"},
                 .groups = {}};
  for (const Json& row : json["rows"]) {
    const std::string title = fmt::format("{} x {} tokens", row["batch"].get<int32_t>(), row["context"].get<int32_t>());
    const auto same = [&](const BarGroup& group) { return group.title == title; };
    auto group = std::find_if(chart.groups.begin(), chart.groups.end(), same);
    if (group == chart.groups.end()) group = chart.groups.insert(group, {.title = title, .bars = {}});
    Bar bar{.label = row["kv"].get<std::string>(), .parts = {}, .note = "does not fit"};
    if (!row.contains("does_not_fit")) {
      // Parts measured alone may add up to more than the step; what is left over never is below zero.
      const double step = row["tpot_ms"].get<double>(), products = row["products_ms"].get<double>();
      const double attention = std::min(row["attention_ms"].get<double>(), step - products);
      bar.parts = {products, attention, step - products - attention};
      bar.note = fmt::format("{:.2f} ms, {:.0f} tokens/s", step, row["tokens_per_s"].get<double>());
    }
    group->bars.push_back(std::move(bar));
  }
  return chart;
}

void print_dummy_table(const Json& json) {
  std::printf("%-36s %6s %8s %10s %10s %10s %10s %10s\n", "KV cache", "batch", "context", "step ms", "products",
              "attention", "rest", "empty");
  for (const Json& row : json["rows"]) {
    std::string line = fmt::format("{:<36} {:>6} {:>8}", row["kv"].get<std::string>(), row["batch"].get<int>(),
                                   row["context"].get<int>());
    if (row.contains("does_not_fit")) {
      line += " does not fit";
    } else {
      for (const char* key : {"tpot_ms", "products_ms", "attention_ms", "rest_ms", "empty_ms"})
        line += fmt::format(" {:>10.3f}", row[key].get<double>());
    }
    std::printf("%s\n", line.c_str());
  }
  std::printf("%s on %s, %s weights\n", json["model"].get<std::string>().c_str(),
              json["device"].get<std::string>().c_str(), json["weights"].get<std::string>().c_str());
}

}  // namespace kvant::cli
