#include "engine/cache/kv_cache_set.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "engine/cache/kv_cache_impl.h"
#include "kvant/attn/append.h"
#include "kvant/core/device.h"
#include "kvant/core/thread_pool.h"

namespace kvant::engine {
namespace {

bool takes_from_profile(const attn::KvSpec& spec, const KvCacheOptions& options) {
  if (options.profile == nullptr || !spec.quantised() || spec_is_plain(spec)) return false;
  if (options.checkpoint_scales != nullptr && !spec_needs_profile(spec)) return false;
  return spec_wants_profile(spec) || options.profile_is_explicit;
}

bool takes_from_checkpoint(const attn::KvSpec& spec, const KvCacheOptions& options) {
  return options.checkpoint_scales != nullptr && spec.quantised() && !takes_from_profile(spec, options);
}

}  // namespace

Status KvCacheSet::Impl::create_groups(const ModelConfig& config) {
  const DeviceInfo device = device_of(stream);
  KVANT_ASSIGN_OR_RETURN(infos, make_layer_groups(config, options.spec, options.page_size, device));
  for (LayerGroup& info : infos) {
    info.desc.batch_invariant = options.batch_invariant;
    if (spec_needs_profile(info.spec) && options.profile == nullptr) return missing_profile(info.spec);
  }
  may_share = stream.cuda != nullptr && options.prefix_cache && !options.batch_invariant;
  limits.shared_runs = may_share;
  limits.min_saved_keys = options.sharing.min_saved_keys;
  KVANT_ASSIGN_OR_RETURN(plans, AttentionPlans::create(infos, limits, device, stream));
  for (const LayerGroup& info : infos) {
    const PoolPages pool = pool_pages(info, pool_shape());
    SequencePages pages({.edges = info.spec.edges,
                         .page_size = options.page_size,
                         .max_sequences = options.max_sequences,
                         .max_tokens = options.max_tokens,
                         .window = info.desc.window,
                         .base_pages = pool.base,
                         .exact_pages = pool.exact});
    has_edges = has_edges || pages.has_edges();
    groups.push_back(
        {.info = info, .pages = std::move(pages), .ages = {}, .slots = {}, .listed = {}, .table = {}, .runs = {}});
  }
  return create_tables();
}

Status KvCacheSet::Impl::create_tables() {
  const int64_t requests = limits.max_requests;
  // Padding may list one page per request where fewer exact pages exist.
  const auto most_ages = [&](const Group& group) {
    return std::max<int64_t>(group.pages.exact().num_pages(), group.pages.has_edges() ? requests : 0);
  };
  const auto table_size = [&](const Group& group) { return requests * group.pages.table_stride(); };
  const int64_t most_runs = may_share ? requests + 1 : 0;
  int64_t bytes = MirroredBuffer::bytes_for<int32_t>(requests + 1) + MirroredBuffer::bytes_for<int32_t>(requests);
  for (const Group& group : groups) {
    bytes += MirroredBuffer::bytes_for<int64_t>(limits.max_tokens) +
             MirroredBuffer::bytes_for<attn::PageAge>(most_ages(group)) +
             MirroredBuffer::bytes_for<int32_t>(table_size(group)) +
             MirroredBuffer::bytes_for<attn::SharedRun>(most_runs);
  }
  KVANT_ASSIGN_OR_RETURN(tables, MirroredBuffer::create(bytes, stream));
  q_offsets = tables.carve<int32_t>(requests + 1);
  kv_lens = tables.carve<int32_t>(requests);
  for (Group& group : groups) {
    group.ages.reserve(static_cast<size_t>(most_ages(group)));
    group.slots = tables.carve<int64_t>(limits.max_tokens);
    group.listed = tables.carve<attn::PageAge>(most_ages(group));
    group.table = tables.carve<int32_t>(table_size(group));
    group.runs = tables.carve<attn::SharedRun>(most_runs);
  }
  return {};
}

Status KvCacheSet::Impl::create_layers(const ModelConfig& config) {
  layers.resize(config.layers.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    const attn::KvLayout& layout = group.info.desc.layout;
    for (const int32_t index : group.info.layers) {
      Layer& layer = layers[static_cast<size_t>(index)];
      layer.group = g;
      attn::KvCacheView& view = layer.view;
      view.layout = layout;
      const auto make_pool = [&](DeviceBuffer& memory, const attn::KvLayout& pool_layout, int32_t pages,
                                 attn::KvPool& pool) -> Status {
        pool = {.data = nullptr, .num_pages = pages, .page_stride = page_stride(pool_layout)};
        KVANT_ASSIGN_OR_RETURN(memory,
                               DeviceBuffer::create(memory_of(stream), pool.num_pages * pool.page_stride,
                                                    "the KV cache (a smaller context or fewer sequences need less)"));
        pool.data = memory.data();
        return {};
      };
      KVANT_RETURN_IF_ERROR(make_pool(layer.base_memory, layout, group.pages.base().num_pages(), view.base));
      if (group.pages.has_edges()) {
        KVANT_RETURN_IF_ERROR(
            make_pool(layer.exact_memory, layout.exact(), group.pages.exact().num_pages(), view.exact));
      }
      if (takes_from_profile(group.info.spec, options)) {
        KVANT_RETURN_IF_ERROR(create_constants(layer, group.info, options.profile->layers[static_cast<size_t>(index)]));
      } else if (takes_from_checkpoint(group.info.spec, options)) {
        KVANT_RETURN_IF_ERROR(
            create_scales(layer, group.info, options.checkpoint_scales->layers[static_cast<size_t>(index)]));
      }
    }
  }
  return {};
}

Status KvCacheSet::Impl::create_constants(Layer& layer, const LayerGroup& group, const LayerProfile& profile) {
  const attn::KvLayout& layout = group.desc.layout;
  const attn::KeyConditioning kind = group.spec.conditioning;
  std::vector<float> values;
  for (const float scale : profile.g_k[static_cast<size_t>(kind)])
    values.push_back(scale_for_format(layout.k_format, scale));
  for (const float scale : profile.g_v) values.push_back(scale_for_format(layout.v_format, scale));
  const int64_t heads = layout.num_kv_heads, row = heads * layout.head_dim_k;
  // The conditioner's arrays start at whole 16 bytes, which is fastest.
  const int64_t first = (std::ssize(values) + 3) / 4 * 4;
  values.resize(static_cast<size_t>(first));
  if (kind != attn::KeyConditioning::kNone)
    for (const std::vector<float>* array : {&profile.mu, &profile.z, &profile.zi})
      values.insert(values.end(), array->begin(), array->end());
  KVANT_ASSIGN_OR_RETURN(layer.constants, upload(values, "scales of the KV cache", stream));
  const auto* at = layer.constants.as<const float>();
  layer.view.scales = {.k = at, .v = at + heads, .count = layout.num_kv_heads};
  if (kind != attn::KeyConditioning::kNone)
    layer.view.conditioner = {.kind = kind, .mu = at + first, .z = at + first + row, .zi = at + first + 2 * row};
  return {};
}

Status KvCacheSet::Impl::create_scales(Layer& layer, const LayerGroup& group, const CheckpointScales::Layer& scales) {
  const attn::KvLayout& layout = group.desc.layout;
  const auto heads = static_cast<size_t>(layout.num_kv_heads);
  std::vector<float> values;
  for (const auto& [of_heads, format] : {std::pair(&scales.k, layout.k_format), std::pair(&scales.v, layout.v_format)})
    for (size_t head = 0; head < heads; ++head) {
      const float scale = (*of_heads)[of_heads->size() == 1 ? 0 : head];
      values.push_back(scale_between(options.checkpoint_scales->format, format, scale));
    }
  KVANT_ASSIGN_OR_RETURN(layer.constants, upload(values, "scales of the KV cache", stream));
  const auto* at = layer.constants.as<const float>();
  layer.view.scales = {.k = at, .v = at + heads, .count = layout.num_kv_heads};
  return {};
}

KvCacheSet::KvCacheSet(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvCacheSet::~KvCacheSet() = default;

Result<std::unique_ptr<KvCacheSet>> KvCacheSet::create(const ModelConfig& config, const KvCacheOptions& options,
                                                       attn::AttnLimits limits, Stream stream) {
  if (options.max_sequences < 1 || options.max_tokens < 1) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("a cache of {} sequences of {} tokens holds nothing; both must be at least 1",
                               options.max_sequences, options.max_tokens));
  }
  if (options.profile != nullptr) KVANT_FAIL_IF_ERROR(options.profile->check_shapes(config));
  KVANT_CHECK(options.checkpoint_scales == nullptr || options.checkpoint_scales->layers.size() == config.layers.size());
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  limits.max_pages_per_request = (options.max_tokens + options.page_size - 1) / options.page_size;
  impl->limits = limits;
  impl->stream = stream;
  KVANT_FAIL_IF_ERROR(impl->create_groups(config));
  KVANT_FAIL_IF_ERROR(impl->create_layers(config));
  impl->sequences.resize(static_cast<size_t>(options.max_sequences));
  impl->step.reserve(static_cast<size_t>(limits.max_requests));
  return std::unique_ptr<KvCacheSet>(new KvCacheSet(std::move(impl)));
}

