#include "kvant/engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/cache/kv_pools.h"
#include "engine/grammar/token_constraint.h"
#include "engine/loaded_model.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculation/create_drafter.h"
#include "engine/text_stream.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tool_call_style.h"
#include "kvant/core/device.h"

namespace kvant::engine {
namespace {

/// Prompts up to this length are read without a progress report.
constexpr int64_t kShortPrompt = 2 * attn::kPrefillGrid;

ops::SamplingParams sampling_params(const SamplingParams& params) {
  ops::SamplingParams out{.temperature = params.temperature,
                          .top_k = params.top_k,
                          .top_p = params.top_p,
                          .min_p = params.min_p,
                          .repetition_penalty = params.repetition_penalty,
                          .presence_penalty = params.presence_penalty,
                          .frequency_penalty = params.frequency_penalty,
                          .seed = params.seed};
  for (const LogitBias& item : params.logit_bias) out.logit_bias.push_back({.token = item.token, .bias = item.bias});
  return out;
}

/// A chat template, or why there is none: a model without one still completes plain prompts.
struct ChatFormat {
  std::optional<ChatTemplate> chat_template;
  std::string error = "the model has no chat template; use a plain prompt";
  ToolCallStyle tool_calls = ToolCallStyle::kNone;
};

ChatFormat read_chat_format(const LoadedModel& model) {
  ChatFormat out;
  const auto unusable = [](const Status& why) {
    return fmt::format("the model's chat template cannot be used: {}", why.message());
  };
  const auto source = model.chat_template();
  if (!source) {
    out.error = unusable(source.error());
    return out;
  }
  if (!source->has_value()) return out;
  if (auto parsed = ChatTemplate::parse(**source)) {
    out.chat_template.emplace(*std::move(parsed));
    out.tool_calls = tool_call_style(**source);
  } else {
    out.error = unusable(parsed.error());
  }
  return out;
}

/// Bytes of all layers in 16 bits.
double plain_bytes_per_token(const ModelConfig& config) {
  double elements = 0;
  for (const LayerConfig& layer : config.layers) elements += layer.num_kv_heads * (layer.head_dim_k + layer.head_dim_v);
  return 2 * elements;
}

/// The longest prompt with its answer that the cache can hold when it holds nothing else.
int32_t longest_request(const KvCacheSet& cache, int32_t context) {
  int32_t fits = 0;
  for (int32_t step = context; step > 0; step /= 2)
    while (fits + step <= context && cache.check_fits_alone(fits + step).ok()) fits += step;
  return fits;
}

/// What a request becomes: its text and the counts around it.
struct Answer {
  Answer(const Tokenizer& tokenizer, GenerateRequest& request)
      : stream(tokenizer, std::move(request.stop), std::move(request.on_text), generation.text),
        on_token(std::move(request.on_token)),
        on_finish(std::move(request.on_finish)) {
    generation.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    if (request.prompt_logprobs < 0) return;
    generation.prompt_logprobs.resize(request.prompt.size());
    generation.prompt_logprobs[0].chosen.token = request.prompt[0];
  }

  bool take(int32_t token, const TokenLogprobs* logprobs) {
    generation.token_ids.push_back(token);
    if (logprobs != nullptr) generation.logprobs.push_back(*logprobs);
    if (on_token) on_token(token, logprobs);
    stream.push(token);
    const bool complete = constraint != nullptr && !constraint->accept(token);
    return !stream.stopped() && !complete;
  }
  void finish(const TokenResult& result) {
    stream.finish();
    generation.finish_reason = result.reason;
    if (result.reason == FinishReason::kLength && stream.stopped()) generation.finish_reason = FinishReason::kStop;
    generation.status = result.status;
    generation.reused_tokens = result.reused_tokens;
    generation.preemptions = result.preemptions;
    generation.drafted_tokens = result.drafted_tokens;
    generation.accepted_tokens = result.accepted_tokens;
    generation.queue_seconds = result.queue_seconds;
    generation.prompt_seconds = result.prompt_seconds;
    generation.generation_seconds = result.generation_seconds;
    if (on_finish) on_finish(generation);
  }

