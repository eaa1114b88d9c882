#include "attn/cpu/cpu_attention.h"

#include <algorithm>
#include <functional>
#include <numbers>

#include <fmt/format.h>

#include "attn/cpu/check_args.h"
#include "attn/cpu/schedule.h"
#include "attn/cpu/tile_task.h"

namespace kvant::attn::cpu {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// How the workspace is cut, in this order.
struct WorkspaceCut {
  size_t cuts = 0, partial_values = 0, partial_softmax = 0, scratch = 0;  // Offsets.
  size_t scratch_stride = 0;
  size_t bytes = 0;
};

WorkspaceCut cut_workspace(const AttnDesc& desc, const AttnLimits& limits, const Shape& shape, int num_threads) {
  WorkspaceCut cut;
  const auto take = [&](size_t bytes) {
    const size_t offset = cut.bytes;
    cut.bytes += aligned(bytes);
    return offset;
  };
  const auto partials = static_cast<size_t>(shape.max_partials);
  cut.cuts = take(static_cast<size_t>(limits.max_requests) * sizeof(RequestCut));
  cut.partial_values = take(partials * static_cast<size_t>(desc.layout.head_dim_v) * sizeof(float));
  cut.partial_softmax = take(partials * sizeof(Softmax));
  cut.scratch_stride = aligned(Scratch::bytes(desc, shape));
  cut.scratch = take(cut.scratch_stride * static_cast<size_t>(num_threads));
  // The caller's memory need not be aligned.
  cut.bytes += kAlignment;
  return cut;
}

LogitTransform logit_transform(const AttnDesc& desc) {
  constexpr float kLog2E = std::numbers::log2e_v<float>;
  if (desc.soft_cap == 0.0f) return {.scale = desc.softmax_scale * kLog2E, .cap = 0.0f};
  return {.scale = desc.softmax_scale / desc.soft_cap, .cap = desc.soft_cap * kLog2E};
}

TaskRange task_range(const RequestView& view, const Shape& shape, const RequestCut& cut, int32_t request,
                     int64_t index) {
  const int32_t num_kv_heads = view.desc.layout.num_kv_heads;
  const auto chunk = static_cast<int32_t>(index % cut.num_head_chunks);
  const auto unit = static_cast<int32_t>(index / cut.num_head_chunks);
  TaskRange range{.request = request};
  range.first_head = chunk * cut.heads_per_task;
  range.num_heads = std::min(cut.heads_per_task, num_kv_heads - range.first_head);
  if (cut.by_split) {
    range.num_tokens = view.num_tokens();
    range.first_split = cut.first_split + unit;
    range.num_splits = 1;
    range.first_partial = cut.first_partial + int64_t{unit} * range.num_tokens * view.desc.num_q_heads;
    return range;
  }
  // Later tokens of a causal chunk see more keys: taking them first leaves small tasks for the end.
  range.first_token = (cut.num_tiles - 1 - unit) * shape.tile_tokens;
  range.num_tokens = std::min(shape.tile_tokens, view.num_tokens() - range.first_token);
  range.first_split = cut.first_split;
  range.num_splits = cut.num_splits;
  return range;
}

/// The request that an index falls to, by the first index of each; empty requests share it with their successor.
template <class FirstOf>
int32_t find_request(int32_t num_requests, int64_t index, const FirstOf& first_of) {
  int32_t low = 0;
  int32_t high = num_requests;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (first_of(middle) <= index ? low : high) = middle;
  }
  return low;
}

