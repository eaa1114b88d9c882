#pragma once

#include "engine/loaded_model.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::engine {

struct KvQualityOptions {
  std::vector<attn::KvSpec> specs;
  int32_t context = 512;
  int32_t chunks = 6;
  ProgressFn progress;
};

/// How far one cache encoding moves the model's predictions from those with an f16 cache.
struct KvQualityRow {
  std::string kv;            ///< The SPEC as given.
  std::string policy;        ///< Scale policy; "none" when no plane is NVFP4.
  std::string conditioning;  ///< "none", "mean" or "full".
  std::string edges;         ///< "16,32" or "none".
  double ppl = 0.0;
  double kld_mean = 0.0;  ///< Nats per token.
  double kld_p99 = 0.0;
  double top1_agreement = 0.0;   ///< Share of scored tokens with the baseline's most likely token, 0 to 1.
  double base_bits = 0.0;        ///< Per element of the base format, block scales included.
  double effective_bits = 0.0;   ///< Per element at this context, exact tokens included.
  double bytes_per_token = 0.0;  ///< All layers, base format.
};

struct KvQualityReport {
  std::string model;
  std::string weights;
  int64_t text_tokens = 0;
  int32_t context = 0;
  int32_t chunks = 0;
  int64_t scored_tokens = 0;
  double baseline_ppl = 0.0;
  double baseline_bytes_per_token = 0.0;
  std::vector<KvQualityRow> rows;  ///< In the order of the specs.
};

/// Sets what a model must be loaded with for a measurement: sequence length, sequences at once, specs to check.
void set_load_options(const KvQualityOptions& options, LoadOptions& load);

/// Tokenises `text` whole and cuts it into `chunks` pieces of `context` tokens, each of which begins with BOS where the
/// model's tokenizer asks for it. Every token is fed as a
/// decode step, the chunks as parallel sequences, all specs and the baseline in lock step, so that each scored token
/// sees the cache that decoding would have left. The second half of every chunk is scored.
Result<KvQualityReport> measure_kv_quality(LoadedModel& model, std::string_view text, const KvQualityOptions& options);

std::string to_json(const KvQualityReport& report);
/// Aligned text for a terminal.
std::string to_table(const KvQualityReport& report);
/// A self-contained plot of mean KLD (log scale) against bytes per token.
std::string to_svg(const KvQualityReport& report);

}  // namespace kvant::engine