  Generation generation;
  TextStream stream;
  std::unique_ptr<TokenConstraint> constraint;  ///< May be null.
  std::function<void(int32_t, const TokenLogprobs*)> on_token;
  std::function<void(const Generation&)> on_finish;
};

class LocalEngine : public Engine {
 public:
  struct Parts {
    std::unique_ptr<LoadedModel> model;
    std::unique_ptr<KvCacheSet> cache;
    KvBudget budget;
    std::unique_ptr<OwnedDrafter> drafter;  ///< May be null.
  };
  LocalEngine(Parts parts, const EngineOptions& options, int32_t step_tokens);
  ~LocalEngine() override;

  const EngineFacts& facts() const override { return facts_; }
  Result<std::vector<int32_t>> encode_prompt(std::string_view text) const override;
  Result<std::vector<int32_t>> encode_chat(std::span<const ChatTurn> turns, std::string_view tools) const override;
  std::string decode(std::span<const int32_t> ids) const override { return model_->tokenizer().decode(ids); }
  std::vector<int32_t> tokenize(std::string_view text) const override { return model_->tokenizer().encode(text); }
  std::string token_bytes(int32_t id) const override { return std::string(model_->tokenizer().token_bytes(id, true)); }
  Result<RequestId> submit(GenerateRequest request) override;
  void cancel(RequestId id) override;
  bool step() override;
  bool wait_for_work(std::chrono::milliseconds timeout) override;
  EngineStats stats() const override;
  Result<Generation> generate(const GenerateRequest& request) override;

 private:
  struct Arrival {
    RequestId id;
    TokenRequest request;
  };
  /// Hands the scheduler what other threads submitted and cancelled.
  void take_arrivals();
  /// After a step, and before a request's end is told, so that who has an answer finds it counted.
  void publish_stats();
  bool has_work() const { return !arrivals_.empty() || stats_.running + stats_.waiting > 0; }

  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<KvCacheSet> cache_;
  std::unique_ptr<OwnedDrafter> drafter_;
  Scheduler scheduler_;
  ChatFormat chat_;
  ConstraintFactory constraints_;
  ProgressFn progress_;
  EngineFacts facts_;
  // Shared between threads.
  mutable std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::vector<Arrival> arrivals_;
  std::vector<RequestId> cancelled_;
  RequestId last_id_ = 0;
  EngineStats stats_;
};

LocalEngine::LocalEngine(Parts parts, const EngineOptions& options, int32_t step_tokens)
    : model_(std::move(parts.model)),
      cache_(std::move(parts.cache)),
      drafter_(std::move(parts.drafter)),
      scheduler_(model_->runner(), *cache_,
                 {.max_sequences = parts.budget.shape.max_sequences,
                  .step_tokens = step_tokens,
                  .drafter = drafter_ != nullptr ? drafter_->drafter.get() : nullptr,
                  .max_drafts = options.speculation.max_drafts}),
      chat_(read_chat_format(*model_)),
      constraints_(model_->tokenizer()),
      progress_(options.progress) {
  const ModelConfig& config = model_->config();
  facts_ = {.architecture = config.architecture,
            .model_name = config.name,
            .kv_format = cache_->format(),
            .kv_bytes_per_token = cache_->bytes_per_token(),
            .kv_bytes_per_token_16bit = plain_bytes_per_token(config),
            .kv_scale_source = model_->describe_scales(*cache_),
            .route = cache_->route(),
            .device = device_of(model_->runner().stream()).name,
            .weights = std::string(model_->runner().weights()),
            .threads = model_->pool().num_threads(),
            .context = model_->context(),
            .longest_request = longest_request(*cache_, model_->context()),
            .vocabulary = config.vocabulary_size,
            .num_layers = config.num_layers(),
            .max_sequences = parts.budget.shape.max_sequences,
            .kv_memory = parts.budget.arithmetic,
            .tool_calls = chat_.tool_calls};
  stats_ = scheduler_.stats();
}

LocalEngine::~LocalEngine() {
  take_arrivals();
  scheduler_.cancel_all();
}

Result<std::vector<int32_t>> LocalEngine::encode_prompt(std::string_view text) const {
  return model_->tokenizer().encode_prompt(text);
}

Result<std::vector<int32_t>> LocalEngine::encode_chat(std::span<const ChatTurn> turns, std::string_view tools) const {
  if (!chat_.chat_template) return failure(StatusCode::kUnsupported, chat_.error);
  const Tokenizer& tokenizer = model_->tokenizer();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.token_bytes(*id, true)) : std::string();
  };
  std::vector<ChatMessage> messages;
  for (const ChatTurn& turn : turns) {
    messages.push_back({.role = turn.role,
                        .content = turn.content,
                        .tool_calls = turn.tool_calls,
                        .tool_call_id = turn.tool_call_id,
                        .name = turn.name});
  }
  KVANT_ASSIGN_OR_FAIL(const std::vector<PromptPiece> pieces,
                       chat_.chat_template->render(messages, true, text_of(tokenizer.bos()), text_of(tokenizer.eos()),
                                                   std::nullopt, tools));
  return tokenizer.encode_chat(pieces);
}

