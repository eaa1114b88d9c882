#include "serving_options.h"

#include <algorithm>

namespace kvant::cli {

void add_serving_options(CLI::App& app, ServingOptions& options) {
  app.add_option("--kv-memory", options.kv_memory,
                 "KV cache of all requests: auto, bytes (2GiB), tokens (40000t) or a fraction of the free memory (0.8)")
      ->capture_default_str()
      ->type_name("SIZE");
  app.add_option("--speculate", options.speculate,
                 "Guess tokens ahead: none, ngram:K (from the text so far) or draft:MODEL:K (by a small model); K at "
                 "most at once")
      ->capture_default_str()
      ->type_name("HOW");
  app.add_flag("--no-prefix-cache", options.no_prefix_cache, "Do not reuse the cache of prompts that start alike");
  app.add_flag("--batch-invariant", options.batch_invariant,
               "Tokens do not depend on what runs at the same time, to the last bit; slower");
}

Status apply_serving_options(const ServingOptions& options, engine::EngineOptions& out) {
  out.max_sequences = std::max(1, options.parallel);
  KVANT_ASSIGN_OR_RETURN(out.kv_memory, engine::parse_kv_memory(options.kv_memory));
  KVANT_ASSIGN_OR_RETURN(out.speculation, engine::parse_speculation(options.speculate));
  out.prefix_cache = !options.no_prefix_cache;
  out.batch_invariant = options.batch_invariant;
  return {};
}

}  // namespace kvant::cli