Result<SequenceId> KvCacheSet::add_sequence() {
  for (size_t id = 0; id < impl_->sequences.size(); ++id) {
    if (impl_->sequences[id].alive) continue;
    impl_->sequences[id] = {.alive = true};
    return static_cast<SequenceId>(id);
  }
  return failure(StatusCode::kResourceExhausted,
                 fmt::format("all {} sequences of the cache are in use", impl_->sequences.size()));
}

void KvCacheSet::remove_sequence(SequenceId sequence) {
  impl_->stand_on(impl_->at(sequence), PrefixTree::kNone);
  impl_->at(sequence) = {};
  for (Group& group : impl_->groups) group.pages.clear(sequence);
}

int32_t KvCacheSet::length(SequenceId sequence) const { return impl_->at(sequence).length; }
int32_t KvCacheSet::max_tokens() const { return impl_->options.max_tokens; }

void KvCacheSet::rollback(SequenceId id, int32_t length) {
  Sequence& sequence = impl_->at(id);
  KVANT_CHECK(length >= 0 && length <= sequence.length);
  for (Group& group : impl_->groups) group.pages.cut(id, length);
  sequence.length = length;
  sequence.grid_end = std::min(sequence.grid_end, length);
}

int32_t KvCacheSet::tokens_to_grid_point(int32_t position) const {
  const int32_t to_end = impl_->options.max_tokens - position;
  if (!impl_->has_edges) return to_end;
  return std::min(to_end, attn::kPrefillGrid - position % attn::kPrefillGrid);
}

