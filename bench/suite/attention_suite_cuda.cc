#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "attention_shapes.h"
#include "attention_suite.h"
#include "core/cuda_graph.h"
#include "device_kernels.h"
#include "kvant/attn/attention.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/attn/shared_runs.h"

namespace kvant::bench {
namespace {

using namespace kvant::attn;

constexpr size_t kArenaBytes = size_t{40} << 30;
constexpr size_t kPastL2 = size_t{600} << 20;

/// Ends a measurement from wherever it fails; run_attention_suite turns it into a status.
struct Failure {
  Status status;
};
void check(const Status& status) {
  if (!status.ok()) throw Failure{status};
}
void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw Failure{{StatusCode::kCudaError, fmt::format("{}: {}", call, cudaGetErrorString(error))}};
}
template <class T>
T check(Result<T> result) {
  if (!result) throw Failure{result.error()};
  return *std::move(result);
}

/// Device memory that lives as long as one shape.
class Buffers {
 public:
  ~Buffers() {
    for (void* data : data_) cudaFree(data);
  }
  void* bytes(size_t size) {
    void* data = nullptr;
    check(cudaMalloc(&data, std::max<size_t>(size, 16)), "cudaMalloc");
    check(cudaMemset(data, 0, std::max<size_t>(size, 16)), "cudaMemset");
    data_.push_back(data);
    return data;
  }
  template <class T>
  T* copy_of(const std::vector<T>& values) {
    auto* data = static_cast<T*>(bytes(values.size() * sizeof(T)));
    check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    return data;
  }

