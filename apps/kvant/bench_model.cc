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
  int32_t repetitions = 3;
  bool json = false;
  DummyBenchOptions dummy;
};

constexpr const char* kExamples =
    "  kvant bench model model.gguf --kv bf16 --kv nvfp4 --depth 0 2048 8064 --threads 2\n"
    "  kvant bench model model.gguf --kv nvfp4 --prompt 512 --generate 64 --repetitions 5 --json\n"
    "  kvant bench model --dummy bench/shapes/qwen3-8b.json --kv bf16 e4m3-plain --batch 1 64 --at-context 1024 4096\n";

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
  add_count("--repetitions", options.repetitions, 1, "Measurements, of which the median counts");
  add_load_options(app, options.model);
  app.add_flag("--json", options.json, "Print one JSON object instead of a table");
}

std::vector<int32_t> random_tokens(int32_t count, int32_t vocabulary_size) {
  std::mt19937 generator(1);
  std::uniform_int_distribution<int32_t> token(0, vocabulary_size - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = token(generator);
  return tokens;
}

/// One sequence in one cache, brought to a depth again and again.
class Measurement {
 public:
  Measurement(engine::LoadedModel& model, engine::KvCacheSet& cache, const BenchModelOptions& options)
      : runner_(model.runner()), cache_(cache), options_(options) {
    const int32_t vocabulary_size = model.config().vocabulary_size;
    const int32_t most = *std::max_element(options.depths.begin(), options.depths.end());
    tokens_ = random_tokens(most + std::max(options.prompt, options.generate), vocabulary_size);
    logits_.resize(static_cast<size_t>(vocabulary_size));
  }

  /// Median prompt tokens per second at a depth.
  Result<double> prompt_rate(int32_t depth) {
    return median_rate(depth, options_.prompt, [&] { return feed_prompt(depth, options_.prompt, true); });
  }

  /// Median generated tokens per second at a depth, without sampling.
  Result<double> generation_rate(int32_t depth) {
    return median_rate(depth, options_.generate, [&] { return decode(depth, options_.generate); });
  }

 private:
  template <class Work>
  Result<double> median_rate(int32_t depth, int32_t count, Work work) {
    std::vector<double> rates;
    for (int32_t i = 0; i < options_.repetitions; ++i) {
      KVANT_ASSIGN_OR_FAIL(sequence_, cache_.add_sequence());
      const auto prompt = std::span(tokens_).first(static_cast<size_t>(depth));
      const int32_t kept = cache_.reuse_prefix(sequence_, prompt, {});
      if (kept < depth) KVANT_FAIL_IF_ERROR(feed_prompt(kept, depth - kept, false));
      cache_.publish_prefix(sequence_, tokens_, {});
      const Stopwatch watch;
      KVANT_FAIL_IF_ERROR(work());
      rates.push_back(count / watch.seconds());
      cache_.remove_sequence(sequence_);
    }
    return median(std::move(rates));
  }

  Status feed_prompt(int32_t position, int32_t count, bool with_logits) {
    return forward(std::span(tokens_).subspan(static_cast<size_t>(position), static_cast<size_t>(count)),
                   position == 0 ? engine::RowPhase::kPrefill : engine::RowPhase::kExtend, with_logits);
  }

  Status decode(int32_t position, int32_t count) {
    for (int32_t i = position; i < position + count; ++i) {
      KVANT_RETURN_IF_ERROR(
          forward(std::span(tokens_).subspan(static_cast<size_t>(i), 1), engine::RowPhase::kDecode, true));
    }
    return {};
  }

  Status forward(std::span<const int32_t> tokens, engine::RowPhase phase, bool with_logits) {
    const engine::BatchRow row{.cache = &cache_,
                               .sequence = sequence_,
                               .tokens = tokens,
                               .phase = phase,
                               .logits = with_logits ? engine::LogitsWanted::kLast : engine::LogitsWanted::kNone};
    return runner_.forward({&row, 1}, with_logits ? logits_.data() : nullptr);
  }

  engine::Runner& runner_;
  engine::KvCacheSet& cache_;
  const BenchModelOptions& options_;
  engine::SequenceId sequence_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
};

Result<Json> measure(const BenchModelOptions& options, ProgressBar& bar) {
  engine::LoadOptions load;
  for (const std::string& text : options.kv) {
    KVANT_ASSIGN_OR_FAIL(attn::KvSpec spec, attn::parse_kv_spec(text));
    load.kv.push_back(std::move(spec));
  }
  const int32_t deepest = *std::max_element(options.depths.begin(), options.depths.end());
  load.context = deepest + std::max(options.prompt, options.generate);
  const std::vector<attn::KvSpec> specs = load.kv;
  const int32_t context = load.context;
  KVANT_ASSIGN_OR_FAIL(const auto model, load_model(options.model, std::move(load), bar));

  const auto num_rows = static_cast<int64_t>(specs.size() * options.depths.size());
  Json rows = Json::array();
  for (const attn::KvSpec& spec : specs) {
    KVANT_ASSIGN_OR_FAIL(const auto cache, model->create_cache(spec, {.max_tokens = context, .prefix_cache = true}));
    Measurement measurement(*model, *cache, options);
    for (const int32_t depth : options.depths) {
      bar.update("bench", static_cast<int64_t>(rows.size()), num_rows);
      KVANT_ASSIGN_OR_FAIL(const double prompt_rate, measurement.prompt_rate(depth));
      KVANT_ASSIGN_OR_FAIL(const double generation_rate, measurement.generation_rate(depth));
      rows.push_back({{"kv", spec.text},
                      {"weights", model->runner().weights()},
                      {"threads", model->pool().num_threads()},
                      {"device", cpu_device().name},
                      {"prompt", options.prompt},
                      {"depth", depth},
                      {"pp_tokens_per_s", prompt_rate},
                      {"tg_tokens_per_s", generation_rate}});
    }
  }
  KVANT_ASSIGN_OR_FAIL(const double read_gb_s, measure_read_bandwidth(model->pool()));
  bar.erase();
  return Json{{"rows", std::move(rows)}, {"read_gb_s", read_gb_s}};
}

void print_table(const Json& json) {
  std::printf("%-24s %8s %8s %14s %14s\n", "KV cache", "prompt", "depth", "prompt tok/s", "gen tok/s");
  for (const Json& row : json["rows"]) {
    const std::string line = fmt::format("{:<24} {:>8} {:>8} {:>14.1f} {:>14.1f}", row["kv"].get<std::string>(),
                                         row["prompt"].get<int>(), row["depth"].get<int>(),
                                         row["pp_tokens_per_s"].get<double>(), row["tg_tokens_per_s"].get<double>());
    std::printf("%s\n", line.c_str());
  }
  const Json& first = json["rows"][0];
  std::printf("%s, %d threads, %s weights, memory read %.1f GB/s\n", first["device"].get<std::string>().c_str(),
              first["threads"].get<int>(), first["weights"].get<std::string>().c_str(),
              json["read_gb_s"].get<double>());
}

Status run(const BenchModelOptions& options) {
  ProgressBar bar;
  if (options.model.model.empty() == options.dummy.shape.empty())
    return {StatusCode::kInvalidArgument, "either a model file or --dummy FILE is needed"};
  if (!options.dummy.shape.empty()) {
    KVANT_ASSIGN_OR_RETURN(const Json json, bench_dummy(options.dummy, options.kv, options.model.threads, bar));
    if (options.json) {
      print_json(json);
    } else {
      print_dummy_table(json);
    }
    return {};
  }
  KVANT_ASSIGN_OR_RETURN(const Json json, measure(options, bar));
  if (options.json) {
    print_json(json);
  } else {
    print_table(json);
  }
  return {};
}

}  // namespace

void add_bench_model(CLI::App& parent, Action& action) {
  add_command<BenchModelOptions>(parent, action, "model", "Prompt and generation speed at depths of the KV cache",
                                 kExamples, add_options, run);
}

}  // namespace kvant::cli