int32_t KvCacheSet::tokens_to_ageing_point(SequenceId id) const {
  const int32_t length = impl_->at(id).length;
  int32_t tokens = impl_->options.max_tokens - length;
  for (const Group& group : impl_->groups) {
    if (!group.pages.has_edges()) continue;
    const attn::EdgePlan& plan = group.pages.edge_plan();
    // The least committed length at which one more page ages than at length + 1.
    const int32_t next = (plan.aged_end(length + 1) + 1) * plan.page_size + plan.edges.tail;
    tokens = std::min(tokens, next - (length + 1));
  }
  return std::max(1, tokens);
}

bool KvCacheSet::has_exact_edges() const { return impl_->has_edges; }

Status KvCacheSet::Impl::check_step(std::span<const StepRow> rows) const {
  if (std::ssize(rows) > limits.max_requests) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a step of {} sequences exceeds the limit of {}", rows.size(), limits.max_requests)};
  }
  int64_t tokens = 0;
  for (const StepRow& row : rows) {
    tokens += row.num_tokens;
    const int64_t new_length = int64_t{at(row.sequence).length} + row.num_tokens;
    if (new_length > options.max_tokens) {
      return {StatusCode::kResourceExhausted,
              fmt::format("a sequence would grow to {} tokens; its cache holds {}", new_length, options.max_tokens)};
    }
  }
  if (tokens > limits.max_tokens)
    return {StatusCode::kInvalidArgument,
            fmt::format("a step of {} tokens exceeds the limit of {}", tokens, limits.max_tokens)};
  return {};
}

