#include "engine/quality/kv_quality.h"

#include "engine/quality/distribution.h"
#include "engine/text_chunks.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <span>
#include <utility>

namespace kvant::engine {
namespace {

constexpr int32_t kShortestContext = 4;

struct MeasuredCache {
  std::unique_ptr<KvCacheSet> cache;
  std::vector<SequenceId> sequences;  // one per chunk
  std::vector<TokenScore> scores;     // [chunk, scored position]
};

Status check_options(const KvQualityOptions& options, int64_t text_tokens) {
  if (options.specs.empty()) return {StatusCode::kInvalidArgument, "no KV spec to measure; at least one is needed"};
  if (options.context < kShortestContext)
    return {StatusCode::kInvalidArgument,
            fmt::format("context {} is too short; at least {} tokens are needed", options.context, kShortestContext)};
  if (options.chunks < 1)
    return {StatusCode::kInvalidArgument, fmt::format("{} chunks; at least 1 is needed", options.chunks)};
  const int64_t needed = int64_t{options.context} * options.chunks;
  if (text_tokens < needed)
    return {
        StatusCode::kInvalidArgument,
        fmt::format("the text has {} tokens; {} chunks of {} need {}: give a longer text, fewer chunks or a shorter "
                    "context",
                    text_tokens, options.chunks, options.context, needed)};
  return {};
}

/// Feeds all caches token by token and scores them against the first.
class Measurement {
 public:
  Measurement(LoadedModel& model, std::span<const int32_t> tokens, const KvQualityOptions& options)
      : model_(model),
        tokens_(tokens),
        options_(options),
        first_scored_(options.context / 2),
        num_scored_(options.context - 1 - first_scored_) {}

  Status add_cache(const attn::KvSpec& spec) {
    MeasuredCache entry;
    KVANT_ASSIGN_OR_RETURN(
        entry.cache, model_.create_cache(spec, {.max_sequences = options_.chunks, .max_tokens = options_.context}));
    for (int32_t chunk = 0; chunk < options_.chunks; ++chunk) {
      KVANT_ASSIGN_OR_RETURN(const SequenceId sequence, entry.cache->add_sequence());
      entry.sequences.push_back(sequence);
    }
    entry.scores.resize(static_cast<size_t>(options_.chunks) * static_cast<size_t>(num_scored_));
    caches_.push_back(std::move(entry));
    return {};
  }

  Status run() {
    vocabulary_ = static_cast<size_t>(model_.config().vocabulary_size);
    references_.resize(static_cast<size_t>(options_.chunks));
    logits_.resize(caches_.size() * references_.size() * vocabulary_);
    // The last token of a chunk has no successor to predict, so it is never fed.
    const int32_t steps = options_.context - 1;
    for (int32_t position = 0; position < steps; ++position) {
      const bool scored = position >= first_scored_;
      fill_rows(position, scored);
      KVANT_RETURN_IF_ERROR(model_.runner().forward(rows_, scored ? logits_.data() : nullptr));
      if (scored) score(position);
      if (options_.progress) options_.progress("measuring KV caches", position + 1, steps);
    }
    return {};
  }

  const std::vector<MeasuredCache>& caches() const { return caches_; }

 private:
  int32_t token(int32_t chunk, int32_t position) const {
    return tokens_[static_cast<size_t>(chunk) * static_cast<size_t>(options_.context) + static_cast<size_t>(position)];
  }

  void fill_rows(int32_t position, bool scored) {
    rows_.clear();
    for (MeasuredCache& entry : caches_)
      for (int32_t chunk = 0; chunk < options_.chunks; ++chunk)
        rows_.push_back(
            {.cache = entry.cache.get(),
             .sequence = entry.sequences[static_cast<size_t>(chunk)],
             .tokens = tokens_.subspan(
                 static_cast<size_t>(chunk) * static_cast<size_t>(options_.context) + static_cast<size_t>(position), 1),
             .phase = RowPhase::kDecode,
             .logits = scored ? LogitsWanted::kLast : LogitsWanted::kNone});
  }

  std::span<const float> logits(int64_t cache, int64_t chunk) const {
    return std::span(logits_).subspan(static_cast<size_t>(cache * options_.chunks + chunk) * vocabulary_, vocabulary_);
  }

