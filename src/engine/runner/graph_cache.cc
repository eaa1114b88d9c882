#include "engine/runner/graph_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvant::engine {
namespace {

constexpr size_t kMaxGraphs = 256;

int32_t round_up(int32_t value, int32_t step) { return (value + step - 1) / step * step; }

int32_t padded_requests(int32_t requests) {
  for (const int32_t few : {1, 2, 4, 8})
    if (requests <= few) return few;
  if (requests <= 64) return round_up(requests, 8);
  return round_up(requests, requests <= 256 ? 16 : 32);
}

int32_t padded_query_len(int32_t query_len) {
  if (query_len <= 6) return query_len;
  return query_len <= 8 ? 8 : round_up(query_len, 4);
}

}  // namespace

std::string_view to_string(GraphMiss reason) {
  switch (reason) {
    case GraphMiss::kPrompt: return "prompt rows";
    case GraphMiss::kFirstOfShape: return "first of its shape";
    case GraphMiss::kTooManyRows: return "too many rows";
    case GraphMiss::kSeveralCaches: return "several caches";
    case GraphMiss::kUnevenAgeing: return "more ageing pages than requests";
    case GraphMiss::kObserved: return "calibration";
  }
  return "?";
}

int64_t GraphStats::decode_misses() const {
  int64_t count = 0;
  for (size_t reason = 0; reason < kNumGraphMisses; ++reason)
    if (static_cast<GraphMiss>(reason) != GraphMiss::kPrompt) count += misses[reason];
  return count;
}

StepPadding graph_padding(int32_t num_requests, int32_t max_query_len, int32_t max_requests) {
  const int32_t requests = std::min(max_requests, padded_requests(num_requests));
  return {.num_requests = requests, .num_tokens = requests * padded_query_len(max_query_len)};
}

const CudaGraph* GraphCache::find(const Key& key) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) return nullptr;
  found->second.last_use = ++uses_;
  return &found->second.graph;
}

void GraphCache::insert(const Key& key, CudaGraph graph) {
  if (graphs_.size() >= kMaxGraphs) {
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    });
    stats_.bytes -= oldest->second.graph.bytes();
    graphs_.erase(oldest);
  }
  ++stats_.captured;
  stats_.bytes += graph.bytes();
  graphs_.insert_or_assign(key, Entry{.graph = std::move(graph), .last_use = ++uses_});
}

}  // namespace kvant::engine