const KvCacheSet::Group* KvCacheSet::Impl::group_short_of_pages(std::span<const StepRow> rows,
                                                                SequencePages::Need& need) const {
  for (const Group& group : groups) {
    need = {};
    for (const StepRow& row : rows) {
      const SequencePages::Need more = group.pages.need(row.sequence, extent(row));
      need.base_pages += more.base_pages;
      need.exact_pages += more.exact_pages;
    }
    if (need.base_pages > group.pages.base().num_free() || need.exact_pages > group.pages.exact().num_free())
      return &group;
  }
  return nullptr;
}

bool KvCacheSet::make_room(std::span<const StepRow> rows) {
  SequencePages::Need need;
  while (const Group* group = impl_->group_short_of_pages(rows, need)) {
    // Tails of blocks that others go on from are worth the least.
    const bool lacks_exact = need.exact_pages > group->pages.exact().num_free();
    if (lacks_exact && impl_->drop_exact_tail()) continue;
    if (!impl_->evict_prefix()) return false;
  }
  return true;
}

Status KvCacheSet::begin_step(std::span<const StepRow> rows, StepPadding padding) {
  Impl& impl = *impl_;
  KVANT_RETURN_IF_ERROR(impl.check_step(rows));
  if (!make_room(rows)) {
    SequencePages::Need need;
    const Group* group = impl.group_short_of_pages(rows, need);
    return {
        StatusCode::kResourceExhausted,
        fmt::format("the KV cache is full: {} base and {} exact pages are needed, {} and {} are free", need.base_pages,
                    need.exact_pages, group->pages.base().num_free(), group->pages.exact().num_free())};
  }
  impl.step.assign(rows.begin(), rows.end());
  impl.fill_tables(rows);
  impl.pad_tables(padding);
  impl.find_runs();
  return impl.tables.upload(impl.stream);
}

void KvCacheSet::Impl::fill_tables(std::span<const StepRow> rows) {
  step_tokens = step_query_len = 0;
  step_requests = static_cast<int32_t>(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    step_tokens += rows[r].num_tokens;
    step_query_len = std::max(step_query_len, rows[r].num_tokens);
    q_offsets.host[r + 1] = step_tokens;
    kv_lens.host[r] = at(rows[r].sequence).length + rows[r].num_tokens;
  }
  for (Group& group : groups) {
    group.ages.clear();
    const auto stride = static_cast<size_t>(group.pages.table_stride());
    // All sequences drop and age before any takes new pages: a full pool may live on what this step frees.
    for (const StepRow& row : rows) {
      group.pages.drop_before_window(row.sequence, extent(row).length);
      if (!group.pages.ages_after_append()) group.pages.age(row.sequence, extent(row), group.ages);
    }
    size_t slot = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const SequenceId sequence = rows[r].sequence;
      const SequencePages::Extent row_extent = extent(rows[r]);
      group.pages.add_pages(sequence, row_extent);
      for (int32_t position = row_extent.length; position < row_extent.new_length; ++position)
        group.slots.host[slot++] = group.pages.slot(sequence, position);
      if (group.pages.ages_after_append()) group.pages.age(sequence, row_extent, group.ages);
      const std::span<const int32_t> table = group.pages.table(sequence);
      std::copy(table.begin(), table.end(), group.table.host + r * stride);
    }
    group.num_ages = std::ssize(group.ages);
    std::copy(group.ages.begin(), group.ages.end(), group.listed.host);
  }
}