Result<RequestId> LocalEngine::submit(GenerateRequest request) {
  const auto ends = model_->tokenizer().end_of_turn();
  TokenRequest out{.prompt = request.prompt,
                   .sampling = sampling_params(request.sampling),
                   .max_tokens = request.max_tokens,
                   .logprobs = request.logprobs,
                   .prompt_logprobs = request.prompt_logprobs,
                   .salt = request.cache_salt};
  // A shape ends an answer with an end of turn.
  if (!request.ignore_end_of_turn || request.shape) out.end_tokens.assign(ends.begin(), ends.end());
  KVANT_FAIL_IF_ERROR(scheduler_.check(out));
  // Shared by two callbacks, which are copied.
  const auto answer = std::make_shared<Answer>(model_->tokenizer(), request);
  if (request.shape) {
    KVANT_ASSIGN_OR_FAIL(answer->constraint, constraints_.make(*request.shape));
    out.restrict_logits = [answer](std::span<float> logits) { answer->constraint->restrict_logits(logits); };
  }
  if (request.prompt_logprobs >= 0) {
    out.on_prompt_token = [answer](int32_t position, const TokenLogprobs& logprobs) {
      answer->generation.prompt_logprobs[static_cast<size_t>(position)] = logprobs;
    };
  }
  out.on_token = [answer](int32_t token, const TokenLogprobs* logprobs) { return answer->take(token, logprobs); };
  out.on_finish = [this, answer](const TokenResult& result) {
    publish_stats();
    answer->finish(result);
  };
  const std::lock_guard lock(mutex_);
  arrivals_.push_back({.id = ++last_id_, .request = std::move(out)});
  work_arrived_.notify_all();
  return last_id_;
}

void LocalEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
}

void LocalEngine::take_arrivals() {
  const std::lock_guard lock(mutex_);
  for (Arrival& arrival : arrivals_) scheduler_.submit(arrival.id, std::move(arrival.request));
  arrivals_.clear();
  for (const RequestId id : cancelled_) scheduler_.cancel(id);
  cancelled_.clear();
}

bool LocalEngine::step() {
  take_arrivals();
  const bool worked = scheduler_.step();
  publish_stats();
  const std::lock_guard lock(mutex_);
  return worked || has_work();
}

