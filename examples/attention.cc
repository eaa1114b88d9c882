// An engine of your own over kvant::attn: prompts go into an NVFP4 cache and are attended to, then tokens are decoded
// by a step that is recorded once, as a CUDA graph where there is a device, and repeated with other lengths.
//
//   cmake -S examples -B build/example -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build/example
//   build/example/attention

#include <cmath>
#include <cstdio>
#include <vector>

#include <kvant/attn/append.h>
#include <kvant/attn/attention.h>

#include "machine.h"

namespace {

using namespace kvant;
using namespace kvant::attn;

constexpr int32_t kRequests = 2, kQHeads = 8, kKvHeads = 2, kHeadDim = 128, kPage = 16, kPages = 4;
constexpr int32_t kPrompt[kRequests] = {21, 5};
constexpr int32_t kMaxTokens = 26, kSteps = 8;
/// Every value is this, so every weighted mean of values is.
constexpr float kValue = 1.5f;

bool good(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok();
}
template <class T>
T* allocate(Machine& machine, size_t count) {
  return static_cast<T*>(machine.allocate(count * sizeof(T)));
}
template <class T>
void write(Machine& machine, const T* to, const std::vector<T>& values) {
  machine.write(const_cast<T*>(to), values.data(), values.size() * sizeof(T));
}

AttnDesc layer() {
  AttnDesc desc;
  desc.num_q_heads = kQHeads;
  desc.layout = {.k_format = KvFormat::kNvfp4,
                 .v_format = KvFormat::kNvfp4,
                 .head_dim_k = kHeadDim,
                 .head_dim_v = kHeadDim,
                 .num_kv_heads = kKvHeads,
                 .page_size = kPage,
                 .code_order = CodeOrder::kPacked,
                 .scale_order = ScaleOrder::kLanes};
  desc.softmax_scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  return desc;
}

/// One layer's cache and the buffers of a step. Pointers never change; what they point to does.
struct Layer {
  AttnDesc desc = layer();
  AttnPlan prefill, decode;
  AppendArgs append;
  AttnArgs attention;
  float* out = nullptr;
};

bool plan(Machine& machine, Layer& layer, int32_t max_query_len, AttnPlan& plan) {
  const AttnLimits limits{.max_requests = kRequests,
                          .max_tokens = kMaxTokens,
                          .max_query_len = max_query_len,
                          .max_pages_per_request = kPages};
  const Result<size_t> bytes = workspace_size(layer.desc, limits, machine.device(), machine.num_threads());
  if (!bytes) return good(bytes.error());
  const Workspace workspace{machine.allocate(*bytes), *bytes};
  Result<AttnPlan> made = make_plan(layer.desc, limits, machine.device(), machine.num_threads(), workspace);
  if (!made) return good(made.error());
  plan = *made;
  std::printf("up to %d rows a request: %s\n", max_query_len, plan.route().c_str());
  return good(prepare(plan, machine.stream()));
}

bool open_layer(Machine& machine, Layer& layer) {
  const KvLayout& layout = layer.desc.layout;
  KvCacheView cache;
  cache.layout = layout;
  const int64_t pages = int64_t{kRequests} * kPages;
  cache.base = {.data = allocate<std::byte>(machine, static_cast<size_t>(pages * layout.page_bytes())),
                .num_pages = pages,
                .page_stride = layout.page_bytes()};
  constexpr size_t kRow = size_t{kKvHeads} * kHeadDim;
  layer.append.cache = cache;
  layer.append.k = allocate<float>(machine, kMaxTokens * kRow);
  layer.append.v = allocate<float>(machine, kMaxTokens * kRow);
  layer.append.slots = allocate<int64_t>(machine, kMaxTokens);
  layer.attention.cache = cache;
  layer.attention.q = allocate<float>(machine, size_t{kMaxTokens} * kQHeads * kHeadDim);
  layer.attention.out = layer.out = allocate<float>(machine, size_t{kMaxTokens} * kQHeads * kHeadDim);
  layer.attention.q_offsets = allocate<int32_t>(machine, kRequests + 1);
  layer.attention.kv_lens = allocate<int32_t>(machine, kRequests);
  layer.attention.num_requests = kRequests;
  layer.attention.page_table_stride = kPages;
  std::vector<int32_t> table;  // The pages of the requests alternate.
  for (int32_t r = 0; r < kRequests; ++r)
    for (int32_t page = 0; page < kPages; ++page) table.push_back(page * kRequests + r);
  layer.attention.page_table = allocate<int32_t>(machine, table.size());
  write(machine, layer.attention.page_table, table);
  return plan(machine, layer, kMaxTokens, layer.prefill) && plan(machine, layer, 1, layer.decode);
}

/// Puts `q_lens` new tokens a request, and the lengths that include them, where the step will find them.
void write_batch(Machine& machine, Layer& layer, const std::vector<int32_t>& q_lens,
                 const std::vector<int32_t>& kv_lens) {
  std::vector<int64_t> slots;
  std::vector<int32_t> offsets{0};
  std::vector<float> k, v, q;
  for (int32_t r = 0; r < kRequests; ++r) {
    const auto i = static_cast<size_t>(r);
    for (int32_t key = kv_lens[i] - q_lens[i]; key < kv_lens[i]; ++key) {
      slots.push_back(slot_of(key / kPage * kRequests + r, kPage, key % kPage));
      for (int32_t d = 0; d < kKvHeads * kHeadDim; ++d) {
        k.push_back(std::sin(static_cast<float>(key * 31 + d)));
        v.push_back(kValue);
      }
      for (int32_t d = 0; d < kQHeads * kHeadDim; ++d) q.push_back(std::cos(static_cast<float>(key * 17 + d)));
    }
    offsets.push_back(offsets.back() + q_lens[i]);
  }
  write(machine, layer.append.slots, slots);
  write(machine, static_cast<const float*>(layer.append.k), k);
  write(machine, static_cast<const float*>(layer.append.v), v);
  write(machine, static_cast<const float*>(layer.attention.q), q);
  write(machine, layer.attention.q_offsets, offsets);
  write(machine, layer.attention.kv_lens, kv_lens);
}

bool step(Machine& machine, const Layer& layer, const AttnPlan& plan, int32_t num_tokens) {
  AppendArgs appended = layer.append;
  AttnArgs attention = layer.attention;
  appended.num_tokens = attention.num_tokens = num_tokens;
  return good(append(appended, machine.stream())) && good(run(plan, attention, machine.stream()));
}

bool means_are_right(Machine& machine, const Layer& layer, int32_t num_tokens) {
  std::vector<float> out(static_cast<size_t>(num_tokens) * kQHeads * kHeadDim);
  machine.read(out.data(), layer.out, out.size() * sizeof(float));
  for (const float value : out)
    if (!(std::fabs(value - kValue) < 1e-3f)) return false;
  return true;
}

bool serve(Machine& machine) {
  Layer layer;
  if (!open_layer(machine, layer)) return false;
  std::vector<int32_t> lengths(kPrompt, kPrompt + kRequests);
  write_batch(machine, layer, lengths, lengths);
  const int32_t num_prompt_tokens = kPrompt[0] + kPrompt[1];
  if (!step(machine, layer, layer.prefill, num_prompt_tokens)) return false;
  if (!means_are_right(machine, layer, num_prompt_tokens)) return false;

  if (!machine.record([&] { return step(machine, layer, layer.decode, kRequests); })) return false;
  for (int32_t i = 0; i < kSteps; ++i) {
    for (int32_t& length : lengths) ++length;
    write_batch(machine, layer, std::vector<int32_t>(kRequests, 1), lengths);
    if (!machine.repeat() || !means_are_right(machine, layer, kRequests)) return false;
  }
  std::printf("%d prompt tokens, %d repeated steps: every mean is %g\n", num_prompt_tokens, kSteps,
              static_cast<double>(kValue));
  return true;
}

}  // namespace

int main() {
  std::unique_ptr<Machine> machine = open_cuda_machine();
  if (machine == nullptr) machine = open_cpu_machine();
  std::printf("%s\n", machine->device().name.c_str());
  if (serve(*machine)) return 0;
  std::fprintf(stderr, "failed\n");
  return 1;
}
