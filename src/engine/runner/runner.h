#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/cache/kv_cache_set.h"
#include "engine/models/model_source.h"
#include "engine/runner/graph_cache.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"
#include "kvant/engine/engine.h"
#include "kvant/engine/model_config.h"
#include "ops/draw.h"

namespace kvant::engine {

enum class LogitsWanted : uint8_t { kNone, kLast, kAll };

/// One sequence's tokens in a forward pass. Rows of several cache sets may share a pass: linear layers see them all in
/// one batch, attention runs per cache set.
struct BatchRow {
  KvCacheSet* cache = nullptr;
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;
  RowPhase phase = RowPhase::kDecode;
  LogitsWanted logits = LogitsWanted::kLast;
  /// In place of logits: receives a token drawn for each wanted row. No logits leave the device then, and the row has
  /// no part in `logits`.
  int32_t* drawn = nullptr;
  /// How, with the step of the first wanted row; the next ones follow.
  ops::Draw draw = {};
  /// What is changed of the logits of each wanted row before its token is drawn; empty = nothing. All rows of a batch
  /// together: at most ops::kMaxLogitChanges.
  std::span<const std::span<const ops::LogitChange>> changes = {};
  /// With `drawn`: receives log probabilities for each wanted row, as draw.alternatives says. Null = none.
  ops::DrawnLogprobs* logprobs = nullptr;
};

struct RunnerOptions {
  WeightFormat weights = WeightFormat::kAuto;
  int32_t max_batch_tokens = 512;  ///< Rows of one pass through the layers; longer batches are cut.
  int32_t max_requests = 1;        ///< Rows (sequences) of one cache set in a batch.
  int32_t max_context = 0;         ///< Longest sequence of any cache; 0 = the model's limit.
  bool cuda = false;               ///< On the first CUDA device, else on the CPU.
  ProgressFn progress;
};

/// Sees what every layer is about to write and ask, for calibration. Pointers are valid during the call.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// q [num_tokens, num_q_heads, head_dim_k], k and v with token strides in elements; q and k after RoPE.
  virtual void observe(int32_t layer, int64_t num_tokens, const float* q, const float* k, int64_t k_token_stride,
                       const float* v, int64_t v_token_stride) = 0;
};

/// Owns the weights of a model and runs batches of tokens through it. Memory is sized at construction: a forward pass
/// allocates nothing once each kind of batch has been seen. Not thread-safe.
class Runner {
 public:
  /// Reads the weights. `pool` must outlive the runner.
  static Result<std::unique_ptr<Runner>> create(ModelSource source, const RunnerOptions& options, ThreadPool& pool);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const ModelConfig& config() const;
  /// Name of the weight format in use.
  std::string_view weights() const;
  int64_t weight_bytes() const;
  /// Where passes run, and where the thread pool runs what is done in host memory.
  Stream stream() const;
  Stream host_stream() const;
  /// Longest sequence of any cache.
  int32_t max_context() const;

  /// A cache for this model, within this runner's batch limits.
  Result<std::unique_ptr<KvCacheSet>> create_cache(const KvCacheOptions& options);

  /// Runs a batch. Prompt rows are cut at the prefill grid where their cache has exact edges, so any chunking of a
  /// prompt gives the same result. `logits` receives [wanted rows, vocabulary], in the order of the batch; it may be
  /// null when none are wanted. On CUDA batches of decode rows replay captured graphs. A sequence may occur once per
  /// batch. After a failure the sequences of the batch must be removed.
  Status forward(std::span<const BatchRow> rows, float* logits);

  /// Passes that ran as captured graphs, and why others did not. All 0 on the CPU.
  const GraphStats& graph_stats() const;

  /// For measurements alone.
  void set_parts(PassParts parts);

  /// Null = none. Not owned.
  void set_observer(LayerObserver* observer);

 private:
  struct Impl;
  explicit Runner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant::engine
