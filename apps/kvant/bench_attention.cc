#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attention_suite.h"
#include "command.h"
#include "core/device_memory.h"
#include "core/read_bandwidth.h"
#include "engine/cache/layer_groups.h"
#include "json_output.h"
#include "kv_layout_options.h"
#include "kvant/attn/append.h"
#include "kvant/attn/attention.h"
#include "kvant/core/device.h"
#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"
#include "statistics.h"

namespace kvant::cli {
namespace {

struct BenchAttentionOptions {
  std::vector<std::string> formats = {"bf16", "e4m3", "nvfp4"};
  std::vector<int32_t> contexts = {2048, 8192};
  int32_t requests = 8;
  int32_t query_len = 1;
  int32_t q_heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
  int32_t page = 16;
  int32_t threads = 0;
  int32_t repetitions = 11;
  bench::AttentionSuiteOptions suite{.suite = "", .shapes = "", .commit = "unknown", .date = "unknown"};
  bool json = false;
};

/// Keys that a task of attention reads before their values.
constexpr int32_t kSplitTokens = 256;

constexpr const char* kExamples =
    "  kvant bench attention --threads 2\n"
    "  kvant bench attention --format nvfp4 --context 32768 --requests 1 --json\n"
    "  kvant bench attention --query-len 512 --requests 1 --context 2048\n"
    "  kvant bench attention --suite h200 --json > attention_decode.json\n";

void add_options(CLI::App& app, BenchAttentionOptions& options) {
  const auto add_count = [&](const char* name, int32_t& value, int32_t least, const char* text) {
    app.add_option(name, value, text)->capture_default_str()->check(CLI::Range(least, 1 << 24))->type_name("N");
  };
  app.add_option("--format", options.formats, "KV formats to measure")->capture_default_str()->type_name("F");
  app.add_option("--context", options.contexts, "Keys per request")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N");
  add_count("--requests", options.requests, 1, "Requests in the batch");
  add_count("--query-len", options.query_len, 1, "New tokens per request; 1 is a decode step");
  add_count("--q-heads", options.q_heads, 1, "Query heads");
  add_count("--kv-heads", options.kv_heads, 1, "KV heads");
  add_count("--head-dim", options.head_dim, 1, "Elements of a head");
  add_count("--page", options.page, 1, "Tokens per page");
  add_count("-t,--threads", options.threads, 0, "Threads; 0 = one per core");
  add_count("--repetitions", options.repetitions, 1, "Measurements, of which the median counts");
  app.add_option("--suite", options.suite.suite,
                 "Shapes on the first CUDA device instead: decode, grid, h200 (both), shared or prefill")
      ->check(CLI::IsMember({"decode", "grid", "h200", "shared", "prefill"}))
      ->type_name("NAME");
  app.add_option("--shapes", options.suite.shapes, "Of the suite, those whose names hold one of these, comma-separated")
      ->type_name("TEXT");
  app.add_option("--commit", options.suite.commit, "Written down with the suite's results")->type_name("TEXT");
  app.add_option("--date", options.suite.date, "Written down with the suite's results")->type_name("TEXT");
  app.add_flag("--json", options.json, "Print one JSON object instead of a table");
}

std::vector<float> random_values(int64_t count) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

/// A batch of equal requests, each with pages of its own.
class Problem {
 public:
  static Result<std::unique_ptr<Problem>> create(const BenchAttentionOptions& options, attn::KvFormat format,
                                                 int32_t context, ThreadPool& pool) {
    attn::AttnDesc desc;
    desc.num_q_heads = options.q_heads;
    desc.layout.k_format = desc.layout.v_format = format;
    desc.layout.head_dim_k = desc.layout.head_dim_v = options.head_dim;
    desc.layout.num_kv_heads = options.kv_heads;
    desc.layout.page_size = options.page;
    const DeviceInfo device = cpu_device();
    desc.layout = engine::device_layout(desc.layout, device);
    desc.softmax_scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim));
    KVANT_FAIL_IF_ERROR(desc.layout.validate());
    const int32_t pages = (context + options.page - 1) / options.page;
    const attn::AttnLimits limits{.max_requests = options.requests,
                                  .max_tokens = options.requests * options.query_len,
                                  .max_query_len = options.query_len,
                                  .max_pages_per_request = pages};
    KVANT_ASSIGN_OR_FAIL(const size_t bytes, attn::workspace_size(desc, limits, device, pool.num_threads()));
    std::vector<std::byte> workspace(bytes);
    KVANT_ASSIGN_OR_FAIL(attn::AttnPlan plan, attn::make_plan(desc, limits, device, pool.num_threads(),
                                                              {.data = workspace.data(), .bytes = bytes}));
    std::unique_ptr<Problem> problem(new Problem(std::move(plan), std::move(workspace), context, pool));
    KVANT_ASSIGN_OR_FAIL(
        problem->memory_,
        DeviceBuffer::create(MemoryKind::kHost, problem->args_.cache.base.num_pages * desc.layout.page_bytes(),
                             "the KV cache"));
    problem->args_.cache.base.data = problem->memory_.data();
    KVANT_FAIL_IF_ERROR(problem->fill_cache());
    return problem;
  }

