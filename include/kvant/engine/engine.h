#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/attn/kv_spec.h"
#include "kvant/core/status.h"

namespace kvant::engine {

/// How weights are held for matrix products.
enum class WeightFormat : uint8_t {
  kAuto,  ///< The measured best of this machine (docs/performance.md).
  kF32,
  kBf16,  ///< On CUDA, and on CPUs with bf16 instructions.
  kInt8,  ///< Per output channel; activations are quantised per row on the fly.
};
std::string_view to_string(WeightFormat format);
Result<WeightFormat> parse_weight_format(std::string_view name);

/// Where a model runs.
enum class DeviceChoice : uint8_t {
  kAuto,  ///< The first CUDA device if there is one, else the CPU. What only the CPU can do stays there.
  kCpu,
  kCuda,
};
std::string_view to_string(DeviceChoice device);
Result<DeviceChoice> parse_device(std::string_view name);

/// `done` of `total` units of a long step; total 0 = unknown.
using ProgressFn = std::function<void(std::string_view step, int64_t done, int64_t total)>;

/// A one-line message for people, such as "made a KV profile ...".
using NoticeFn = std::function<void(std::string_view text)>;

/// How much memory the KV cache may take.
struct KvMemory {
  enum class Unit : uint8_t {
    kAuto,  ///< Every sequence at its longest, at most 0.8 of what is free.
    kBytes,
    kTokens,    ///< Of all sequences together.
    kFraction,  ///< Of the free memory.
  };
  Unit unit = Unit::kAuto;
  double value = 0;
};
/// "auto", "2GiB", "500MiB", "800000000B", "40000t" (tokens) or "0.8" (of the free memory).
Result<KvMemory> parse_kv_memory(std::string_view text);

/// How tokens are guessed ahead, to be verified several at once. It changes speed, not what is generated.
struct Speculation {
  enum class Kind : uint8_t {
    kNone,
    kNgram,  ///< What followed the newest tokens when they occurred before.
    kDraft,  ///< A small model with the same vocabulary.
  };
  Kind kind = Kind::kNone;
  int32_t max_drafts = 0;                  ///< At once; fewer are tried where they are refused.
  std::filesystem::path draft_model = {};  ///< GGUF file
};
/// "none", "ngram:K" or "draft:MODEL:K".
Result<Speculation> parse_speculation(std::string_view text);

struct EngineOptions {
  std::filesystem::path model;  ///< GGUF file or Hugging Face folder
  attn::KvSpec kv;              ///< From parse_kv_spec.
  /// "auto": the profile of this model from the cache directory, made by self-calibration when missing and needed;
  /// "none"; or a profile file.
  std::string kv_profile = "auto";
  /// Encodings of single layers, whatever `kv` says: "0,27=bf16;4-7=e4m3", the first rule that names a layer counts.
  std::string kv_layers = {};
  DeviceChoice device = DeviceChoice::kAuto;
  WeightFormat weights = WeightFormat::kAuto;
  int32_t threads = 0;        ///< 0 = all cores.
  int32_t context = 0;        ///< Tokens a sequence may hold; 0 = the model's limit.
  int32_t max_sequences = 1;  ///< Requests that run at once; others wait.
  int32_t page_size = 16;
  KvMemory kv_memory = {};
  bool prefix_cache = true;  ///< Keep the pages of finished requests for prompts that start alike.
  int32_t step_tokens = 0;   ///< Most tokens of one step: prompts are read in chunks beside decodes; 0 = 512.
  Speculation speculation = {};
  bool batch_invariant = false;     ///< A request's tokens do not depend on what runs beside it, to the last bit.
  std::filesystem::path cache_dir;  ///< Empty = $KVANT_CACHE_DIR, else $XDG_CACHE_HOME/kvant, else ~/.cache/kvant.
  ProgressFn progress;
  NoticeFn notice;
};

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;  ///< Added to the token's logit; minus infinity forbids it.
};