void KvCacheSet::Impl::pad_tables(StepPadding padding) {
  if (padding.num_requests == 0) return;
  KVANT_CHECK(padding.num_requests >= step_requests && padding.num_requests <= limits.max_requests);
  KVANT_CHECK(padding.num_tokens >= step_tokens && padding.num_tokens <= limits.max_tokens);
  for (int32_t r = step_requests; r < padding.num_requests; ++r) {
    q_offsets.host[r + 1] = step_tokens;
    kv_lens.host[r] = 0;
  }
  for (Group& group : groups) {
    std::fill(group.slots.host + step_tokens, group.slots.host + padding.num_tokens, attn::kSkipSlot);
    // Two sizes of list, so that most steps do not walk a list as long as the batch.
    for (const int64_t size : {int64_t{padding.num_requests} / 8, int64_t{padding.num_requests}}) {
      if (group.num_ages == 0 || group.num_ages > size) continue;
      std::fill(group.listed.host + group.num_ages, group.listed.host + size,
                attn::PageAge{.exact_page = attn::kNoPage, .base_page = attn::kNoPage});
      group.num_ages = size;
      break;
    }
  }
  step_requests = padding.num_requests;
  step_tokens = padding.num_tokens;
}

std::optional<StepShape> KvCacheSet::step_shape() const {
  const Impl& impl = *impl_;
  if (impl.groups.size() > StepShape::kMaxGroups) return std::nullopt;
  StepShape shape{.num_requests = impl.step_requests, .num_tokens = impl.step_tokens};
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    if (impl.groups[g].num_ages > impl.step_requests) return std::nullopt;
    shape.num_ages[g] = static_cast<int32_t>(impl.groups[g].num_ages);
    shape.plans[g] = impl.plans.plan_index(g, impl.step_query_len);
    shape.shares[g] = impl.groups[g].num_sharing > 0;
  }
  return shape;
}

Status KvCacheSet::attend(int32_t layer_index, const AttendArgs& args, Stream stream) {
  Impl& impl = *impl_;
  if (impl.step_tokens == 0) return {};
  Layer& layer = impl.layers[static_cast<size_t>(layer_index)];
  Group& group = impl.groups[layer.group];
  const attn::AgeArgs age{
      .cache = layer.view, .policy = group.info.spec.policy, .ages = group.listed.device, .num_ages = group.num_ages};
  // Exact pages that aged may already belong to another sequence, which writes them in this step.
  if (age.num_ages > 0 && !group.pages.ages_after_append()) KVANT_RETURN_IF_ERROR(attn::age_pages(age, stream));
  KVANT_RETURN_IF_ERROR(attn::append({.cache = layer.view,
                                      .policy = group.info.spec.policy,
                                      .k = args.k,
                                      .v = args.v,
                                      .dtype = group.info.desc.q_dtype,
                                      .k_token_stride = args.k_token_stride,
                                      .v_token_stride = args.v_token_stride,
                                      .slots = group.slots.device,
                                      .num_tokens = impl.step_tokens,
                                      .preparation = args.preparation},
                                     stream));
  if (age.num_ages > 0 && group.pages.ages_after_append()) KVANT_RETURN_IF_ERROR(attn::age_pages(age, stream));
  return attn::run(impl.plans.plan(layer.group, impl.step_query_len),
                   {.cache = layer.view,
                    .q = args.preparation.q_out,
                    .out = args.out,
                    .q_offsets = impl.q_offsets.device,
                    .kv_lens = impl.kv_lens.device,
                    .page_table = group.table.device,
                    .page_table_stride = group.pages.table_stride(),
                    .num_requests = impl.step_requests,
                    .num_tokens = impl.step_tokens,
                    .sinks = args.sinks,
                    .shared_runs = group.num_sharing > 0 ? group.runs.device : nullptr},
                   stream);
}

void KvCacheSet::end_step() {
  Impl& impl = *impl_;
  for (Group& group : impl.groups) group.pages.end_step();
  for (const StepRow& row : impl.step) {
    Sequence& sequence = impl.at(row.sequence);
    const bool on_grid = row.phase != RowPhase::kDecode && sequence.grid_end == sequence.length;
    sequence.length += row.num_tokens;
    if (on_grid) sequence.grid_end = sequence.length;
  }
  impl.step.clear();
  impl.step_tokens = impl.step_requests = 0;
}

