#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/cache/kv_cache_set.h"
#include "engine/cache/kv_pools.h"
#include "engine/cache/profile.h"
#include "engine/models/model_files.h"
#include "engine/runner/runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "kvant/core/status.h"
#include "kvant/core/thread_pool.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

struct LoadOptions {
  std::filesystem::path model;
  std::string kv_profile = "auto";  ///< As EngineOptions::kv_profile.
  DeviceChoice device = DeviceChoice::kCpu;
  WeightFormat weights = WeightFormat::kAuto;
  int32_t threads = 0;
  int32_t context = 0;           ///< Longest sequence; 0 = the model's limit.
  int32_t max_requests = 1;      ///< Sequences of one cache in a batch.
  int32_t max_batch_tokens = 0;  ///< 0 = a good size for prompts.
  int32_t page_size = 16;
  std::filesystem::path cache_dir;
  ProgressFn progress;
  NoticeFn notice;
  std::string kv_layers;         ///< As EngineOptions::kv_layers.
  std::vector<attn::KvSpec> kv;  ///< Specs that will be asked for: checked against the model before weights are read.
};

/// Two grid cells: prompt rows of one sequence fill a cell at most, and larger batches gain nothing on a CPU.
inline constexpr int32_t kDefaultBatchTokens = 2 * attn::kPrefillGrid;

/// What a cache is wanted for.
struct CacheRequest {
  int32_t max_sequences = 1;
  int32_t max_tokens = 0;   ///< Per sequence.
  int64_t pool_tokens = 0;  ///< Of all sequences together; 0 = max_sequences * max_tokens.
  bool prefix_cache = false;
  bool batch_invariant = false;
};

/// A model ready to run: tokenizer, weights, thread pool, and KV profiles on demand. What Engine, `eval` and `bench`
/// share.
class LoadedModel {
 public:
  static Result<std::unique_ptr<LoadedModel>> load(const LoadOptions& options);
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const ModelFiles& files() const;
  /// The text of the chat template; nothing when the model has none.
  Result<std::optional<std::string>> chat_template() const;
  const ModelConfig& config() const;
  const std::string& hash() const;
  const Tokenizer& tokenizer() const;
  Runner& runner();
  ThreadPool& pool();
  int32_t context() const;

  /// A cache under a spec, `auto` included, with a profile if the spec wants one: the user's, a stored one, or one made
  /// now, once.
  Result<std::unique_ptr<KvCacheSet>> create_cache(const attn::KvSpec& spec, const CacheRequest& request);
  /// What a memory budget buys of such a cache.
  Result<KvBudget> plan_cache(const attn::KvSpec& spec, const CacheRequest& request, const KvMemory& memory) const;
  /// KvCacheSet::scale_source with how the profile came about.
  std::string describe_scales(const KvCacheSet& cache) const;

 private:
  struct Impl;
  explicit LoadedModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant::engine
