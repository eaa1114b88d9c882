#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/cache/kv_cache_set.h"
#include "engine/runner/runner.h"
#include "engine/speculation/drafter.h"

namespace kvant::engine {

/// Drafts with a small model of the same vocabulary, all sequences in one batch. Its cache has 16 bits and follows the
/// sequences: what differs from the last time is cut off, what is new is read.
class ModelDrafter final : public Drafter {
 public:
  /// `runner` must outlive the drafter. `cache` has no exact edges and room for every sequence that is drafted for.
  ModelDrafter(Runner& runner, std::unique_ptr<KvCacheSet> cache);

  Status propose(std::span<const DraftRequest> requests) override;
  void forget(uint64_t sequence) override;

 private:
  struct Follower {
    SequenceId id = -1;
    std::vector<int32_t> tokens;  ///< In the cache.
  };
  /// A request that still wants drafts.
  struct Active {
    const DraftRequest* request = nullptr;
    Follower* follower = nullptr;
    ops::Sampler sampler;
    std::vector<int32_t> tokens;  ///< Sequence and drafts so far.
  };
  Status start(const DraftRequest& request);
  Status run_step();
  void draw(Active& active, std::span<float> logits);

  Runner& runner_;
  std::unique_ptr<KvCacheSet> cache_;
  std::unordered_map<uint64_t, Follower> followers_;
  std::vector<Active> active_;
  std::vector<BatchRow> rows_;
  std::vector<float> logits_;
};

}  // namespace kvant::engine
