#include "kvant/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/loaded_model.h"
#include "engine/stop_filter.h"
#include "engine/tokenizer/chat_template.h"
#include "kvant/core/device.h"
#include "ops/sampling.h"

namespace kvant::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Prompt tokens between two progress reports.
constexpr int64_t kPromptSlice = 2 * attn::kPrefillGrid;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

ops::SamplingParams sampling_params(const SamplingParams& params) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .seed = params.seed};
}

/// Turns sampled tokens into the text that a caller sees: whole characters only, cut at stop strings.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const GenerateRequest& request, std::string& text)
      : tokenizer_(tokenizer), request_(request), text_(text), filter_(request.stop) {}

  void push(int32_t token) { emit(filter_.push(decoder_.push(tokenizer_.token_bytes(token)))); }
  void finish() {
    emit(filter_.push(decoder_.flush()));
    emit(filter_.flush());
  }
  /// A stop string was met, or the caller wants no more.
  bool stopped() const { return cancelled_ || filter_.stopped(); }

 private:
  void emit(const std::string& piece) {
    if (piece.empty() || cancelled_) return;
    text_ += piece;
    if (request_.on_text) cancelled_ = !request_.on_text(piece);
  }

  const Tokenizer& tokenizer_;
  const GenerateRequest& request_;
  std::string& text_;
  StreamDecoder decoder_;
  StopFilter filter_;
  bool cancelled_ = false;
};

class LocalEngine : public Engine {
 public:
  LocalEngine(std::unique_ptr<LoadedModel> model, std::unique_ptr<KvCacheSet> cache, SequenceId sequence,
              std::optional<ChatTemplate> chat_template, std::string chat_template_error, const EngineOptions& options);

  const EngineFacts& facts() const override { return facts_; }
  Result<std::vector<int32_t>> encode_prompt(std::string_view text) const override;
  Result<std::vector<int32_t>> encode_chat(std::span<const ChatTurn> turns) const override;
  std::string decode(std::span<const int32_t> ids) const override { return model_->tokenizer().decode(ids); }
  Result<Generation> generate(const GenerateRequest& request) override;

 private:
  Status check(const GenerateRequest& request) const;
  Status read_prompt(std::span<const int32_t> prompt, Generation& out);
  Status write_answer(const GenerateRequest& request, Generation& out);
  Status feed(std::span<const int32_t> tokens, RowPhase phase, LogitsWanted logits);
  void forget();

  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<KvCacheSet> cache_;
  SequenceId sequence_;
  std::vector<int32_t> cached_;  ///< Tokens whose keys and values are in the sequence.
  std::optional<ChatTemplate> chat_template_;
  std::string chat_template_error_;
  std::vector<float> logits_;
  ProgressFn progress_;
  EngineFacts facts_;
};

LocalEngine::LocalEngine(std::unique_ptr<LoadedModel> model, std::unique_ptr<KvCacheSet> cache, SequenceId sequence,
                         std::optional<ChatTemplate> chat_template, std::string chat_template_error,
                         const EngineOptions& options)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      sequence_(sequence),
      chat_template_(std::move(chat_template)),
      chat_template_error_(std::move(chat_template_error)),
      logits_(static_cast<size_t>(model_->config().vocabulary_size)),
      progress_(options.progress) {
  const ModelConfig& config = model_->config();
  cached_.reserve(static_cast<size_t>(model_->context()));
  facts_ = {.architecture = config.architecture,
            .model_name = config.name,
            .kv_format = cache_->format(),
            .kv_bytes_per_token = cache_->bytes_per_token(),
            .kv_scale_source = model_->describe_scales(*cache_),
            .route = cache_->route(),
            .device = cpu_device().name,
            .weights = std::string(model_->runner().weights()),
            .threads = model_->pool().num_threads(),
            .context = model_->context(),
            .num_layers = config.num_layers()};
}

Result<std::vector<int32_t>> LocalEngine::encode_prompt(std::string_view text) const {
  const Tokenizer& tokenizer = model_->tokenizer();
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (tokenizer.add_bos() && tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
  return ids;
}

Result<std::vector<int32_t>> LocalEngine::encode_chat(std::span<const ChatTurn> turns) const {
  if (!chat_template_) return failure(StatusCode::kUnsupported, chat_template_error_);
  const Tokenizer& tokenizer = model_->tokenizer();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.token_bytes(*id, true)) : std::string();
  };
  std::vector<ChatMessage> messages;
  for (const ChatTurn& turn : turns) messages.push_back({.role = turn.role, .content = turn.content});
  KVANT_ASSIGN_OR_FAIL(const std::vector<PromptPiece> pieces,
                       chat_template_->render(messages, true, text_of(tokenizer.bos()), text_of(tokenizer.eos())));
  std::vector<int32_t> ids = tokenizer.encode(pieces);
  // One BOS, whether the template writes it, the file asks for it, or both.
  if (const std::optional<int32_t> bos = tokenizer.bos(); bos && tokenizer.add_bos()) {
    while (ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) ids.erase(ids.begin());
    if (ids.empty() || ids[0] != *bos) ids.insert(ids.begin(), *bos);
  }
  return ids;
}

Status LocalEngine::check(const GenerateRequest& request) const {
  if (request.prompt.empty())
    return {StatusCode::kInvalidArgument, "the prompt is empty; at least one token is needed"};
  if (request.max_tokens < 1) {
    return {StatusCode::kInvalidArgument,
            fmt::format("max_tokens {} asks for nothing; at least 1 is needed", request.max_tokens)};
  }
  KVANT_RETURN_IF_ERROR(ops::validate(sampling_params(request.sampling)));
  if (std::ssize(request.prompt) >= model_->context()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the prompt has {} tokens and the context holds {}, of which one is needed for the answer; "
                        "shorten the prompt{}",
                        request.prompt.size(), model_->context(),
                        model_->context() < model_->config().context_limit ? " or raise the context" : "")};
  }
  return {};
}

