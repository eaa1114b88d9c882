// Attention on a CUDA device against a plain read of the same bytes, as JSON:
//   bench_attention_cuda --suite h200 --json FILE --commit $(git rev-parse --short HEAD) --date 2026-11-29
// Suites: decode (the default), grid (batches by contexts, one and four rows a request), h200 (both), prefill.
// --shapes nvfp4_256x4096,_q4 keeps the shapes whose names hold one of the texts.
// Each time is the median of graph replays over disjoint sets of pages that together exceed the L2 cache; a set's pages
// are shuffled by the one page table of all sets.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device_kernels.h"
#include "kvant/attn/attention.h"

namespace kvant::bench {
namespace {

using namespace kvant::attn;

constexpr size_t kArenaBytes = size_t{40} << 30;
constexpr size_t kPastL2 = size_t{600} << 20;

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
template <class T>
T check(Result<T> result) {
  if (result) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
  std::exit(1);
}
void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

/// Device memory that lives as long as one shape.
class Buffers {
 public:
  ~Buffers() {
    for (void* data : data_) check(cudaFree(data), "cudaFree");
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

struct Shape {
  KvFormat format;
  int32_t batch, context;
  int32_t q_len = 1;
  int32_t q_heads = 32, kv_heads = 8, head_dim = 128, page = 16;
  bool mixed = false;  ///< Lengths from 2 % of the context to all of it.
  bool edges = false;  ///< First page and last three pages exact.
};

std::string name_of(const Shape& shape) {
  return fmt::format("{}_{}x{}_q{}_h{}{}{}", to_string(shape.format), shape.batch, shape.context, shape.q_len,
                     shape.q_heads, shape.mixed ? "_mixed" : "", shape.edges ? "_edges" : "");
}

struct Setting {
  DeviceInfo device;
  std::byte* arena = nullptr;
  cudaStream_t stream = nullptr;
  uint32_t* sink = nullptr;
  float* mhz = nullptr;
  std::string commit;
};

/// Median microseconds of one of `launches` launches, replayed as one graph.
double time_graph(cudaStream_t stream, int launches, const std::function<void(int)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  for (int i = 0; i < launches; ++i) launch(i);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<float> times;
  for (int repeat = 0; repeat < 8; ++repeat) {
    check(cudaEventRecord(start, stream), "cudaEventRecord");
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    check(cudaEventRecord(stop, stream), "cudaEventRecord");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
    if (repeat > 0) times.push_back(ms * 1e3f / static_cast<float>(launches));
  }
  check(cudaEventDestroy(start), "cudaEventDestroy");
  check(cudaEventDestroy(stop), "cudaEventDestroy");
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

AttnDesc desc_of(const Shape& shape) {
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
    desc.layout.code_order = CodeOrder::kPacked;
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

/// Shuffled pages of one set, as all layers of a model share a table.
std::vector<int32_t> make_table(const Shape& shape, const std::vector<int32_t>& lengths, std::mt19937& random) {
  const int32_t stride = (shape.context + shape.page - 1) / shape.page;
  int32_t num_pages = 0;
  for (const int32_t length : lengths) num_pages += (length + shape.page - 1) / shape.page;
  std::vector<int32_t> ids(static_cast<size_t>(num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<int32_t> table(lengths.size() * static_cast<size_t>(stride), kNoPage);
  size_t next = 0;
  int32_t next_exact = 0;
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int32_t pages = (lengths[r] + shape.page - 1) / shape.page;
    for (int32_t i = 0; i < pages; ++i) {
      const bool exact = shape.edges && (i == 0 || i >= pages - 3);
      const int32_t id = ids[next++];
      table[r * static_cast<size_t>(stride) + static_cast<size_t>(i)] = exact ? next_exact++ | kExactPageBit : id;
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
  const AttnDesc desc = desc_of(shape);
  const std::vector<int32_t> lengths = lengths_of(shape, random);
  size_t kv_bytes = 0, pages = 0;
  for (const int32_t length : lengths) {
    kv_bytes += static_cast<size_t>(length) * static_cast<size_t>(desc.layout.bytes_per_token());
    pages += static_cast<size_t>((length + shape.page - 1) / shape.page);
  }
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
  args.page_table = buffers.copy_of(make_table(shape, lengths, random));

  const AttnLimits limits{.max_requests = shape.batch,
                          .max_tokens = num_tokens,
                          .max_query_len = shape.q_len,
                          .max_pages_per_request = static_cast<int32_t>(args.page_table_stride)};
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
      R"("page": {}, "layout": "{}", "mixed": {}, "edges": {}, "us": {:.2f}, "kv_bytes": {}, "read_us": {:.2f}, )"
      R"("fraction_of_read": {:.3f}, "read_tb_s": {:.3f}, "tb_s": {:.3f}, "tflops": {:.1f}, "sm_mhz": {:.0f}, "route": "{}", "commit": "{}"}})",
      to_string(shape.format), shape.q_heads, shape.kv_heads, shape.head_dim, shape.q_len, shape.batch, shape.context,
      shape.page, desc.layout.to_string(), shape.mixed, shape.edges, us, kv_bytes, read_us, read_us / us,
      static_cast<double>(read_bytes) / read_us * 1e-6, static_cast<double>(kv_bytes) / us * 1e-6, flops / us * 1e-6,
      mhz, plan.route(), setting.commit);
}

/// Prompts, chunks over a prefix, and verify blocks beyond the decode kernel.
std::vector<Shape> prefill_suite() {
  std::vector<Shape> shapes;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    shapes.push_back({.format = format, .batch = 8, .context = 4096, .q_len = 4096});
    if (format == KvFormat::kF16) continue;
    shapes.push_back({.format = format, .batch = 1, .context = 16384, .q_len = 16384});
    shapes.push_back({.format = format, .batch = 32, .context = 1024, .q_len = 1024});
    shapes.push_back({.format = format, .batch = 8, .context = 4096, .q_len = 4096, .head_dim = 64});
    shapes.push_back({.format = format, .batch = 1, .context = 4096, .q_len = 4096});
    shapes.push_back({.format = format, .batch = 1, .context = 32768, .q_len = 512});
    shapes.push_back({.format = format, .batch = 8, .context = 8192, .q_len = 256});
    shapes.push_back({.format = format, .batch = 256, .context = 4096, .q_len = 8});
    shapes.push_back({.format = format, .batch = 16, .context = 4096, .q_len = 16});
    shapes.push_back({.format = format, .batch = 1, .context = 65536, .q_len = 16});
    if (format != KvFormat::kBf16)
      shapes.push_back({.format = format, .batch = 8, .context = 4096, .q_len = 4096, .edges = true});
  }
  return shapes;
}

std::vector<Shape> decode_suite() {
  std::vector<Shape> shapes;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    for (const auto& [batch, context] : std::vector<std::pair<int32_t, int32_t>>{{256, 4096},
                                                                                 {64, 16384},
                                                                                 {16, 32768},
                                                                                 {256, 1024},
                                                                                 {64, 4096},
                                                                                 {16, 4096},
                                                                                 {4, 4096},
                                                                                 {1, 65536},
                                                                                 {1, 4096},
                                                                                 {1, 1024}})
      shapes.push_back({.format = format, .batch = batch, .context = context});
    for (const int32_t batch : {64, 256})
      shapes.push_back({.format = format, .batch = batch, .context = 4096, .q_len = 4});
    shapes.push_back({.format = format, .batch = 256, .context = 4096, .q_len = 8});
    for (const int32_t q_len : {1, 4})
      shapes.push_back({.format = format, .batch = 256, .context = 4096, .q_len = q_len, .q_heads = 64});
    shapes.push_back({.format = format, .batch = 16, .context = 65536, .mixed = true});
    shapes.push_back({.format = format, .batch = 64, .context = 4096, .q_heads = 64});
    shapes.push_back({.format = format, .batch = 64, .context = 4096, .q_heads = 40});
    if (format != KvFormat::kBf16) shapes.push_back({.format = format, .batch = 64, .context = 4096, .edges = true});
  }
  return shapes;
}

/// Batches by contexts, one and four rows a request; what does not fit the arena is left out.
std::vector<Shape> grid_suite() {
  std::vector<Shape> shapes;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4})
    for (const int32_t q_len : {1, 4})
      for (const int32_t batch : {1, 4, 16, 64, 256})
        for (const int32_t context : {1024, 4096, 16384, 65536})
          shapes.push_back({.format = format, .batch = batch, .context = context, .q_len = q_len});
  return shapes;
}

/// The shapes of a suite without doubles; none for an unknown name.
std::vector<Shape> shapes_of(std::string_view suite) {
  std::vector<Shape> shapes;
  if (suite == "decode" || suite == "h200") shapes = decode_suite();
  if (suite == "prefill") shapes = prefill_suite();
  if (suite != "grid" && suite != "h200") return shapes;
  for (const Shape& shape : grid_suite()) {
    const auto same = [&](const Shape& other) { return name_of(other) == name_of(shape); };
    if (std::none_of(shapes.begin(), shapes.end(), same)) shapes.push_back(shape);
  }
  return shapes;
}

/// Whether `name` holds one of the comma-separated texts.
bool is_wanted(const std::string& name, std::string_view texts) {
  while (!texts.empty()) {
    const size_t end = std::min(texts.find(','), texts.size());
    if (name.find(texts.substr(0, end)) != std::string::npos) return true;
    texts.remove_prefix(std::min(end + 1, texts.size()));
  }
  return false;
}

struct Options {
  std::string suite = "decode", commit = "unknown", date = "unknown", shapes, json;
};

int main_with(const Options& options) {
  const std::vector<Shape> all = shapes_of(options.suite);
  if (all.empty()) {
    std::fprintf(stderr, "unknown suite \"%s\"; known: decode, grid, h200, prefill\n", options.suite.c_str());
    return 1;
  }
  const std::vector<DeviceInfo> devices = cuda_devices();
  if (devices.empty()) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  Buffers buffers;
  Setting setting{.device = devices.front(), .commit = options.commit};
  setting.arena = static_cast<std::byte*>(buffers.bytes(kArenaBytes));
  setting.sink = static_cast<uint32_t*>(buffers.bytes(4));
  setting.mhz = static_cast<float*>(buffers.bytes(4));
  check(cudaStreamCreate(&setting.stream), "cudaStreamCreate");
  launch_fill(setting.arena, kArenaBytes, setting.stream);
  check(cudaStreamSynchronize(setting.stream), "fill");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const double empty_us = time_graph(setting.stream, 64, [&](int) {
    launch_nothing(4 * setting.device.num_multiprocessors, 48 << 10, setting.stream);
  });
  std::FILE* out = options.json.empty() ? stdout : std::fopen(options.json.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "%s cannot be written\n", options.json.c_str());
    return 1;
  }
  fmt::print(out,
             "{{\"device\": \"{}\", \"date\": \"{}\", \"commit\": \"{}\", \"cuda_driver\": {}, \"cuda_runtime\": {}, "
             "\"empty_us\": {:.2f}, \"rows\": [\n",
             setting.device.name, options.date, options.commit, driver, runtime, empty_us);
  bool first = true;
  for (const Shape& shape : all) {
    if (!options.shapes.empty() && !is_wanted(name_of(shape), options.shapes)) continue;
    const std::string row = measure(setting, shape);
    if (row.empty()) continue;
    fmt::print(out, "{}{}", first ? "" : ",\n", row);
    std::fflush(out);
    first = false;
  }
  fmt::print(out, "\n]}}\n");
  if (out != stdout && std::fclose(out) != 0) return 1;
  check(cudaStreamDestroy(setting.stream), "cudaStreamDestroy");
  return 0;
}

}  // namespace
}  // namespace kvant::bench

int main(int argc, char** argv) {
  kvant::bench::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--suite") options.suite = argv[i + 1];
    if (name == "--commit") options.commit = argv[i + 1];
    if (name == "--date") options.date = argv[i + 1];
    if (name == "--shapes") options.shapes = argv[i + 1];
    if (name == "--json") options.json = argv[i + 1];
  }
  return kvant::bench::main_with(options);
}