  Status run() { return attn::run(plan_, args_, Stream::on_cpu(pool_)); }

  /// Plain reads of the pages that a run reads, in an order that is attention's too: keys of a split, then its values.
  /// Returns GB/s, the ceiling that the shape leaves: pages lie anywhere, and a page's keys may be a few KB.
  double read_pages() {
    const attn::KvLayout& layout = plan_.desc().layout;
    const int64_t key_bytes = layout.v_plane(), value_bytes = layout.page_bytes() - key_bytes;
    const auto num_pages = static_cast<int64_t>(page_table_.size());
    const int64_t split_pages = std::max(1, kSplitTokens / layout.page_size);
    std::atomic<uint64_t> sum{0};
    const Stopwatch watch;
    pool_.parallel_for((num_pages + split_pages - 1) / split_pages, [&](int64_t split, int) {
      const int64_t first = split * split_pages, last = std::min(num_pages, first + split_pages);
      uint64_t of_split = 0;
      const auto add = [&](int64_t offset, int64_t bytes) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t page = page_table_[static_cast<size_t>(i)];
          of_split += sum_words(memory_.data() + page * layout.page_bytes() + offset, bytes);
        }
      };
      add(0, key_bytes);
      add(key_bytes, value_bytes);
      sum.fetch_add(of_split, std::memory_order_relaxed);
    });
    const double seconds = watch.seconds();
    return static_cast<double>(num_pages * layout.page_bytes()) / seconds / 1e9;
  }

  const std::string& route() const { return plan_.route(); }
  /// Bytes of keys and values that one run must read.
  int64_t kv_bytes() const { return plan_.desc().layout.bytes_per_token() * context_ * plan_.limits().max_requests; }

 private:
  Problem(attn::AttnPlan plan, std::vector<std::byte> workspace, int32_t context, ThreadPool& pool)
      : plan_(std::move(plan)), workspace_(std::move(workspace)), context_(context), pool_(pool) {
    const attn::AttnDesc& desc = plan_.desc();
    const attn::AttnLimits& limits = plan_.limits();
    const int64_t num_pages = int64_t{limits.max_requests} * limits.max_pages_per_request;
    args_.cache.layout = desc.layout;
    args_.cache.base = {.data = nullptr, .num_pages = num_pages, .page_stride = desc.layout.page_bytes()};
    page_table_.resize(static_cast<size_t>(num_pages));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    // Pages that follow each other in a request do not in memory.
    std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(1));
    for (int32_t r = 0; r <= limits.max_requests; ++r) q_offsets_.push_back(r * limits.max_query_len);
    kv_lens_.assign(static_cast<size_t>(limits.max_requests), context);
    q_ = random_values(int64_t{limits.max_tokens} * desc.num_q_heads * desc.layout.head_dim_k);
    out_.resize(q_.size());
    args_.q = q_.data();
    args_.out = out_.data();
    args_.q_offsets = q_offsets_.data();
    args_.kv_lens = kv_lens_.data();
    args_.page_table = page_table_.data();
    args_.page_table_stride = limits.max_pages_per_request;
    args_.num_requests = limits.max_requests;
    args_.num_tokens = limits.max_tokens;
  }

  /// The same random page in every page.
  Status fill_cache() {
    const attn::KvLayout& layout = plan_.desc().layout;
    const std::vector<float> rows = random_values(layout.rows_per_page() * layout.head_dim_k);
    std::vector<int64_t> slots(static_cast<size_t>(layout.page_size));
    for (int64_t page = 0; page < args_.cache.base.num_pages; ++page) {
      std::iota(slots.begin(), slots.end(), page * layout.page_size);
      const attn::AppendArgs args{.cache = args_.cache,
                                  .k = rows.data(),
                                  .v = rows.data(),
                                  .slots = slots.data(),
                                  .num_tokens = layout.page_size};
      KVANT_RETURN_IF_ERROR(attn::append(args, Stream::on_cpu(pool_)));
    }
    return {};
  }

  attn::AttnPlan plan_;
  std::vector<std::byte> workspace_;
  int32_t context_;
  ThreadPool& pool_;
  DeviceBuffer memory_;
  std::vector<int32_t> page_table_;
  std::vector<int32_t> q_offsets_;
  std::vector<int32_t> kv_lens_;
  std::vector<float> q_;
  std::vector<float> out_;
  attn::AttnArgs args_;
};