  void score(int32_t position) {
    const int64_t chunks = options_.chunks;
    model_.pool().parallel_for(
        chunks, [&](int64_t chunk, int) { make_reference(logits(0, chunk), references_[static_cast<size_t>(chunk)]); });
    model_.pool().parallel_for(static_cast<int64_t>(caches_.size()) * chunks, [&](int64_t task, int) {
      const int64_t cache = task / chunks, chunk = task % chunks;
      const auto slot = static_cast<size_t>(chunk * num_scored_ + position - first_scored_);
      caches_[static_cast<size_t>(cache)].scores[slot] =
          score_token(references_[static_cast<size_t>(chunk)], logits(cache, chunk),
                      token(static_cast<int32_t>(chunk), position + 1));
    });
  }

  LoadedModel& model_;
  std::span<const int32_t> tokens_;
  const KvQualityOptions& options_;
  int32_t first_scored_;
  int32_t num_scored_;  // per chunk
  size_t vocabulary_ = 0;
  std::vector<MeasuredCache> caches_;  // [0] is the baseline
  std::vector<ReferenceDistribution> references_;
  std::vector<BatchRow> rows_;
  std::vector<float> logits_;
};

double perplexity(std::span<const TokenScore> scores) {
  double sum = 0.0;
  for (const TokenScore& score : scores) sum += score.log_probability;
  return std::exp(-sum / static_cast<double>(scores.size()));
}

int64_t elements_per_token(const ModelConfig& config) {
  int64_t elements = 0;
  for (const LayerConfig& layer : config.layers)
    elements += int64_t{layer.num_kv_heads} * (layer.head_dim_k + layer.head_dim_v);
  return elements;
}

KvQualityRow make_row(const attn::KvSpec& given, const MeasuredCache& measured, const ModelConfig& config,
                      int32_t context) {
  const attn::KvSpec& spec = measured.cache->spec();
  const bool block_scaled = spec.k_format == attn::KvFormat::kNvfp4 || spec.v_format == attn::KvFormat::kNvfp4;
  const auto elements = static_cast<double>(elements_per_token(config));
  std::vector<double> divergences;
  double sum = 0.0;
  int64_t same_top = 0;
  for (const TokenScore& score : measured.scores) {
    divergences.push_back(score.divergence);
    sum += score.divergence;
    same_top += score.same_top ? 1 : 0;
  }
  const auto count = static_cast<double>(measured.scores.size());
  return {.kv = given.text,
          .policy = block_scaled ? std::string(to_string(spec.policy)) : "none",
          .conditioning = std::string(to_string(spec.conditioning)),
          .edges = spec.edges.enabled() ? fmt::format("{},{}", spec.edges.head, spec.edges.tail) : "none",
          .ppl = perplexity(measured.scores),
          .kld_mean = sum / count,
          .kld_p99 = quantile(std::move(divergences), 0.99),
          .top1_agreement = static_cast<double>(same_top) / count,
          .base_bits = 8.0 * measured.cache->bytes_per_token() / elements,
          .effective_bits = 8.0 * measured.cache->effective_bytes_per_token(context) / elements,
          .bytes_per_token = measured.cache->bytes_per_token()};
}

}  // namespace

void set_load_options(const KvQualityOptions& options, LoadOptions& load) {
  load.context = options.context;
  load.max_requests = options.chunks;
  load.kv = options.specs;
}

Result<KvQualityReport> measure_kv_quality(LoadedModel& model, std::string_view text, const KvQualityOptions& options) {
  const std::vector<int32_t> tokens = encode_chunks(model.tokenizer(), text, options.context);
  KVANT_FAIL_IF_ERROR(check_options(options, static_cast<int64_t>(tokens.size())));

  KVANT_ASSIGN_OR_FAIL(const attn::KvSpec baseline_spec, attn::parse_kv_spec("f16"));
  Measurement measurement(model, tokens, options);
  KVANT_FAIL_IF_ERROR(measurement.add_cache(baseline_spec));
  for (const attn::KvSpec& spec : options.specs) KVANT_FAIL_IF_ERROR(measurement.add_cache(spec));
  KVANT_FAIL_IF_ERROR(measurement.run());

  const MeasuredCache& baseline = measurement.caches().front();
  KvQualityReport report{.model = model.config().name,
                         .weights = std::string(model.runner().weights()),
                         .text_tokens = static_cast<int64_t>(tokens.size()),
                         .context = options.context,
                         .chunks = options.chunks,
                         .scored_tokens = static_cast<int64_t>(baseline.scores.size()),
                         .baseline_ppl = perplexity(baseline.scores),
                         .baseline_bytes_per_token = baseline.cache->bytes_per_token(),
                         .rows = {}};
  for (size_t i = 0; i < options.specs.size(); ++i)
    report.rows.push_back(make_row(options.specs[i], measurement.caches()[i + 1], model.config(), options.context));
  return report;
}

}  // namespace kvant::engine