struct SamplingParams {
  float temperature = 0.0f;  ///< 0 = greedy.
  int32_t top_k = 0;         ///< 0 = off.
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  ///< Of tokens in the prompt or the answer; 1 = none.
  float presence_penalty = 0.0f;    ///< Taken from the logit of every token of the answer so far.
  float frequency_penalty = 0.0f;   ///< Likewise, once per occurrence.
  std::vector<LogitBias> logit_bias = {};
  uint64_t seed = 0;
};

enum class FinishReason : uint8_t {
  kStop,       ///< End of turn, a stop string, or on_text returned false.
  kLength,     ///< max_tokens or the context is reached.
  kCancelled,  ///< By Engine::cancel.
  kError,      ///< Generation::status says why.
};
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;  ///< Of the model's own distribution, before penalties, bias and temperature.
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< The most likely tokens, best first.
};

/// What an answer has to look like. Tokens that would break it are never drawn.
struct AnswerShape {
  enum class Kind : uint8_t {
    kJsonObject,  ///< Any JSON object.
    kJsonSchema,  ///< JSON that follows `schema`.
  };
  Kind kind = Kind::kJsonObject;
  std::string schema = {};  ///< JSON Schema; docs/server.md states the subset.
  std::string before = {};  ///< Text around the JSON.
  std::string after = {};
};

struct Generation {
  std::string text;
  std::vector<int32_t> token_ids;       ///< Without the end-of-turn token.
  std::vector<TokenLogprobs> logprobs;  ///< One per token id when asked for.
  /// One per prompt token when asked for, given those before it; that of the first one is 0.
  std::vector<TokenLogprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kStop;
  Status status;  ///< Not ok iff finish_reason is kError.
  int32_t prompt_tokens = 0;
  int32_t reused_tokens = 0;  ///< Of the prompt, already in the cache.
  int32_t preemptions = 0;    ///< How often its cache was given to others and computed again.
  int32_t drafted_tokens = 0;
  int32_t accepted_tokens = 0;  ///< Of the drafted ones.
  double queue_seconds = 0.0;
  double prompt_seconds = 0.0;
  double generation_seconds = 0.0;
};

struct GenerateRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int32_t max_tokens = 256;  ///< 0 = the prompt is read and nothing more.
  std::vector<std::string> stop;
  bool ignore_end_of_turn = false;
  int32_t logprobs = -1;         ///< -1 = none, else how many alternatives besides the chosen token.
  int32_t prompt_logprobs = -1;  ///< Likewise for the prompt, whose cached prefix is not used then.
  std::optional<AnswerShape> shape = {};
  std::string cache_salt = {};  ///< Requests share cached prefixes only with others of the same salt.
  /// Each token of the answer as it comes, before what it adds to the text. `logprobs` is null unless asked for.
  std::function<void(int32_t token, const TokenLogprobs* logprobs)> on_token = {};
  std::function<bool(std::string_view text)> on_text;  ///< Streamed text; return false to stop. May be empty.
  std::function<void(const Generation& generation)> on_finish = {};  ///< Called once. May be empty.
};

using RequestId = uint64_t;

/// Counts since the engine was loaded, and what is going on now.
struct EngineStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t finished = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  ///< Read, recomputed ones included.
  int64_t reused_tokens = 0;  ///< Found in the prefix cache.
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t base_pages_used = 0, base_pages = 0;
  int64_t exact_pages_used = 0, exact_pages = 0;
  int64_t prefix_blocks = 0;
  int64_t graph_replays = 0;  ///< Passes that ran as captured graphs.
  int64_t graph_misses = 0;   ///< Passes of decode rows that did not.
  /// Drafts verified, and accepted, at each place of a block.
  std::vector<int64_t> drafted, accepted;
};

/// How a chat template has the model write calls of tools.
enum class ToolCallStyle : uint8_t {
  kNone,    ///< The template knows no tools.
  kTagged,  ///< <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them
  kBare,    ///< {"name": ..., "parameters": {...}} as the whole answer
  kListed,  ///< [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
};