Result<Json> measure_row(const BenchAttentionOptions& options, const std::string& format_name, int32_t context,
                         ReadTest& read, ThreadPool& pool) {
  KVANT_ASSIGN_OR_FAIL(const attn::KvFormat format, format_from(format_name));
  KVANT_ASSIGN_OR_FAIL(const auto problem, Problem::create(options, format, context, pool));
  KVANT_FAIL_IF_ERROR(problem->run());
  std::vector<double> seconds, read_rates, page_read_rates;
  for (int32_t i = 0; i < options.repetitions; ++i) {
    // In turns, so that what else the machine does meets all; the plain read leaves nothing of the pages in a cache.
    KVANT_ASSIGN_OR_FAIL(read_rates.emplace_back(), read.pass());
    page_read_rates.push_back(problem->read_pages());
    KVANT_ASSIGN_OR_FAIL(read_rates.emplace_back(), read.pass());
    const Stopwatch watch;
    KVANT_FAIL_IF_ERROR(problem->run());
    seconds.push_back(watch.seconds());
  }
  const double time = median(std::move(seconds));
  const double read_gb_s = median(std::move(read_rates));
  const double gb_s = static_cast<double>(problem->kv_bytes()) / time / 1e9;
  return Json{{"format", format_name},
              {"requests", options.requests},
              {"query_len", options.query_len},
              {"context", context},
              {"q_heads", options.q_heads},
              {"kv_heads", options.kv_heads},
              {"head_dim", options.head_dim},
              {"threads", pool.num_threads()},
              {"route", problem->route()},
              {"microseconds", time * 1e6},
              {"kv_bytes", problem->kv_bytes()},
              {"kv_gb_s", gb_s},
              {"read_gb_s", read_gb_s},
              {"percent_of_read", 100.0 * gb_s / read_gb_s},
              {"page_read_gb_s", median(std::move(page_read_rates))}};
}

/// JSON as it comes, since a suite takes minutes; the table when all is measured.
Status run_suite(const BenchAttentionOptions& options) {
  std::string text;
  KVANT_RETURN_IF_ERROR(bench::run_attention_suite(options.suite, [&](const std::string& piece) {
    if (options.json) {
      std::fputs(piece.c_str(), stdout);
      std::fflush(stdout);
    } else {
      text += piece;
    }
  }));
  if (options.json) return {};
  const Json result = Json::parse(text);
  std::printf("%-8s %9s %9s %9s %9s %12s %10s\n", "format", "requests", "context", "query len", "q heads", "time us",
              "of read");
  for (const Json& row : result["rows"]) {
    const std::string line =
        fmt::format("{:<8} {:>9} {:>9} {:>9} {:>9} {:>12.1f} {:>10.3f}", row["format"].get<std::string>(),
                    row["batch"].get<int>(), row["context"].get<int>(), row["q_len"].get<int>(),
                    row["q_heads"].get<int>(), row["us"].get<double>(), row["fraction_of_read"].get<double>());
    std::printf("%s\n", line.c_str());
  }
  std::printf("%s\n", result["device"].get<std::string>().c_str());
  return {};
}

Status run(const BenchAttentionOptions& options) {
  if (!options.suite.suite.empty()) return run_suite(options);
  ThreadPool pool(options.threads);
  KVANT_ASSIGN_OR_RETURN(ReadTest read, ReadTest::create(pool));
  Json rows = Json::array();
  for (const std::string& format : options.formats) {
    for (const int32_t context : options.contexts) {
      KVANT_ASSIGN_OR_RETURN(Json row, measure_row(options, format, context, read, pool));
      rows.push_back(std::move(row));
    }
  }
  if (options.json) {
    print_json({{"device", cpu_device().name}, {"rows", std::move(rows)}});
    return {};
  }
  std::printf("%-8s %9s %9s %12s %10s %10s %10s %12s\n", "format", "context", "requests", "time us", "KV GB/s",
              "read GB/s", "% of read", "pages GB/s");
  for (const Json& row : rows) {
    const std::string line =
        fmt::format("{:<8} {:>9} {:>9} {:>12.1f} {:>10.2f} {:>10.2f} {:>10.1f} {:>12.2f}",
                    row["format"].get<std::string>(), row["context"].get<int>(), row["requests"].get<int>(),
                    row["microseconds"].get<double>(), row["kv_gb_s"].get<double>(), row["read_gb_s"].get<double>(),
                    row["percent_of_read"].get<double>(), row["page_read_gb_s"].get<double>());
    std::printf("%s\n", line.c_str());
  }
  std::printf("%s, %d threads\n", cpu_device().name.c_str(), pool.num_threads());
  return {};
}

}  // namespace

void add_bench_attention(CLI::App& parent, Action& action) {
  add_command<BenchAttentionOptions>(parent, action, "attention",
                                     "Attention over a paged cache, against the machine's memory read rate", kExamples,
                                     add_options, run);
}

}  // namespace kvant::cli