void merge_splits(const RunContext& context, const RequestCut& cut, const RequestView& view, int32_t token,
                  const Scratch& scratch) {
  const int32_t dim_v = context.desc.layout.head_dim_v;
  const int32_t num_q_heads = context.desc.num_q_heads;
  for (int32_t q_head = 0; q_head < num_q_heads; ++q_head) {
    RowMerger merger{.kernels = context.kernels, .values = scratch.row, .head_dim_v = dim_v, .softmax = {}};
    merger.start();
    for (int32_t s = 0; s < cut.num_splits; ++s) {
      const int64_t slot = cut.first_partial + (int64_t{s} * view.num_tokens() + token) * num_q_heads + q_head;
      merger.add(context.partial_values + slot * dim_v, context.partial_softmax[slot]);
    }
    context.sink.write(view.first_token() + token, q_head, merger.values, merger.softmax);
  }
}

}  // namespace

std::string_view isa_name() { return attention_kernels().isa; }

size_t attention_workspace(const AttnDesc& desc, const AttnLimits& limits, int num_threads) {
  const Shape shape = shape_of(desc, limits, attention_kernels().lanes, num_threads);
  return cut_workspace(desc, limits, shape, num_threads).bytes;
}

Status attention(const AttnDesc& desc, const AttnLimits& limits, Workspace workspace, const AttnArgs& args,
                 ThreadPool& pool) {
  KVANT_RETURN_IF_ERROR(check_args(desc, limits, args));
  const int num_threads = pool.num_threads();
  const AttentionKernels& kernels = attention_kernels();
  const Shape shape = shape_of(desc, limits, kernels.lanes, num_threads);
  const WorkspaceCut memory = cut_workspace(desc, limits, shape, num_threads);
  if (workspace.data == nullptr || workspace.bytes < memory.bytes)
    return {
        StatusCode::kInvalidArgument,
        fmt::format("a workspace of {} bytes is too small for {} threads: {} are needed; make the plan for the pool "
                    "that runs it",
                    workspace.bytes, num_threads, memory.bytes)};
  auto* base = reinterpret_cast<std::byte*>(aligned(reinterpret_cast<size_t>(workspace.data)));
  auto* cuts = reinterpret_cast<RequestCut*>(base + memory.cuts);
  const Schedule schedule = make_schedule(desc, args, shape, num_threads, cuts);

  const TileReader reader(kernels, args.cache);
  const RowSink sink{.out = args.out,
                     .lse = args.lse,
                     .sinks = desc.sinks ? args.sinks : nullptr,
                     .dtype = desc.out_dtype,
                     .num_q_heads = desc.num_q_heads,
                     .head_dim_v = desc.layout.head_dim_v};
  const RunContext context{.desc = desc,
                           .args = args,
                           .shape = shape,
                           .kernels = kernels,
                           .reader = reader,
                           .sink = sink,
                           .logits = logit_transform(desc),
                           .partial_values = reinterpret_cast<float*>(base + memory.partial_values),
                           .partial_softmax = reinterpret_cast<Softmax*>(base + memory.partial_softmax)};
  const auto scratch_of = [&](int worker) {
    return Scratch(base + memory.scratch + memory.scratch_stride * static_cast<size_t>(worker), desc, shape);
  };
  for (int worker = 0; worker < num_threads; ++worker) scratch_of(worker).forget_queries();
  const auto view_of = [&](int32_t r) { return RequestView{.desc = desc, .args = args, .request = r}; };

  const auto compute = [&](int64_t task, int worker) {
    const int32_t r = find_request(args.num_requests, task, [&](int32_t i) { return cuts[i].first_task; });
    run_task(context, task_range(view_of(r), shape, cuts[r], r, task - cuts[r].first_task), scratch_of(worker));
  };
  // The reference keeps std::function from allocating.
  pool.parallel_for(schedule.num_tasks, std::ref(compute));

  const auto merge = [&](int64_t index, int worker) {
    const int32_t r = find_request(args.num_requests, index, [&](int32_t i) { return cuts[i].first_merge; });
    merge_splits(context, cuts[r], view_of(r), static_cast<int32_t>(index - cuts[r].first_merge), scratch_of(worker));
  };
  pool.parallel_for(schedule.num_merges, std::ref(merge));
  return {};
}

}  // namespace kvant::attn::cpu
