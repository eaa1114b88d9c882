#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench_dummy.h"
#include "command.h"
#include "core/read_bandwidth.h"
#include "engine/loaded_model.h"
#include "file_io.h"
#include "json_output.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/core/device.h"
#include "model_options.h"
#include "statistics.h"

namespace kvant::cli {
namespace {

struct BenchModelOptions {
  ModelOptions model;
  std::vector<std::string> kv = {"bf16", "nvfp4"};
  std::vector<int32_t> depths = {0, 2048};
  int32_t prompt = 512;
  int32_t generate = 32;
  std::vector<int32_t> batches;  ///< Empty = 1, or the default of --dummy.
  int32_t repetitions = 3;
  bool json = false;
  std::string svg;
  DummyBenchOptions dummy;
};

constexpr const char* kExamples =
    "  kvant bench model model.gguf --kv bf16 --kv nvfp4 --depth 0 2048 8064 --threads 2\n"
    "  kvant bench model model.gguf --kv nvfp4 --prompt 512 --generate 64 --repetitions 5 --json\n"
    "  kvant bench model model.gguf --kv nvfp4 --depth 512 --batch 1 2 4 8\n"
    "  kvant bench model --dummy bench/shapes/qwen3-8b.json --kv bf16 e4m3-plain --batch 1 64 --at-context 1024 4096\n"
    "  kvant bench model model.gguf --kv bf16 --kv nvfp4 --batch 1 8 --svg speed.svg\n";

void add_options(CLI::App& app, BenchModelOptions& options) {
  add_model_path(app, options.model.model);
  app.get_option("--model")->required(false);
  add_dummy_options(app, options.dummy);
  const auto add_count = [&](const char* name, int32_t& value, int32_t least, const char* text) {
    app.add_option(name, value, text)->capture_default_str()->check(CLI::Range(least, 1 << 24))->type_name("N");
  };
  app.add_option("--kv", options.kv, "KV caches to measure")->capture_default_str()->type_name("SPEC");
  app.add_option("--depth", options.depths, "Tokens in the cache before a measurement")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24))
      ->type_name("N");
  add_count("--prompt", options.prompt, 1, "Prompt tokens per measurement");
  add_count("--generate", options.generate, 1, "Generated tokens per measurement");
  app.add_option("--batch", options.batches, "Sequences that generate at once; 1 unless given, 1 64 256 with --dummy")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  add_count("--repetitions", options.repetitions, 1, "Measurements, of which the median counts");
  add_load_options(app, options.model);
  app.add_flag("--json", options.json, "Print one JSON object instead of a table");
  app.add_option("--svg", options.svg,
                 "Also write a plot: generation speed, or with --dummy what a step's time goes to")
      ->type_name("FILE");
}