Status LocalEngine::feed(std::span<const int32_t> tokens, RowPhase phase, LogitsWanted logits) {
  const BatchRow row{.cache = cache_.get(), .sequence = sequence_, .tokens = tokens, .phase = phase, .logits = logits};
  KVANT_RETURN_IF_ERROR(model_->runner().forward({&row, 1}, logits_.data()));
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  return {};
}

void LocalEngine::forget() {
  cache_->keep_prefix(sequence_, 0);
  cached_.clear();
}

Status LocalEngine::read_prompt(std::span<const int32_t> prompt, Generation& out) {
  const auto differs = std::mismatch(prompt.begin(), prompt.end(), cached_.begin(), cached_.end());
  const auto common = differs.first - prompt.begin();
  // The last prompt token is always run: its logits are needed.
  const int32_t keep = cache_->keep_prefix(sequence_, static_cast<int32_t>(std::min(common, std::ssize(prompt) - 1)));
  cached_.resize(static_cast<size_t>(keep));
  out.prompt_tokens = static_cast<int32_t>(prompt.size());
  out.reused_tokens = keep;
  const int64_t total = std::ssize(prompt);
  for (int64_t done = keep; done < total;) {
    if (progress_ && total - keep > kPromptSlice) progress_("reading the prompt", done, total);
    // Slices end at fixed positions, so that a reused prefix does not shift them.
    const int64_t end = std::min(total, (done / kPromptSlice + 1) * kPromptSlice);
    KVANT_RETURN_IF_ERROR(feed(prompt.subspan(static_cast<size_t>(done), static_cast<size_t>(end - done)),
                               done == 0 ? RowPhase::kPrefill : RowPhase::kExtend,
                               end == total ? LogitsWanted::kLast : LogitsWanted::kNone));
    done = end;
  }
  if (progress_ && total - keep > kPromptSlice) progress_("reading the prompt", total, total);
  return {};
}

Status LocalEngine::write_answer(const GenerateRequest& request, Generation& out) {
  const std::span<const int32_t> ends = model_->tokenizer().end_of_turn();
  const int32_t room = model_->context() - static_cast<int32_t>(request.prompt.size());
  const int32_t max_tokens = std::min(request.max_tokens, room);
  out.token_ids.reserve(static_cast<size_t>(max_tokens));
  std::vector<int32_t> history = request.prompt;
  history.reserve(request.prompt.size() + static_cast<size_t>(max_tokens));
  ops::Sampler sampler(sampling_params(request.sampling));
  TextStream stream(model_->tokenizer(), request, out.text);
  out.finish_reason = FinishReason::kLength;
  for (int32_t count = 0; count < max_tokens; ++count) {
    if (count > 0) KVANT_RETURN_IF_ERROR(feed({&out.token_ids.back(), 1}, RowPhase::kDecode, LogitsWanted::kLast));
    const int32_t token = sampler.sample(logits_, history, history.size());
    if (!request.ignore_end_of_turn && std::find(ends.begin(), ends.end(), token) != ends.end()) {
      out.finish_reason = FinishReason::kStop;
      break;
    }
    out.token_ids.push_back(token);
    history.push_back(token);
    stream.push(token);
    if (stream.stopped()) {
      out.finish_reason = FinishReason::kStop;
      break;
    }
  }
  stream.finish();
  if (stream.stopped()) out.finish_reason = FinishReason::kStop;
  return {};
}

Result<Generation> LocalEngine::generate(const GenerateRequest& request) {
  KVANT_FAIL_IF_ERROR(check(request));
  Generation out;
  const Clock::time_point start = Clock::now();
  if (Status status = read_prompt(request.prompt, out); !status.ok()) {
    forget();
    return failure(std::move(status));
  }
  out.prompt_seconds = seconds_since(start);
  const Clock::time_point answer_start = Clock::now();
  if (Status status = write_answer(request, out); !status.ok()) {
    forget();
    return failure(std::move(status));
  }
  out.generation_seconds = seconds_since(answer_start);
  return out;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  KVANT_ASSIGN_OR_FAIL(std::unique_ptr<LoadedModel> model, LoadedModel::load({.model = options.model,
                                                                              .kv_profile = options.kv_profile,
                                                                              .weights = options.weights,
                                                                              .threads = options.threads,
                                                                              .context = options.context,
                                                                              .max_requests = options.max_sequences,
                                                                              .page_size = options.page_size,
                                                                              .cache_dir = options.cache_dir,
                                                                              .progress = options.progress,
                                                                              .notice = options.notice,
                                                                              .kv = {options.kv}}));
  KVANT_ASSIGN_OR_FAIL(std::unique_ptr<KvCacheSet> cache,
                       model->create_cache(options.kv, options.max_sequences, model->context()));
  KVANT_ASSIGN_OR_FAIL(const SequenceId sequence, cache->add_sequence());
  // A model without a usable chat template still completes plain prompts.
  std::optional<ChatTemplate> chat_template;
  std::string chat_template_error = "the model has no chat template; use a plain prompt";
  if (const auto source = model->file().get_string("tokenizer.chat_template")) {
    if (auto parsed = ChatTemplate::parse(*source))
      chat_template.emplace(*std::move(parsed));
    else
      chat_template_error = fmt::format("the model's chat template cannot be used: {}", parsed.error().message());
  }
  return std::unique_ptr<Engine>(std::make_unique<LocalEngine>(
      std::move(model), std::move(cache), sequence, std::move(chat_template), std::move(chat_template_error), options));
}

}  // namespace kvant::engine
