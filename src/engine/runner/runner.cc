#include "engine/runner/runner.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/device_memory.h"
#include "engine/runner/decoder.h"
#include "engine/runner/decoder_weights.h"
#include "kvant/core/device.h"
#include "kvant/core/stream.h"
#include "ops/decoder_ops.h"
#include "ops/linear.h"

namespace kvant::engine {
namespace {

Result<ops::LinearFormat> choose_linear_format(WeightFormat format, Stream stream) {
  switch (format) {
    case WeightFormat::kF32: return ops::LinearFormat::kF32;
    case WeightFormat::kInt8: return ops::LinearFormat::kInt8;
    case WeightFormat::kBf16:
      if (ops::linear_format_supported(ops::LinearFormat::kBf16, stream)) return ops::LinearFormat::kBf16;
      return failure(StatusCode::kUnsupported,
                     "weights in bf16 need a CPU with bf16 instructions; use --weights auto, f32 or int8");
    case WeightFormat::kAuto: return ops::default_linear_format(stream);
  }
  return failure(StatusCode::kInternal, "weight format out of range");
}

}  // namespace

struct Runner::Impl {
  /// How far a row of the batch has got.
  struct Progress {
    int64_t done = 0;          ///< Tokens.
    int64_t part = 0;          ///< Tokens of the current pass.
    float* logits = nullptr;   ///< Where the row's next logits go,
    int32_t* drawn = nullptr;  ///< or its next drawn token,
    ops::Draw draw = {};       ///< and how that is drawn.
    size_t num_wanted = 0;     ///< Rows of it that have been planned.
  };

  Impl(ModelSource model, ThreadPool& threads)
      : source(std::move(model)), pool(threads), stream(Stream::on_cpu(threads)) {}

  ModelSource source;
  ThreadPool& pool;
  CudaStream cuda;  ///< Before what is done on it.
  Stream stream;
  uint64_t next_cache_id = 0;
  RunnerOptions options;
  ops::LinearFormat format = ops::LinearFormat::kF32;
  DecoderWeights weights;
  std::unique_ptr<Decoder> decoder;
  LayerObserver* observer = nullptr;
  // One batch.
  std::vector<Progress> progress;
  std::vector<size_t> order;  ///< Rows by cache set, then phase, then on CUDA prefix.
  std::vector<std::optional<KvCacheSet::PrefixPlace>> places;
  // One pass.
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<PassSegment> segments;
  std::vector<StepRow> step_rows;
  std::vector<int32_t> wanted;
  std::vector<float*> wanted_logits;
  std::vector<int32_t*> wanted_drawn;
  std::vector<ops::Draw> wanted_draws;
  std::vector<std::span<const ops::LogitChange>> wanted_changes;
  std::vector<ops::DrawnLogprobs*> wanted_logprobs;

