#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "server/engine_host.h"

namespace kvant::server {

/// Responses per endpoint and status. Thread-safe.
class ResponseCounts {
 public:
  using Counts = std::map<std::pair<std::string, int>, int64_t>;

  void add(const std::string& endpoint, int status);
  Counts get() const;

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

/// Everything that is counted, as Prometheus reads it (text format 0.0.4). Without an engine only what is known then.
std::string metrics_text(const EngineHost& host, const ResponseCounts& responses);

}  // namespace kvant::server