/// What the engine chose: printed in one line, never guessed by users.
struct EngineFacts {
  std::string architecture;
  std::string model_name;
  std::string kv_format;                ///< Effective SPEC in canonical form.
  double kv_bytes_per_token = 0;        ///< All layers, base format.
  double kv_bytes_per_token_16bit = 0;  ///< What bf16 would take.
  std::string
      kv_scale_source;  ///< "profile 1f2e... (self-calibrated, 998 tokens)", "checkpoint", "none", "1.0 (plain)"
  std::string route;    ///< Attention kernel route(s).
  std::string device;
  std::string weights;
  int32_t threads = 0;
  int32_t context = 0;
  int32_t longest_request =
      0;                   ///< Tokens of a prompt and its answer: the context, or less when the KV budget is small.
  int32_t vocabulary = 0;  ///< Token ids are below it.
  int32_t num_layers = 0;
  int32_t max_sequences = 0;  ///< Fewer than asked for when the KV budget holds no more.
  std::string kv_memory;      ///< What the KV cache may take, with its arithmetic.
  ToolCallStyle tool_calls = ToolCallStyle::kNone;
};

struct ChatTurn {
  std::string role;
  std::string content;
  std::string tool_calls = {};    ///< JSON array as OpenAI's API has it, arguments as objects; empty = none.
  std::string tool_call_id = {};  ///< Of a tool's answer.
  std::string name = {};
};

/// One loaded model that serves requests.
///
/// Requests wait in a queue until `step` runs them, many in one batch. The engine has no thread of its own: a program
/// calls `generate`, or one of its threads loops
///     while (running) { if (!engine.step()) engine.wait_for_work(timeout); }
/// `submit`, `cancel`, `wait_for_work`, `stats` and the const members may be called from any thread at any time, from
/// callbacks too. `step` and `generate` are for one thread at a time and not for callbacks. Callbacks run inside
/// `step`, on its thread; they should be quick. What a request owns is freed after its on_finish has returned. An
/// engine that is destroyed cancels what it still has, and calls on_finish for it.
class Engine {
 public:
  /// Validates everything that can be validated before any weight is read.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const EngineFacts& facts() const = 0;

  /// Plain prompt to ids, BOS added if the model asks for it.
  virtual Result<std::vector<int32_t>> encode_prompt(std::string_view text) const = 0;
  /// A conversation through the model's chat template, with the generation prompt. `tools` is a JSON array of
  /// definitions as OpenAI's API has them, or empty.
  virtual Result<std::vector<int32_t>> encode_chat(std::span<const ChatTurn> turns,
                                                   std::string_view tools = {}) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Text to ids as it stands: no BOS, no special tokens.
  virtual std::vector<int32_t> tokenize(std::string_view text) const = 0;
  /// Bytes of one token, not always valid UTF-8; those of control tokens are their names. Empty for unknown ids.
  virtual std::string token_bytes(int32_t id) const = 0;

  /// Queues a request. Refuses at once what can never run, such as a prompt that the cache cannot hold.
  virtual Result<RequestId> submit(GenerateRequest request) = 0;
  /// Ends a request at the next step; unknown and finished ids are ignored.
  virtual void cancel(RequestId id) = 0;
  /// One batch: admits waiting requests, runs a chunk of prompts and a token or a draft block of every other request.
  /// False when there was nothing to do. What fails ends the requests concerned, with their status.
  virtual bool step() = 0;
  /// Returns true as soon as there is a request to run, false after the timeout.
  virtual bool wait_for_work(std::chrono::milliseconds timeout) = 0;
  virtual EngineStats stats() const = 0;

  /// Submits one request and steps until it has finished; others make progress meanwhile.
  virtual Result<Generation> generate(const GenerateRequest& request) = 0;
};

}  // namespace kvant::engine