  Status check(std::span<const BatchRow> rows, const float* logits) const;
  void start(std::span<const BatchRow> rows, float* logits);
  /// Decodes that begin alike become neighbours: attention reads what neighbours share once.
  void put_alike_together(std::span<const BatchRow> rows);
  /// Takes the next part of every unfinished row; false when there is none left.
  bool plan_pass(std::span<const BatchRow> rows);
  Status run_pass(std::span<const BatchRow> rows);
  void add_row(const BatchRow& row, Progress& state);
  /// The kind of the planned pass, and what its step is padded to.
  DecoderPass::Kind classify(std::span<const BatchRow> rows, StepPadding& padding) const;
};

Runner::Runner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Runner::~Runner() = default;

Result<std::unique_ptr<Runner>> Runner::create(ModelSource source, const RunnerOptions& options, ThreadPool& pool) {
  if (options.max_batch_tokens < 1 || options.max_requests < 1) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("a runner of {} tokens and {} sequences per batch runs nothing; both must be at least 1",
                               options.max_batch_tokens, options.max_requests));
  }
  auto impl = std::make_unique<Impl>(std::move(source), pool);
  impl->options = options;
  const ModelConfig& config = impl->source.config;
  if (impl->options.max_context <= 0) impl->options.max_context = config.context_limit;
  if (options.cuda) {
    if (cuda_devices().empty()) return failure(StatusCode::kUnsupported, "no CUDA device was found; use --device cpu");
    KVANT_ASSIGN_OR_FAIL(impl->cuda, CudaStream::create());
    impl->stream = impl->cuda.stream();
  }
  const Stream stream = impl->stream;
  KVANT_ASSIGN_OR_FAIL(impl->format, choose_linear_format(options.weights, stream));
  const bool fp8 = options.weights == WeightFormat::kAuto && impl->source.fp8_activations;
  KVANT_ASSIGN_OR_FAIL(
      impl->weights,
      load_decoder_weights(impl->source, {.format = impl->format, .fp8 = fp8, .max_rows = options.max_batch_tokens},
                           options.progress, stream, pool));
  KVANT_ASSIGN_OR_FAIL(impl->decoder, Decoder::create(config, impl->weights, options.max_batch_tokens, stream));
  const auto max_tokens = static_cast<size_t>(options.max_batch_tokens);
  impl->tokens.reserve(max_tokens);
  impl->positions.reserve(max_tokens);
  impl->wanted.reserve(max_tokens);
  impl->wanted_logits.reserve(max_tokens);
  impl->wanted_drawn.reserve(max_tokens);
  impl->wanted_draws.reserve(max_tokens);
  impl->wanted_changes.reserve(max_tokens);
  impl->wanted_logprobs.reserve(max_tokens);
  impl->segments.reserve(max_tokens);
  impl->step_rows.reserve(max_tokens);
  return std::unique_ptr<Runner>(new Runner(std::move(impl)));
}

const ModelConfig& Runner::config() const { return impl_->source.config; }
std::string_view Runner::weights() const { return impl_->weights.fp8 ? "fp8" : ops::to_string(impl_->format); }
int64_t Runner::weight_bytes() const { return impl_->weights.bytes; }
Stream Runner::stream() const { return impl_->stream; }
Stream Runner::host_stream() const { return Stream::on_cpu(impl_->pool); }
const GraphStats& Runner::graph_stats() const { return impl_->decoder->graphs().stats(); }
int32_t Runner::max_context() const { return impl_->options.max_context; }
void Runner::set_parts(PassParts parts) { impl_->decoder->set_parts(parts); }
void Runner::set_observer(LayerObserver* observer) { impl_->observer = observer; }

Result<std::unique_ptr<KvCacheSet>> Runner::create_cache(const KvCacheOptions& options) {
  const RunnerOptions& limits = impl_->options;
  if (options.max_tokens > limits.max_context) {
    return failure(StatusCode::kInvalidArgument, fmt::format("a cache of {} tokens exceeds the runner's context of {}",
                                                             options.max_tokens, limits.max_context));
  }
  KvCacheOptions identified = options;
  identified.id = ++impl_->next_cache_id;
  return KvCacheSet::create(impl_->source.config, identified,
                            {.max_requests = limits.max_requests,
                             .max_tokens = limits.max_batch_tokens,
                             .max_query_len = std::min(limits.max_batch_tokens, options.max_tokens)},
                            impl_->stream);
}

Status Runner::Impl::check(std::span<const BatchRow> rows, const float* logits) const {
  int64_t num_changes = 0;
  for (const BatchRow& row : rows) {
    for (const std::span<const ops::LogitChange> list : row.changes) num_changes += std::ssize(list);
    const int64_t new_length = row.cache->length(row.sequence) + std::ssize(row.tokens);
    if (new_length > row.cache->max_tokens()) {
      return {StatusCode::kInvalidArgument, fmt::format("a sequence would grow to {} tokens; its cache holds {}",
                                                        new_length, row.cache->max_tokens())};
    }
    for (const int32_t token : row.tokens) {
      if (token < 0 || token >= source.config.vocabulary_size)
        return {StatusCode::kInvalidArgument,
                fmt::format("token id {} is outside the vocabulary of {}", token, source.config.vocabulary_size)};
    }
    if (row.phase == RowPhase::kDecode && std::ssize(row.tokens) > options.max_batch_tokens) {
      return {StatusCode::kInvalidArgument, fmt::format("a decode row of {} tokens exceeds the batch limit of {}",
                                                        row.tokens.size(), options.max_batch_tokens)};
    }
    if (row.logits != LogitsWanted::kNone && row.drawn == nullptr && logits == nullptr)
      return {StatusCode::kInvalidArgument, "logits are wanted but there is no place for them"};
  }
  if (num_changes > ops::kMaxLogitChanges)
    return {StatusCode::kInvalidArgument,
            fmt::format("{} changed logits in a batch; the limit is {}", num_changes, ops::kMaxLogitChanges)};
  return {};
}

