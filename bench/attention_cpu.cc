// Attention of a small decoder (9 query heads on 3 KV heads, head_dim 64, 30 layers, pages of 16 tokens, shuffled).
//   build/dev/bin/bench_attention_cpu --benchmark_filter='decode.*nvfp4'
// One iteration of `decode` is one step of all layers, each with a cache of its own; GB/s counts the bytes of K and V.
// One iteration of `prefill` is one layer; GFLOP/s counts the scores and the weighted sums of the visible keys.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "core/large_pages.h"
#include "core/read_bandwidth.h"
#include "engine/cache/layer_groups.h"
#include "kvant/attn/append.h"
#include "kvant/attn/attention.h"
#include "kvant/core/device.h"
#include "kvant/core/thread_pool.h"

namespace {

using namespace kvant;
using namespace kvant::attn;

constexpr int32_t kNumQHeads = 9;
constexpr int32_t kPageSize = 16;
constexpr int kNumLayers = 30;

uint32_t next_random(uint32_t& state) { return state = state * 1664525u + 1013904223u; }

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(next_random(seed))) * 0x1p-30f;
  return values;
}

AttnDesc make_desc(KvFormat format, bool exact_pages) {
  AttnDesc desc;
  desc.num_q_heads = kNumQHeads;
  desc.layout.k_format = desc.layout.v_format = format;
  desc.layout.head_dim_k = desc.layout.head_dim_v = 64;
  desc.layout.num_kv_heads = 3;
  desc.layout.page_size = kPageSize;
  desc.layout = engine::device_layout(desc.layout, cpu_device());
  desc.exact_pages = exact_pages;
  desc.softmax_scale = 0.125f;
  return desc;
}

/// One sequence of one layer, its pages in random places.
class LayerCache {
 public:
  LayerCache(const AttnDesc& desc, int32_t num_tokens, uint32_t seed, Stream stream) {
    const KvLayout& layout = desc.layout;
    const int32_t num_pages = (num_tokens + kPageSize - 1) / kPageSize;
    base_.resize(static_cast<size_t>(num_pages * layout.page_bytes()));
    view_.layout = layout;
    view_.base = {.data = base_.data(), .num_pages = num_pages, .page_stride = layout.page_bytes()};
    if (desc.exact_pages) {
      exact_.resize(static_cast<size_t>(num_pages * layout.exact().page_bytes()));
      view_.exact = {.data = exact_.data(), .num_pages = num_pages, .page_stride = layout.exact().page_bytes()};
    }
    for (int32_t page = 0; page < num_pages; ++page) pages_.push_back(page);
    for (size_t i = pages_.size() - 1; i > 0; --i) std::swap(pages_[i], pages_[next_random(seed) % (i + 1)]);
    // The default edges: 16 exact tokens at the start, 32 at the end.
    if (desc.exact_pages)
      for (int32_t page = 0; page < num_pages; ++page)
        if (page == 0 || page >= num_pages - 3) pages_[static_cast<size_t>(page)] |= kExactPageBit;

    std::vector<int64_t> slots;
    for (int32_t token = 0; token < num_tokens; ++token)
      slots.push_back(slot_of(pages_[static_cast<size_t>(token / kPageSize)], kPageSize, token % kPageSize));
    const auto values = random_floats(int64_t{num_tokens} * layout.num_kv_heads * layout.head_dim_k, seed);
    AppendArgs args;
    args.cache = view_;
    args.k = args.v = values.data();
    args.slots = slots.data();
    args.num_tokens = num_tokens;
    status_ = append(args, stream);
    // As the engine's caches lie, whose mappings are made before they are filled.
    gather_large_pages(base_.data(), base_.size());
    gather_large_pages(exact_.data(), exact_.size());
  }

  const Status& status() const { return status_; }
  const KvCacheView& view() const { return view_; }
  const std::vector<int32_t>& pages() const { return pages_; }

 private:
  LargePageVector<std::byte> base_, exact_;
  KvCacheView view_;
  std::vector<int32_t> pages_;
  Status status_;
};

/// One request on some layers.
class Step {
 public:
  Step(const AttnDesc& desc, int32_t q_len, int32_t kv_len, int num_layers, Stream stream)
      : desc_(desc), offsets_{0, q_len}, kv_len_(kv_len), stream_(stream) {
    q_ = random_floats(int64_t{q_len} * kNumQHeads * desc.layout.head_dim_k, 3);
    out_.resize(static_cast<size_t>(int64_t{q_len} * kNumQHeads * desc.layout.head_dim_v));
    for (int layer = 0; layer < num_layers; ++layer) {
      layers_.emplace_back(desc, kv_len, static_cast<uint32_t>(layer), stream);
      if (!layers_.back().status().ok()) status_ = layers_.back().status();
    }
    AttnLimits limits;
    limits.max_tokens = limits.max_query_len = q_len;
    limits.max_pages_per_request = (kv_len + kPageSize - 1) / kPageSize;
    const int num_threads = stream.pool->num_threads();
    workspace_.resize(workspace_size(desc, limits, cpu_device(), num_threads).value_or(0));
    auto plan = make_plan(desc, limits, cpu_device(), num_threads, {workspace_.data(), workspace_.size()});
    if (plan)
      plan_ = *std::move(plan);
    else
      status_ = plan.error();
  }

  const Status& status() const { return status_; }
  void run(size_t layer) {
    AttnArgs args;
    args.cache = layers_[layer].view();
    args.q = q_.data();
    args.out = out_.data();
    args.q_offsets = offsets_;
    args.kv_lens = &kv_len_;
    args.page_table = layers_[layer].pages().data();
    args.page_table_stride = static_cast<int64_t>(layers_[layer].pages().size());
    args.num_requests = 1;
    args.num_tokens = offsets_[1];
    if (const Status status = attn::run(plan_, args, stream_); !status.ok()) status_ = status;
  }
  int64_t bytes_per_layer() const { return kv_len_ * desc_.layout.bytes_per_token(); }

