#pragma once

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
  kBf16,  ///< Needs a CPU with bf16 instructions.
  kInt8,  ///< Per output channel; activations are quantised per row on the fly.
};
std::string_view to_string(WeightFormat format);
Result<WeightFormat> parse_weight_format(std::string_view name);

/// `done` of `total` units of a long step; total 0 = unknown.
using ProgressFn = std::function<void(std::string_view step, int64_t done, int64_t total)>;

/// A one-line message for people, such as "made a KV profile ...".
using NoticeFn = std::function<void(std::string_view text)>;

struct EngineOptions {
  std::filesystem::path model;  ///< GGUF file
  attn::KvSpec kv;              ///< From parse_kv_spec.
  /// "auto": the profile of this model from the cache directory, made by self-calibration when missing and needed;
  /// "none"; or a profile file.
  std::string kv_profile = "auto";
  WeightFormat weights = WeightFormat::kAuto;
  int32_t threads = 0;        ///< 0 = all cores.
  int32_t context = 0;        ///< Tokens a sequence may hold; 0 = the model's limit.
  int32_t max_sequences = 1;  ///< Sequences alive at once.
  int32_t page_size = 16;
  std::filesystem::path cache_dir;  ///< Empty = $KVANT_CACHE_DIR, else $XDG_CACHE_HOME/kvant, else ~/.cache/kvant.
  ProgressFn progress;
  NoticeFn notice;
};

struct SamplingParams {
  float temperature = 0.0f;  ///< 0 = greedy.
  int32_t top_k = 0;         ///< 0 = off.
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
};

enum class FinishReason : uint8_t { kStop, kLength };
std::string_view to_string(FinishReason reason);

struct Generation {
  std::string text;
  std::vector<int32_t> token_ids;  ///< Without the end-of-turn token.
  FinishReason finish_reason = FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t reused_tokens = 0;  ///< Of the prompt, already in the cache.
  double prompt_seconds = 0.0;
  double generation_seconds = 0.0;
};

struct GenerateRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int32_t max_tokens = 256;
  std::vector<std::string> stop;
  bool ignore_end_of_turn = false;
  std::function<bool(std::string_view text)> on_text;  ///< Streamed text; return false to stop. May be empty.
};

/// What the engine chose: printed in one line, never guessed by users.
struct EngineFacts {
  std::string architecture;
  std::string model_name;
  std::string kv_format;          ///< Effective SPEC in canonical form.
  double kv_bytes_per_token = 0;  ///< All layers, base format.
  std::string
      kv_scale_source;  ///< "profile 1f2e... (self-calibrated, 998 tokens)", "checkpoint", "none", "1.0 (plain)"
  std::string route;    ///< Attention kernel route(s).
  std::string device;
  std::string weights;
  int32_t threads = 0;
  int32_t context = 0;
  int32_t num_layers = 0;
};

struct ChatTurn {
  std::string role;
  std::string content;
};

/// One loaded model that serves sequences. Not thread-safe.
class Engine {
 public:
  /// Validates everything that can be validated before any weight is read.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const EngineFacts& facts() const = 0;

  /// Plain prompt to ids, BOS added if the model asks for it.
  virtual Result<std::vector<int32_t>> encode_prompt(std::string_view text) const = 0;
  /// A conversation through the model's chat template, with the generation prompt.
  virtual Result<std::vector<int32_t>> encode_chat(std::span<const ChatTurn> turns) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// Generates in the engine's one interactive sequence; the longest common prefix with what is cached is reused.
  virtual Result<Generation> generate(const GenerateRequest& request) = 0;
};

}  // namespace kvant::engine
