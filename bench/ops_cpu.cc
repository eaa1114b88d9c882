// Linear layers of SmolLM2-135M, the loops around them and the cost of starting a parallel loop.
//   build/dev/bin/bench_ops_cpu --benchmark_filter=int8
// GB/s counts the bytes of the weights, GFLOP/s two operations per weight and row.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "core/read_bandwidth.h"
#include "kvant/core/thread_pool.h"
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace {

using kvant::Stream;
using kvant::ThreadPool;
using kvant::ops::Linear;
using kvant::ops::LinearFormat;

struct Shape {
  const char* name;
  int64_t out_features;
  int64_t in_features;
};
constexpr Shape kShapes[] = {
    {"q_or_o", 576, 576}, {"qkv", 960, 576}, {"gate_up", 3072, 576}, {"down", 576, 1536}, {"head", 49152, 576}};

void fill_weight(int64_t row_begin, int64_t row_end, int64_t in_features, float* out) {
  uint32_t state = static_cast<uint32_t>(row_begin) * 2654435761u + 1u;
  for (int64_t i = 0; i < (row_end - row_begin) * in_features; ++i) {
    state = state * 1664525u + 1013904223u;
    out[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
}

void linear(benchmark::State& state, LinearFormat format, Shape shape) {
  ThreadPool pool(0);
  const Stream stream = Stream::on_cpu(pool);
  const int64_t rows = state.range(0);
  const auto fill = [&](int64_t begin, int64_t end, float* out) { fill_weight(begin, end, shape.in_features, out); };
  // As many copies as a model has layers, so that weights come from memory as they do in a decode step.
  const int64_t num_copies = shape.out_features > 10'000 ? 2 : 30;
  std::vector<std::unique_ptr<Linear>> layers;
  for (int64_t copy = 0; copy < num_copies; ++copy) {
    auto layer = Linear::create(format, shape.out_features, shape.in_features, fill, rows, stream);
    if (!layer) return state.SkipWithError(layer.error().to_string().c_str());
    layers.push_back(*std::move(layer));
  }
  std::vector<float> x(static_cast<size_t>(rows * shape.in_features), 0.5f);
  std::vector<float> y(static_cast<size_t>(rows * shape.out_features));
  for (const auto& layer : layers)
    KVANT_CHECK(layer->run({.x = x.data(), .num_rows = rows, .y = y.data()}, stream).ok());
  size_t next = 0;
  for (auto _ : state) {
    KVANT_CHECK(layers[next]->run({.x = x.data(), .num_rows = rows, .y = y.data()}, stream).ok());
    next = next + 1 == layers.size() ? 0 : next + 1;
  }
  using benchmark::Counter;
  const double weights = static_cast<double>(shape.out_features * shape.in_features);
  state.counters["GB/s"] =
      Counter(static_cast<double>(layers[0]->weight_bytes()) * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(2e-9 * weights * static_cast<double>(rows), Counter::kIsIterationInvariantRate);
}

/// All linear layers of one pass of SmolLM2-135M; the head sees the last row alone. Rows per second are tokens per
/// second without attention.
void model_linears(benchmark::State& state, LinearFormat format) {
  ThreadPool pool(0);
  const Stream stream = Stream::on_cpu(pool);
  const int64_t rows = state.range(0);
  std::vector<std::unique_ptr<Linear>> layers;
  const auto add = [&](Shape shape, int64_t max_rows) {
    const auto fill = [&](int64_t begin, int64_t end, float* out) { fill_weight(begin, end, shape.in_features, out); };
    layers.push_back(Linear::create(format, shape.out_features, shape.in_features, fill, max_rows, stream).value());
  };
  for (int layer = 0; layer < 30; ++layer) {
    for (const char* name : {"qkv", "q_or_o", "gate_up", "down"}) {
      for (const Shape& shape : kShapes) {
        if (std::string_view(shape.name) == name) add(shape, rows);
      }
    }
  }
  add(kShapes[4], 1);
  const std::vector<float> x(static_cast<size_t>(rows * 1536), 0.5f);
  std::vector<float> y(static_cast<size_t>(std::max<int64_t>(rows * 3072, 49152)));
  double bytes = 0.0;
  for (const auto& layer : layers) bytes += static_cast<double>(layer->weight_bytes());
  for (auto _ : state) {
    for (const auto& layer : layers)
      KVANT_CHECK(
          layer->run({.x = x.data(), .num_rows = layer == layers.back() ? 1 : rows, .y = y.data()}, stream).ok());
  }
  using benchmark::Counter;
  state.counters["tokens/s"] = Counter(static_cast<double>(rows), Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
}

void empty_parallel_loop(benchmark::State& state) {
  ThreadPool pool(0);
  for (auto _ : state) pool.parallel_for(pool.num_threads(), [](int64_t, int) {});
}
BENCHMARK(empty_parallel_loop)->UseRealTime();

void rms_norm(benchmark::State& state) {
  ThreadPool pool(0);
  const int64_t rows = state.range(0);
  std::vector<float> x(static_cast<size_t>(rows * 576), 0.5f);
  const std::vector<float> weight(576, 1.0f);
  for (auto _ : state) {
    kvant::ops::rms_norm(x.data(), rows, 576, weight.data(), 1e-5f, x.data(), Stream::on_cpu(pool));
  }
}
BENCHMARK(rms_norm)->Arg(1)->Arg(512)->UseRealTime();

void silu_mul_rows(benchmark::State& state) {
  ThreadPool pool(0);
  const int64_t rows = state.range(0);
  const std::vector<float> gate_up(static_cast<size_t>(rows * 3072), 0.5f);
  std::vector<float> out(static_cast<size_t>(rows * 1536));
  for (auto _ : state) kvant::ops::gate_rows({}, gate_up.data(), rows, 1536, out.data(), Stream::on_cpu(pool));
}
BENCHMARK(silu_mul_rows)->Arg(1)->Arg(512)->UseRealTime();

void read_bandwidth(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  double best = 0.0;
  for (auto _ : state) best = kvant::measure_read_bandwidth(pool).value_or(0.0);
  state.counters["GB/s"] = best;
}
BENCHMARK(read_bandwidth)->Arg(1)->Arg(0)->Iterations(1)->UseRealTime();

const bool kRegistered = [] {
  for (const LinearFormat format : {LinearFormat::kF32, LinearFormat::kBf16, LinearFormat::kInt8}) {
    if (!kvant::ops::linear_format_supported(format, {})) continue;
    for (const Shape& shape : kShapes) {
      const std::string name = std::string("linear/") + std::string(to_string(format)) + "/" + shape.name;
      auto* bench = benchmark::RegisterBenchmark(name.c_str(), linear, format, shape)->UseRealTime();
      bench->Arg(1)->Arg(4)->Arg(16);
      if (shape.out_features < 10'000) bench->Arg(64)->Arg(256)->Arg(512);
    }
    const std::string name = std::string("model_linears/") + std::string(to_string(format));
    benchmark::RegisterBenchmark(name.c_str(), model_linears, format)->UseRealTime()->Arg(1)->Arg(512);
  }
  return true;
}();

}  // namespace