void Runner::Impl::start(std::span<const BatchRow> rows, float* logits) {
  progress.resize(rows.size());
  order.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    progress[i] = {.done = 0,
                   .part = 0,
                   .logits = rows[i].drawn == nullptr ? logits : nullptr,
                   .drawn = rows[i].drawn,
                   .draw = rows[i].draw};
    order[i] = i;
    if (rows[i].drawn != nullptr) continue;
    switch (rows[i].logits) {
      case LogitsWanted::kNone: break;
      case LogitsWanted::kLast:
        if (!rows[i].tokens.empty()) logits += source.config.vocabulary_size;
        break;
      case LogitsWanted::kAll: logits += std::ssize(rows[i].tokens) * source.config.vocabulary_size; break;
    }
  }
  // Insertion sort: stable, in place, and batches come nearly sorted.
  const auto before = [&](size_t a, size_t b) {
    if (rows[a].cache != rows[b].cache) return std::less<>()(rows[a].cache, rows[b].cache);
    return rows[a].phase < rows[b].phase;
  };
  for (size_t i = 1; i < order.size(); ++i)
    for (size_t j = i; j > 0 && before(order[j], order[j - 1]); --j) std::swap(order[j], order[j - 1]);
  if (stream.cuda != nullptr) put_alike_together(rows);
}

void Runner::Impl::put_alike_together(std::span<const BatchRow> rows) {
  places.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) places[i] = rows[i].cache->prefix_place(rows[i].sequence);
  const auto decodes_of = [&](const KvCacheSet* cache) {
    return [&rows, cache](size_t i) { return rows[i].cache == cache && rows[i].phase == RowPhase::kDecode; };
  };
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = std::find_if_not(begin, order.end(), decodes_of(rows[*begin].cache));
    std::sort(begin, end, [&](size_t a, size_t b) { return std::tie(places[a], a) < std::tie(places[b], b); });
    begin = begin == end ? begin + 1 : end;
  }
}

bool Runner::Impl::plan_pass(std::span<const BatchRow> rows) {
  int64_t room = options.max_batch_tokens;
  bool any = false;
  const KvCacheSet* cache = nullptr;
  int32_t requests = 0;
  for (const size_t i : order) {
    const BatchRow& row = rows[i];
    Progress& state = progress[i];
    if (row.cache != cache) requests = 0;
    cache = row.cache;
    const int64_t left = std::ssize(row.tokens) - state.done;
    state.part = 0;
    if (left == 0 || requests == options.max_requests) continue;
    int64_t part = left;
    if (row.phase == RowPhase::kDecode) {
      if (part > room) continue;
    } else {
      part = std::min({left, room, int64_t{row.cache->tokens_to_grid_point(row.cache->length(row.sequence))}});
      if (part == 0) continue;
    }
    state.part = part;
    room -= part;
    ++requests;
    any = true;
  }
  return any;
}