 private:
  std::vector<void*> data_;
};

struct Setting {
  DeviceInfo device;
  std::byte* arena = nullptr;
  cudaStream_t stream = nullptr;
  uint32_t* sink = nullptr;
  float* mhz = nullptr;
  std::string commit;
};

/// A CUDA event; without timing it would be of no use here.
class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  float microseconds_since(const Event& start) const {
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return ms * 1e3f;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Median microseconds of one of `launches` launches, replayed as one graph.
double time_graph(cudaStream_t stream, int launches, const std::function<void(int)>& launch) {
  check(CudaGraph::begin(Stream::on_cuda(stream)));
  for (int i = 0; i < launches; ++i) launch(i);
  const CudaGraph graph = check(CudaGraph::finish(Stream::on_cuda(stream)));
  Event start, stop;
  std::vector<float> times;
  for (int repeat = 0; repeat < 8; ++repeat) {
    start.record(stream);
    check(graph.launch(Stream::on_cuda(stream)));
    stop.record(stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (repeat > 0) times.push_back(stop.microseconds_since(start) / static_cast<float>(launches));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

AttnDesc desc_of(const Shape& shape, const DeviceInfo& device) {
  AttnDesc desc;
  desc.num_q_heads = shape.q_heads;
  desc.layout = {.k_format = shape.format,
                 .v_format = shape.format,
                 .head_dim_k = shape.head_dim,
                 .head_dim_v = shape.head_dim,
                 .num_kv_heads = shape.kv_heads,
                 .page_size = shape.page,
                 .order = TokenHeadOrder::kHnd};
  if (shape.format == KvFormat::kNvfp4) {
    desc.layout.code_order = own_code_order(device.family);
    desc.layout.scale_order = ScaleOrder::kLanes;
  }
  desc.exact_pages = shape.edges;
  desc.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  desc.q_dtype = desc.out_dtype = DType::kBf16;
  return desc;
}

std::vector<int32_t> lengths_of(const Shape& shape, std::mt19937& random) {
  std::vector<int32_t> lengths(static_cast<size_t>(shape.batch), shape.context);
  if (!shape.mixed) return lengths;
  std::uniform_real_distribution<double> part(0.02, 1.0);
  for (int32_t& length : lengths) length = static_cast<int32_t>(part(random) * shape.context);
  return lengths;
}

/// Pages of one set; what is shared counts once.
size_t count_pages(const Shape& shape, const std::vector<int32_t>& lengths) {
  size_t pages = static_cast<size_t>(shape.shared / shape.page);
  for (const int32_t length : lengths)
    pages += static_cast<size_t>((length + shape.page - 1) / shape.page - shape.shared / shape.page);
  return pages;
}

/// Shuffled pages of one set, as all layers of a model share a table.
std::vector<int32_t> make_table(const Shape& shape, const std::vector<int32_t>& lengths, std::mt19937& random) {
  const int32_t stride = (shape.context + shape.page - 1) / shape.page;
  std::vector<int32_t> ids(count_pages(shape, lengths));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<int32_t> table(lengths.size() * static_cast<size_t>(stride), kNoPage);
  size_t next = 0;
  int32_t next_exact = 0;
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int32_t pages = (lengths[r] + shape.page - 1) / shape.page;
    for (int32_t i = 0; i < pages; ++i) {
      int32_t& entry = table[r * static_cast<size_t>(stride) + static_cast<size_t>(i)];
      if (r > 0 && i < shape.shared / shape.page) {
        entry = table[static_cast<size_t>(i)];
        continue;
      }
      const bool exact = shape.edges && (i == 0 || i >= pages - 3);
      const int32_t id = ids[next++];
      entry = exact ? next_exact++ | kExactPageBit : id;
    }
  }
  return table;
}

float clock_of(const Setting& setting) {
  float mhz = 0.0f;
  launch_clock(setting.mhz, setting.stream);
  check(cudaMemcpyAsync(&mhz, setting.mhz, sizeof(mhz), cudaMemcpyDeviceToHost, setting.stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(setting.stream), "cudaStreamSynchronize");
  return mhz;
}

/// Of both products, for the keys that causal rows see.
double flops_of(const Shape& shape, const std::vector<int32_t>& lengths) {
  double pairs = 0;
  for (const int32_t length : lengths) {
    const double n = shape.q_len;
    pairs += n * length - n * (n - 1) / 2;
  }
  return 4.0 * shape.head_dim * shape.q_heads * pairs;
}

/// The row as JSON, or nothing where two sets do not fit the arena.
std::string measure(const Setting& setting, const Shape& shape) {
  std::mt19937 random(7);
  Buffers buffers;
  const AttnDesc desc = desc_of(shape, setting.device);
  const std::vector<int32_t> lengths = lengths_of(shape, random);
  size_t tokens = static_cast<size_t>(shape.shared);
  for (const int32_t length : lengths) tokens += static_cast<size_t>(length - shape.shared);
  const size_t kv_bytes = tokens * static_cast<size_t>(desc.layout.bytes_per_token());
  const size_t pages = count_pages(shape, lengths);
  const auto page_bytes = static_cast<size_t>(desc.layout.page_bytes());
  const auto exact_page_bytes = static_cast<size_t>(desc.layout.exact().page_bytes());
  const size_t base_arena = kArenaBytes / 4 * 3;
  const size_t set_bytes = pages * page_bytes;
  const int num_sets = static_cast<int>(std::min<size_t>(32, std::max<size_t>(2, kPastL2 / set_bytes + 1)));
  if (set_bytes * static_cast<size_t>(num_sets) > base_arena) return {};

  const size_t exact_pages = shape.edges ? 4 * lengths.size() : 0;
  if (exact_pages * exact_page_bytes * static_cast<size_t>(num_sets) > kArenaBytes / 4) return {};

  AttnArgs args;
  args.cache.layout = desc.layout;
  args.cache.base = {setting.arena, static_cast<int64_t>(pages), static_cast<int64_t>(page_bytes)};
  args.cache.exact = {setting.arena + base_arena, static_cast<int64_t>(exact_pages),
                      static_cast<int64_t>(exact_page_bytes)};
  const std::vector<float> g{0.01f};
  args.cache.scales = {buffers.copy_of(g), buffers.copy_of(g), 1};
  const int32_t num_tokens = shape.batch * shape.q_len;
  const size_t row_bytes = static_cast<size_t>(num_tokens) * static_cast<size_t>(shape.q_heads * shape.head_dim) * 2;
  void* q = buffers.bytes(row_bytes);
  launch_fill(static_cast<std::byte*>(q), row_bytes, setting.stream);
  args.q = q;
  args.out = buffers.bytes(row_bytes);
  std::vector<int32_t> offsets;
  for (int32_t r = 0; r <= shape.batch; ++r) offsets.push_back(r * shape.q_len);
  args.q_offsets = buffers.copy_of(offsets);
  args.kv_lens = buffers.copy_of(lengths);
  args.page_table_stride = (shape.context + shape.page - 1) / shape.page;
  args.num_requests = shape.batch;
  args.num_tokens = num_tokens;
  const std::vector<int32_t> table = make_table(shape, lengths, random);
  args.page_table = buffers.copy_of(table);
  if (shape.runs) {
    std::vector<SharedRun> runs(lengths.size() + 1);
    check(find_shared_runs({.q_offsets = offsets,
                            .kv_lens = lengths,
                            .page_table = table,
                            .page_table_stride = args.page_table_stride,
                            .page_size = shape.page,
                            .context_parallel = {}},
                           {}, runs));
    args.shared_runs = buffers.copy_of(runs);
  }

  const AttnLimits limits{.max_requests = shape.batch,
                          .max_tokens = num_tokens,
                          .max_query_len = shape.q_len,
                          .max_pages_per_request = static_cast<int32_t>(args.page_table_stride),
                          .shared_runs = shape.runs};
  const size_t workspace = check(workspace_size(desc, limits, setting.device, 1));
  const AttnPlan plan =
      check(make_plan(desc, limits, setting.device, 1, Workspace{buffers.bytes(workspace), workspace}));
  check(prepare(plan, Stream::on_cuda(setting.stream)));

  // About 5 ms of the larger of bytes and operations.
  const double flops = flops_of(shape, lengths);
  const double expected_us = std::max(static_cast<double>(kv_bytes) / 4e6, flops / 4e8);
  const int wanted = std::clamp(static_cast<int>(5e3 / expected_us), 1, 64);
  const int launches = (wanted + num_sets - 1) / num_sets * num_sets;
  const double us = time_graph(setting.stream, launches, [&](int i) {
    AttnArgs step = args;
    const auto set = static_cast<size_t>(i % num_sets);
    step.cache.base.data += set * pages * page_bytes;
    step.cache.exact.data += set * exact_pages * exact_page_bytes;
    check(run(plan, step, Stream::on_cuda(setting.stream)));
  });
  const float mhz = clock_of(setting);
  const size_t read_bytes = kv_bytes / 16 * 16;
  const double read_us = time_graph(setting.stream, launches, [&](int i) {
    launch_read(setting.arena + static_cast<size_t>(i % num_sets) * read_bytes, read_bytes, setting.sink,
                4 * setting.device.num_multiprocessors, setting.stream);
  });
  return fmt::format(
      R"({{"format": "{}", "q_heads": {}, "kv_heads": {}, "head_dim": {}, "q_len": {}, "batch": {}, "context": {}, )"
      R"("page": {}, "layout": "{}", "mixed": {}, "edges": {}, "shared": {}, "runs": {}, "us": {:.2f}, "kv_bytes": {}, "read_us": {:.2f}, )"
      R"("fraction_of_read": {:.3f}, "read_tb_s": {:.3f}, "tb_s": {:.3f}, "tflops": {:.1f}, "sm_mhz": {:.0f}, "route": "{}", "commit": "{}"}})",
      to_string(shape.format), shape.q_heads, shape.kv_heads, shape.head_dim, shape.q_len, shape.batch, shape.context,
      shape.page, desc.layout.to_string(), shape.mixed, shape.edges, shape.shared, shape.runs, us, kv_bytes, read_us,
      read_us / us, static_cast<double>(read_bytes) / read_us * 1e-6, static_cast<double>(kv_bytes) / us * 1e-6,
      flops / us * 1e-6, mhz, plan.route(), setting.commit);
}

/// Owns the stream.
class Bench {
 public:
  Bench(const DeviceInfo& device, std::string commit) : setting_{.device = device, .commit = std::move(commit)} {
    setting_.arena = static_cast<std::byte*>(buffers_.bytes(kArenaBytes));
    setting_.sink = static_cast<uint32_t*>(buffers_.bytes(4));
    setting_.mhz = static_cast<float*>(buffers_.bytes(4));
    check(cudaStreamCreate(&setting_.stream), "cudaStreamCreate");
    launch_fill(setting_.arena, kArenaBytes, setting_.stream);
    check(cudaStreamSynchronize(setting_.stream), "fill");
  }
  ~Bench() { cudaStreamDestroy(setting_.stream); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const Setting& setting() const { return setting_; }
  /// A graph's launch of a kernel that does nothing, with as many blocks as attention has.
  double empty_us() const {
    return time_graph(setting_.stream, 64,
                      [&](int) { launch_nothing(4 * setting_.device.num_multiprocessors, 48 << 10, setting_.stream); });
  }

 private:
  Buffers buffers_;
  Setting setting_;
};

void run_shapes(const AttentionSuiteOptions& options, const std::vector<Shape>& shapes, const DeviceInfo& device,
                const std::function<void(const std::string&)>& write) {
  const Bench bench(device, options.commit);
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  write(
      fmt::format("{{\"device\": \"{}\", \"date\": \"{}\", \"commit\": \"{}\", \"cuda_driver\": {}, "
                  "\"cuda_runtime\": {}, \"empty_us\": {:.2f}, \"rows\": [\n",
                  device.name, options.date, options.commit, driver, runtime, bench.empty_us()));
  const char* separator = "";
  for (const Shape& shape : shapes) {
    if (!options.shapes.empty() && !is_wanted(name_of(shape), options.shapes)) continue;
    const std::string row = measure(bench.setting(), shape);
    if (row.empty()) continue;
    write(separator + row);
    separator = ",\n";
  }
  write("\n]}\n");
}

}  // namespace

Status run_attention_suite(const AttentionSuiteOptions& options, const std::function<void(const std::string&)>& write) {
  const std::vector<Shape> shapes = shapes_of(options.suite);
  if (shapes.empty())
    return {StatusCode::kInvalidArgument,
            fmt::format("suite \"{}\" is not known; decode, grid, h200, shared and prefill are", options.suite)};
  const std::vector<DeviceInfo> devices = cuda_devices();
  if (devices.empty()) return {StatusCode::kUnsupported, "the suites measure a CUDA device and none is found"};
  try {
    run_shapes(options, shapes, devices.front(), write);
  } catch (const Failure& failure) {
    return failure.status;
  }
  return {};
}

}  // namespace kvant::bench