 private:
  AttnDesc desc_;
  int32_t offsets_[2];
  int32_t kv_len_;
  Stream stream_;
  std::vector<LayerCache> layers_;
  std::vector<float> q_, out_;
  std::vector<std::byte> workspace_;
  AttnPlan plan_;
  Status status_;
};

void decode(benchmark::State& state, KvFormat format, bool exact_pages, int num_threads, int32_t q_len) {
  ThreadPool pool(num_threads);
  const auto depth = static_cast<int32_t>(state.range(0));
  Step step(make_desc(format, exact_pages), q_len, depth, kNumLayers, Stream::on_cpu(pool));
  for (auto _ : state)
    for (size_t layer = 0; layer < kNumLayers; ++layer) step.run(layer);
  if (!step.status().ok()) return state.SkipWithError(step.status().to_string().c_str());
  const auto bytes = static_cast<double>(step.bytes_per_layer() * kNumLayers);
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

/// A layer's share of a small model's weights: reading it leaves of the caches what a decode step would find there.
class Weights {
 public:
  explicit Weights(ThreadPool& pool) : pool_(pool), words_(kNumLayers * kLayerWords, 1) {
    gather_large_pages(words_.data(), words_.size() * sizeof(words_[0]));
  }
  void read(size_t layer) {
    const auto sum = [&](int64_t part, int) {
      const uint64_t* from = words_.data() + layer * kLayerWords + static_cast<size_t>(part) * kPartWords;
      benchmark::DoNotOptimize(std::accumulate(from, from + kPartWords, uint64_t{0}));
    };
    pool_.parallel_for(kParts, sum);
  }

 private:
  static constexpr size_t kParts = 16, kPartWords = 25600, kLayerWords = kParts * kPartWords;  // 3.3 MB, 98 MB in all.
  ThreadPool& pool_;
  LargePageVector<uint64_t> words_;
};

/// `decode` as a step meets it: weights were read before each layer. Only attention is timed.
void decode_between_weights(benchmark::State& state, KvFormat format, bool exact_pages, int num_threads) {
  ThreadPool pool(num_threads);
  Weights weights(pool);
  Step step(make_desc(format, exact_pages), 1, static_cast<int32_t>(state.range(0)), kNumLayers, Stream::on_cpu(pool));
  for (auto _ : state) {
    std::chrono::duration<double> attention{};
    for (size_t layer = 0; layer < kNumLayers; ++layer) {
      weights.read(layer);
      const auto start = std::chrono::steady_clock::now();
      step.run(layer);
      attention += std::chrono::steady_clock::now() - start;
    }
    state.SetIterationTime(attention.count());
  }
  if (!step.status().ok()) return state.SkipWithError(step.status().to_string().c_str());
}

void prefill(benchmark::State& state, KvFormat format, int num_threads, int32_t q_len) {
  ThreadPool pool(num_threads);
  const auto depth = static_cast<int32_t>(state.range(0));
  const AttnDesc desc = make_desc(format, false);
  Step step(desc, q_len, depth + q_len, 1, Stream::on_cpu(pool));
  for (auto _ : state) step.run(0);
  if (!step.status().ok()) return state.SkipWithError(step.status().to_string().c_str());
  const double visible = static_cast<double>(q_len) * (depth + 0.5 * (q_len + 1));
  const double flops = 2.0 * visible * kNumQHeads * (desc.layout.head_dim_k + desc.layout.head_dim_v);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

/// The ceiling of `decode`.
void read_bandwidth(benchmark::State& state, int num_threads) {
  ThreadPool pool(num_threads);
  double best = 0.0;
  for (auto _ : state) best = measure_read_bandwidth(pool).value_or(0.0);
  state.counters["GB/s"] = best;
}

bool register_all() {
  for (const int num_threads : {1, 2}) {
    benchmark::RegisterBenchmark(fmt::format("read_bandwidth/threads:{}", num_threads).c_str(), read_bandwidth,
                                 num_threads)
        ->Iterations(1)
        ->UseRealTime();
    for (const KvFormat format :
         {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4}) {
      for (const bool edges : {false, true}) {
        if (edges && !info(format).quantised) continue;
        const std::string name = fmt::format("{}{}/threads:{}", to_string(format), edges ? "+edges" : "", num_threads);
        benchmark::RegisterBenchmark(("decode/" + name).c_str(), decode, format, edges, num_threads, 1)
            ->Arg(512)
            ->Arg(2048)
            ->Arg(8064)
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
      if (format == KvFormat::kBf16 || format == KvFormat::kNvfp4) {
        benchmark::RegisterBenchmark(
            fmt::format("decode_between_weights/{}/threads:{}", to_string(format), num_threads).c_str(),
            decode_between_weights, format, info(format).quantised, num_threads)
            ->Arg(2048)
            ->Arg(8064)
            ->Unit(benchmark::kMillisecond)
            ->UseManualTime();
      }
      benchmark::RegisterBenchmark(fmt::format("verify4/{}/threads:{}", to_string(format), num_threads).c_str(), decode,
                                   format, false, num_threads, 4)
          ->Arg(2048)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
      benchmark::RegisterBenchmark(fmt::format("prefill512/{}/threads:{}", to_string(format), num_threads).c_str(),
                                   prefill, format, num_threads, 512)
          ->Arg(0)
          ->Arg(2048)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  return true;
}
const bool kRegistered = register_all();

}  // namespace
