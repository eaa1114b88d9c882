#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "core/cuda_graph.h"
#include "engine/cache/kv_cache_set.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant::engine {

/// Why a pass did not replay a captured graph.
enum class GraphMiss : uint8_t {
  kPrompt,         ///< It holds prompt rows: their lengths differ from pass to pass.
  kFirstOfShape,   ///< It was run call by call, then captured.
  kTooManyRows,    ///< More rows than captured passes may have.
  kSeveralCaches,  ///< Its rows belong to several cache sets.
  kUnevenAgeing,   ///< More pages age than there are requests.
  kObserved,       ///< Calibration looks at every layer.
};
inline constexpr size_t kNumGraphMisses = 6;
std::string_view to_string(GraphMiss reason);

struct GraphStats {
  int64_t replayed = 0;
  int64_t captured = 0;
  int64_t bytes = 0;  ///< Device memory of the graphs.
  std::array<int64_t, kNumGraphMisses> misses{};

  /// Passes of decode rows alone that did not replay.
  int64_t decode_misses() const;
};

/// What of a pass is run, to measure its parts. Results are of use with kAll alone.
enum class PassParts : uint8_t {
  kAll,
  kProducts,   ///< Matrix products.
  kAttention,  ///< Cache writes, ageing, attention.
  kNothing,    ///< Neither, nor what lies between them: what a pass costs by itself.
};

/// What beside the draw itself is done to logits in a pass.
struct DrawParts {
  bool changes = false;   ///< Biases and penalties.
  bool logprobs = false;  ///< Log probabilities of drawn tokens.

  friend auto operator<=>(const DrawParts&, const DrawParts&) = default;
};

/// Requests and rows per request that a pass of decode rows is padded to: few sizes, so that few graphs serve all.
StepPadding graph_padding(int32_t num_requests, int32_t max_query_len, int32_t max_requests);

/// Captured passes of one decoder, by cache set and shape. The least recently used one goes when there are too many.
class GraphCache {
 public:
  struct Key {
    uint64_t cache = 0;  ///< KvCacheSet::id
    StepShape shape;
    PassParts parts = PassParts::kAll;
    DrawParts draw_parts = {};

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  /// The graph of a shape, or null.
  const CudaGraph* find(const Key& key);
  /// Records what `calls` puts on the stream.
  template <class Calls>
  Status capture(const Key& key, Stream stream, const Calls& calls) {
    KVANT_RETURN_IF_ERROR(CudaGraph::begin(stream));
    const Status status = calls();
    Result<CudaGraph> graph = CudaGraph::finish(stream);
    KVANT_RETURN_IF_ERROR(status);
    KVANT_RETURN_IF_ERROR(graph);
    insert(key, *std::move(graph));
    return {};
  }
  void note_miss(GraphMiss reason) { ++stats_.misses[static_cast<size_t>(reason)]; }
  void note_replay() { ++stats_.replayed; }
  const GraphStats& stats() const { return stats_; }

 private:
  struct Entry {
    CudaGraph graph;
    uint64_t last_use = 0;
  };
  void insert(const Key& key, CudaGraph graph);

  std::map<Key, Entry> graphs_;
  uint64_t uses_ = 0;
  GraphStats stats_;
};

}  // namespace kvant::engine