std::vector<int32_t> random_tokens(int32_t count, int32_t vocabulary_size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int32_t> token(0, vocabulary_size - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = token(generator);
  return tokens;
}

int32_t largest(const std::vector<int32_t>& values) { return *std::max_element(values.begin(), values.end()); }

/// Sequences of one cache, brought to a depth again and again; the prefix cache spares reading them anew.
class Measurement {
 public:
  Measurement(engine::LoadedModel& model, engine::KvCacheSet& cache, const BenchModelOptions& options)
      : runner_(model.runner()), cache_(cache), options_(options) {
    const int32_t vocabulary_size = model.config().vocabulary_size;
    const int32_t length = largest(options.depths) + std::max(options.prompt, options.generate);
    for (int32_t i = 0; i < largest(options.batches); ++i)
      tokens_.push_back(random_tokens(length, vocabulary_size, static_cast<uint32_t>(i) + 1));
    logits_.resize(tokens_.size() * static_cast<size_t>(vocabulary_size));
  }

  /// Prompt tokens per second at a depth.
  Result<double> prompt_rate(int32_t depth) {
    return rate(depth, 1, options_.prompt, [&] { return feed_prompt(0, depth, options_.prompt, true); });
  }

  /// Generated tokens per second of all sequences together at a depth, without sampling. Adds what each step took.
  Result<double> generation_rate(int32_t depth, int32_t batch, std::vector<double>& step_seconds) {
    return rate(depth, batch, options_.generate * batch,
                [&] { return decode(depth, options_.generate, step_seconds); });
  }

 private:
  template <class Work>
  Result<double> rate(int32_t depth, int32_t batch, int32_t count, Work work) {
    for (int32_t b = 0; b < batch; ++b) KVANT_FAIL_IF_ERROR(add_sequence(static_cast<size_t>(b), depth));
    const Stopwatch watch;
    KVANT_FAIL_IF_ERROR(work());
    const double seconds = watch.seconds();
    for (const engine::SequenceId sequence : sequences_) cache_.remove_sequence(sequence);
    sequences_.clear();
    return count / seconds;
  }

  Status add_sequence(size_t index, int32_t depth) {
    KVANT_ASSIGN_OR_RETURN(sequences_.emplace_back(), cache_.add_sequence());
    const auto prompt = std::span(tokens_[index]).first(static_cast<size_t>(depth));
    const int32_t kept = cache_.reuse_prefix(sequences_.back(), prompt, {});
    if (kept < depth) KVANT_RETURN_IF_ERROR(feed_prompt(index, kept, depth - kept, false));
    return {};
  }

  Status feed_prompt(size_t index, int32_t position, int32_t count, bool with_logits) {
    // Cell by cell, so that the prefix cache can keep every grid point.
    for (int32_t end = position + count; position < end;) {
      const int32_t part = std::min(end - position, cache_.tokens_to_grid_point(position));
      rows_.assign(1, row(index, position, part, position == 0 ? engine::RowPhase::kPrefill : engine::RowPhase::kExtend,
                          with_logits && position + part == end));
      KVANT_RETURN_IF_ERROR(runner_.forward(rows_, logits_.data()));
      cache_.publish_prefix(sequences_[index], tokens_[index], {});
      position += part;
    }
    return {};
  }

  Status decode(int32_t position, int32_t count, std::vector<double>& step_seconds) {
    for (int32_t i = position; i < position + count; ++i) {
      const Stopwatch watch;
      rows_.clear();
      for (size_t b = 0; b < sequences_.size(); ++b) rows_.push_back(row(b, i, 1, engine::RowPhase::kDecode, true));
      KVANT_RETURN_IF_ERROR(runner_.forward(rows_, logits_.data()));
      step_seconds.push_back(watch.seconds());
    }
    return {};
  }

  engine::BatchRow row(size_t index, int32_t position, int32_t count, engine::RowPhase phase, bool with_logits) const {
    return {.cache = &cache_,
            .sequence = sequences_[index],
            .tokens = std::span(tokens_[index]).subspan(static_cast<size_t>(position), static_cast<size_t>(count)),
            .phase = phase,
            .logits = with_logits ? engine::LogitsWanted::kLast : engine::LogitsWanted::kNone};
  }

  engine::Runner& runner_;
  engine::KvCacheSet& cache_;
  const BenchModelOptions& options_;
  std::vector<engine::SequenceId> sequences_;
  std::vector<std::vector<int32_t>> tokens_;  ///< Of each sequence.
  std::vector<engine::BatchRow> rows_;
  std::vector<float> logits_;
};

/// What the turns of a row gave.
struct Samples {
  std::vector<double> prompt_rates, generation_rates;  ///< Tokens per second, one a turn.
  std::vector<double> step_seconds;                    ///< One a generation step.
};

/// Quantiles of generation steps, for machines whose speed drifts within a turn.
Json step_milliseconds(const std::vector<double>& seconds) {
  return {{"p10", quantile(seconds, 0.1) * 1e3},
          {"p50", quantile(seconds, 0.5) * 1e3},
          {"p90", quantile(seconds, 0.9) * 1e3}};
}

Result<Json> measure(const BenchModelOptions& options, ProgressBar& bar) {
  engine::LoadOptions load;
  for (const std::string& text : options.kv) {
    KVANT_ASSIGN_OR_FAIL(attn::KvSpec spec, attn::parse_kv_spec(text));
    load.kv.push_back(std::move(spec));
  }
  load.max_requests = largest(options.batches);
  load.context = largest(options.depths) + std::max(options.prompt, options.generate);
  const std::vector<attn::KvSpec> specs = load.kv;
  const int32_t context = load.context;
  KVANT_ASSIGN_OR_FAIL(const auto model, load_model(options.model, std::move(load), bar));

  std::vector<std::unique_ptr<engine::KvCacheSet>> caches;
  std::vector<Measurement> measurements;
  for (const attn::KvSpec& spec : specs) {
    KVANT_ASSIGN_OR_FAIL(auto cache,
                         model->create_cache(spec, {.max_sequences = largest(options.batches),
                                                    .max_tokens = context,
                                                    .pool_tokens = int64_t{2} * context * largest(options.batches),
                                                    .prefix_cache = true}));
    measurements.emplace_back(*model, *caches.emplace_back(std::move(cache)), options);
  }

  std::vector<std::vector<Samples>> samples(specs.size());
  const auto num_turns = static_cast<int64_t>(options.depths.size()) * options.repetitions;
  for (size_t d = 0; d < options.depths.size(); ++d) {
    for (std::vector<Samples>& of_spec : samples) of_spec.resize(of_spec.size() + options.batches.size());
    // Caches take turns, so that what else the machine does meets all of them.
    for (int32_t turn = 0; turn < options.repetitions; ++turn) {
      bar.update("bench", static_cast<int64_t>(d) * options.repetitions + turn, num_turns);
      for (size_t s = 0; s < specs.size(); ++s) {
        KVANT_ASSIGN_OR_FAIL(const double prompt_rate, measurements[s].prompt_rate(options.depths[d]));
        for (size_t b = 0; b < options.batches.size(); ++b) {
          Samples& cell = samples[s][d * options.batches.size() + b];
          cell.prompt_rates.push_back(prompt_rate);
          KVANT_ASSIGN_OR_FAIL(
              cell.generation_rates.emplace_back(),
              measurements[s].generation_rate(options.depths[d], options.batches[b], cell.step_seconds));
        }
      }
    }
  }

  Json rows = Json::array();
  for (size_t s = 0; s < specs.size(); ++s) {
    for (size_t i = 0; i < samples[s].size(); ++i) {
      rows.push_back({{"kv", specs[s].text},
                      {"weights", model->runner().weights()},
                      {"threads", model->pool().num_threads()},
                      {"device", cpu_device().name},
                      {"prompt", options.prompt},
                      {"depth", options.depths[i / options.batches.size()]},
                      {"batch", options.batches[i % options.batches.size()]},
                      {"pp_tokens_per_s", median(samples[s][i].prompt_rates)},
                      {"tg_tokens_per_s", median(samples[s][i].generation_rates)},
                      {"step_ms", step_milliseconds(samples[s][i].step_seconds)}});
    }
  }
  KVANT_ASSIGN_OR_FAIL(const double read_gb_s, measure_read_bandwidth(model->pool()));
  bar.erase();
  return Json{{"rows", std::move(rows)}, {"read_gb_s", read_gb_s}};
}

void print_table(const Json& json) {
  std::printf("%-24s %8s %8s %6s %14s %14s\n", "KV cache", "prompt", "depth", "batch", "prompt tok/s", "gen tok/s");
  for (const Json& row : json["rows"]) {
    const std::string line = fmt::format("{:<24} {:>8} {:>8} {:>6} {:>14.1f} {:>14.1f}", row["kv"].get<std::string>(),
                                         row["prompt"].get<int>(), row["depth"].get<int>(), row["batch"].get<int>(),
                                         row["pp_tokens_per_s"].get<double>(), row["tg_tokens_per_s"].get<double>());
    std::printf("%s\n", line.c_str());
  }
  const Json& first = json["rows"][0];
  std::printf("%s, %d threads, %s weights, memory read %.1f GB/s\n", first["device"].get<std::string>().c_str(),
              first["threads"].get<int>(), first["weights"].get<std::string>().c_str(),
              json["read_gb_s"].get<double>());
}

/// Generated tokens per second, a group of bars for each depth and batch.
BarChart generation_chart(const Json& json) {
  BarChart chart{.title = "Generation", .unit = "tokens per second", .parts = {""}, .groups = {}};
  for (const Json& row : json["rows"]) {
    const int32_t batch = row["batch"].get<int32_t>();
    const std::string title =
        fmt::format("{} sequence{} at depth {}", batch, batch == 1 ? "" : "s", row["depth"].get<int32_t>());
    const auto same = [&](const BarGroup& group) { return group.title == title; };
    auto group = std::find_if(chart.groups.begin(), chart.groups.end(), same);
    if (group == chart.groups.end()) group = chart.groups.insert(group, {.title = title, .bars = {}});
    const double rate = row["tg_tokens_per_s"].get<double>();
    group->bars.push_back({.label = row["kv"].get<std::string>(),
                           .parts = {rate},
                           .note = fmt::format("{:.1f}, step {:.1f} ms", rate, row["step_ms"]["p50"].get<double>())});
  }
  const Json& first = json["rows"][0];
  chart.title = fmt::format("Generation on {}, {} weights", first["device"].get<std::string>(),
                            first["weights"].get<std::string>());
  return chart;
}

Status write_plot(const BenchModelOptions& options, const BarChart& chart) {
  return options.svg.empty() ? Status() : write_atomically(options.svg, to_svg(chart));
}

Status run(const BenchModelOptions& options) {
  ProgressBar bar;
  if (options.model.model.empty() == options.dummy.shape.empty())
    return {StatusCode::kInvalidArgument, "either a model file or --dummy FILE is needed"};
  if (!options.dummy.shape.empty()) {
    DummyBenchOptions dummy = options.dummy;
    if (!options.batches.empty()) dummy.batches = options.batches;
    KVANT_ASSIGN_OR_RETURN(const Json json, bench_dummy(dummy, options.kv, options.model.threads, bar));
    if (options.json) {
      print_json(json);
    } else {
      print_dummy_table(json);
    }
    return write_plot(options, dummy_chart(json));
  }
  BenchModelOptions measured = options;
  if (measured.batches.empty()) measured.batches = {1};
  KVANT_ASSIGN_OR_RETURN(const Json json, measure(measured, bar));
  if (options.json) {
    print_json(json);
  } else {
    print_table(json);
  }
  return write_plot(options, generation_chart(json));
}

}  // namespace

void add_bench_model(CLI::App& parent, Action& action) {
  add_command<BenchModelOptions>(parent, action, "model", "Prompt and generation speed at depths of the KV cache",
                                 kExamples, add_options, run);
}

}  // namespace kvant::cli