void LocalEngine::publish_stats() {
  EngineStats stats = scheduler_.stats();
  const GraphStats& graphs = model_->runner().graph_stats();
  stats.graph_replays = graphs.replayed;
  stats.graph_misses = graphs.decode_misses();
  const std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

bool LocalEngine::wait_for_work(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return work_arrived_.wait_for(lock, timeout, [&] { return has_work(); });
}

EngineStats LocalEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats out = stats_;
  out.waiting += static_cast<int32_t>(arrivals_.size());
  return out;
}

Result<Generation> LocalEngine::generate(const GenerateRequest& request) {
  std::optional<Generation> out;
  GenerateRequest watched = request;
  watched.on_finish = [&](const Generation& generation) {
    out = generation;
    if (request.on_finish) request.on_finish(generation);
  };
  KVANT_ASSIGN_OR_FAIL(const RequestId id, submit(std::move(watched)));
  const int64_t total = std::ssize(request.prompt);
  const bool reports = progress_ && total > kShortPrompt;
  while (!out) {
    if (reports) progress_("reading the prompt", std::min<int64_t>(scheduler_.computed_tokens(id), total), total);
    if (!step() && !out) return failure(StatusCode::kInternal, "the scheduler lost a request");
  }
  if (out->finish_reason == FinishReason::kError) return failure(out->status);
  return *std::move(out);
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  if (options.batch_invariant && options.weights == WeightFormat::kBf16) {
    return failure(StatusCode::kUnsupported,
                   "bf16 products may depend on the batch, and batch-invariant results were asked for; use f32 or int8 "
                   "weights");
  }
  if (options.batch_invariant && options.device == DeviceChoice::kCuda) {
    return failure(StatusCode::kUnsupported,
                   "batch-invariant results were asked for, and a GPU's products depend on the batch; use the CPU, or "
                   "leave batch invariance out");
  }
  const int32_t step_tokens = std::max(options.step_tokens > 0 ? options.step_tokens : kDefaultBatchTokens,
                                       2 * std::max(1, options.max_sequences));
  // The GPU's products depend on the batch.
  const DeviceChoice device =
      options.batch_invariant && options.device == DeviceChoice::kAuto ? DeviceChoice::kCpu : options.device;
  LocalEngine::Parts parts;
  KVANT_ASSIGN_OR_FAIL(parts.model, LoadedModel::load({.model = options.model,
                                                       .kv_profile = options.kv_profile,
                                                       .device = device,
                                                       .weights = options.weights,
                                                       .threads = options.threads,
                                                       .context = options.context,
                                                       .max_requests = options.max_sequences,
                                                       .max_batch_tokens = step_tokens,
                                                       .page_size = options.page_size,
                                                       .cache_dir = options.cache_dir,
                                                       .progress = options.progress,
                                                       .notice = options.notice,
                                                       .kv_layers = options.kv_layers,
                                                       .kv = {options.kv}}));
  const CacheRequest wanted{.max_sequences = options.max_sequences,
                            .max_tokens = parts.model->context(),
                            .prefix_cache = options.prefix_cache,
                            .batch_invariant = options.batch_invariant};
  KVANT_ASSIGN_OR_FAIL(parts.budget, parts.model->plan_cache(options.kv, wanted, options.kv_memory));
  if (parts.budget.shape.max_sequences < options.max_sequences && options.notice) {
    options.notice(fmt::format("the KV budget holds {} sequences at once, not {}: {}", parts.budget.shape.max_sequences,
                               options.max_sequences, parts.budget.arithmetic));
  }
  CacheRequest granted = wanted;
  granted.max_sequences = parts.budget.shape.max_sequences;
  granted.pool_tokens = parts.budget.shape.pool_tokens;
  KVANT_ASSIGN_OR_FAIL(parts.cache, parts.model->create_cache(options.kv, granted));
  EngineOptions drafting = options;
  drafting.device = device;
  KVANT_ASSIGN_OR_FAIL(parts.drafter, create_drafter(drafting, *parts.model, granted.max_sequences));
  return std::unique_ptr<Engine>(std::make_unique<LocalEngine>(std::move(parts), options, step_tokens));
}

}  // namespace kvant::engine