uint64_t KvCacheSet::id() const { return impl_->options.id; }
const attn::KvSpec& KvCacheSet::spec() const { return impl_->options.spec; }
std::span<const LayerGroup> KvCacheSet::groups() const { return impl_->infos; }

double KvCacheSet::bytes_per_token() const {
  int64_t bytes = 0;
  for (const LayerGroup& group : impl_->infos) bytes += group.desc.layout.bytes_per_token() * std::ssize(group.layers);
  return static_cast<double>(bytes);
}

double KvCacheSet::effective_bytes_per_token(int32_t length) const {
  if (length <= 0) return bytes_per_token();
  double bytes = 0;
  for (const Group& group : impl_->groups) {
    const attn::EdgePlan& plan = group.pages.edge_plan();
    int32_t base_tokens = length;
    if (group.pages.has_edges()) base_tokens = std::max(0, plan.aged_end(length) - plan.head_pages()) * plan.page_size;
    const attn::KvLayout& layout = group.info.desc.layout;
    const double group_bytes =
        static_cast<double>(base_tokens) * static_cast<double>(layout.bytes_per_token()) +
        static_cast<double>(length - base_tokens) * static_cast<double>(layout.exact().bytes_per_token());
    bytes += group_bytes * static_cast<double>(group.info.layers.size());
  }
  return bytes / length;
}

std::string KvCacheSet::format() const {
  const std::vector<LayerGroup>& groups = impl_->infos;
  const bool uniform = std::all_of(groups.begin(), groups.end(),
                                   [&](const LayerGroup& group) { return group.spec == groups.front().spec; });
  if (uniform) return groups.front().spec.to_string();
  std::string out;
  for (const LayerGroup& group : groups)
    out += fmt::format("{}{} ({} layers)", out.empty() ? "" : ", ", group.spec.to_string(), group.layers.size());
  return out;
}

std::string KvCacheSet::route() const { return impl_->plans.routes(); }

std::string KvCacheSet::scale_source() const {
  if (uses_profile() && num_checkpoint_scales() == 0)
    return fmt::format("profile {} ({} tokens)", impl_->options.profile->id, impl_->options.profile->tokens);
  if (const int32_t used = num_checkpoint_scales(); used > 0)
    return fmt::format("checkpoint ({} of {} used)", used, impl_->options.checkpoint_scales->num_tensors());
  bool quantised = false, plain = true;
  for (const LayerGroup& group : impl_->infos) {
    if (!group.spec.quantised()) continue;
    quantised = true;
    plain = plain && spec_is_plain(group.spec);
  }
  if (!quantised) return "none";
  return plain ? "1.0 (plain)" : "1.0";
}

int32_t KvCacheSet::num_checkpoint_scales() const {
  int32_t used = 0;
  for (const LayerGroup& group : impl_->infos) {
    if (takes_from_checkpoint(group.spec, impl_->options))
      used += count_used_scales(*impl_->options.checkpoint_scales, {&group, 1});
  }
  return used;
}

bool KvCacheSet::uses_profile() const {
  return std::any_of(impl_->infos.begin(), impl_->infos.end(),
                     [&](const LayerGroup& group) { return takes_from_profile(group.spec, impl_->options); });
}

int64_t KvCacheSet::base_pages() const {
  int64_t pages = 0;
  for (const Group& group : impl_->groups) pages += group.pages.base().num_pages();
  return pages;
}

int64_t KvCacheSet::exact_pages() const {
  int64_t pages = 0;
  for (const Group& group : impl_->groups) pages += group.pages.exact().num_pages();
  return pages;
}

int64_t KvCacheSet::base_pages_used() const {
  int64_t pages = 0;
  for (const Group& group : impl_->groups) pages += group.pages.base().num_used();
  return pages;
}

int64_t KvCacheSet::exact_pages_used() const {
  int64_t pages = 0;
  for (const Group& group : impl_->groups) pages += group.pages.exact().num_used();
  return pages;
}

}  // namespace kvant::engine