void Runner::Impl::add_row(const BatchRow& row, Progress& state) {
  const int32_t start = row.cache->length(row.sequence);
  const auto part = row.tokens.subspan(static_cast<size_t>(state.done), static_cast<size_t>(state.part));
  const auto first = static_cast<int32_t>(tokens.size());
  for (size_t i = 0; i < part.size(); ++i) {
    tokens.push_back(part[i]);
    positions.push_back(start + static_cast<int32_t>(i));
  }
  const bool finishes = state.done + state.part == std::ssize(row.tokens);
  const auto want = [&](int32_t token) {
    wanted.push_back(token);
    wanted_logits.push_back(state.logits);
    wanted_drawn.push_back(state.drawn);
    wanted_draws.push_back(state.draw);
    wanted_changes.push_back(row.changes.empty() ? std::span<const ops::LogitChange>() : row.changes[state.num_wanted]);
    wanted_logprobs.push_back(row.logprobs == nullptr ? nullptr : row.logprobs + state.num_wanted);
    ++state.num_wanted;
    ++state.draw.step;
    if (state.drawn != nullptr)
      ++state.drawn;
    else
      state.logits += source.config.vocabulary_size;
  };
  switch (row.logits) {
    case LogitsWanted::kNone: break;
    case LogitsWanted::kLast:
      if (finishes) want(first + static_cast<int32_t>(state.part) - 1);
      break;
    case LogitsWanted::kAll:
      for (int32_t i = 0; i < state.part; ++i) want(first + i);
      break;
  }
  step_rows.push_back({.sequence = row.sequence, .num_tokens = static_cast<int32_t>(state.part), .phase = row.phase});
  state.done += state.part;
}

DecoderPass::Kind Runner::Impl::classify(std::span<const BatchRow> rows, StepPadding& padding) const {
  constexpr auto kMixed = DecoderPass::Kind::kMixed;
  if (stream.cuda == nullptr || observer != nullptr) return kMixed;
  const auto miss = [&](GraphMiss reason) {
    decoder->graphs().note_miss(reason);
    return kMixed;
  };
  const KvCacheSet* cache = nullptr;
  int32_t num_requests = 0;
  int64_t longest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (progress[i].part == 0) continue;
    if (rows[i].phase != RowPhase::kDecode) return miss(GraphMiss::kPrompt);
    if (cache != nullptr && rows[i].cache != cache) return miss(GraphMiss::kSeveralCaches);
    cache = rows[i].cache;
    ++num_requests;
    longest = std::max(longest, progress[i].part);
  }
  const StepPadding wanted_padding = graph_padding(num_requests, static_cast<int32_t>(longest), options.max_requests);
  if (wanted_padding.num_tokens > std::min<int64_t>(options.max_batch_tokens, decoder->max_captured_rows()))
    return miss(GraphMiss::kTooManyRows);
  padding = wanted_padding;
  return DecoderPass::Kind::kDecodes;
}

Status Runner::Impl::run_pass(std::span<const BatchRow> rows) {
  tokens.clear();
  positions.clear();
  segments.clear();
  wanted.clear();
  wanted_logits.clear();
  wanted_drawn.clear();
  wanted_draws.clear();
  wanted_changes.clear();
  wanted_logprobs.clear();
  StepPadding padding;
  const DecoderPass::Kind kind = classify(rows, padding);
  for (size_t begin = 0; begin < order.size();) {
    KvCacheSet* cache = rows[order[begin]].cache;
    const auto first_token = std::ssize(tokens);
    step_rows.clear();
    size_t end = begin;
    for (; end < order.size() && rows[order[end]].cache == cache; ++end)
      if (progress[order[end]].part > 0) add_row(rows[order[end]], progress[order[end]]);
    begin = end;
    if (step_rows.empty()) continue;
    if (Status status = cache->begin_step(step_rows, padding); !status.ok()) {
      for (const PassSegment& segment : segments) segment.cache->end_step();
      return status;
    }
    segments.push_back({.cache = cache, .first_token = first_token, .num_tokens = std::ssize(tokens) - first_token});
  }
  Status status = decoder->run({.kind = kind,
                                .tokens = tokens,
                                .positions = positions,
                                .segments = segments,
                                .wanted = wanted,
                                .logits = wanted_logits,
                                .drawn = wanted_drawn,
                                .draws = wanted_draws,
                                .changes = wanted_changes,
                                .logprobs = wanted_logprobs},
                               observer);
  for (const PassSegment& segment : segments) segment.cache->end_step();
  return status;
}

Status Runner::forward(std::span<const BatchRow> rows, float* logits) {
  KVANT_RETURN_IF_ERROR(impl_->check(rows, logits));
  impl_->start(rows, logits);
  while (impl_->plan_pass(rows)) KVANT_RETURN_IF_ERROR(impl_->run_pass(rows));
  return {};
}

}  // namespace kvant::engine
