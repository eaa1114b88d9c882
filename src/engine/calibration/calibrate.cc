#include "engine/calibration/calibrate.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/calibration/key_statistics.h"

namespace kvant::engine {
namespace {

/// Error of attention scores, in nats, from which a layer is named. Models whose NVFP4 caches do well stay below a
/// quarter or so of it.
constexpr float kRoughScores = 1.0f;

/// Unhooks the observer on every way out.
class ObserverGuard {
 public:
  ObserverGuard(Runner& runner, LayerObserver& observer) : runner_(runner) { runner_.set_observer(&observer); }
  ~ObserverGuard() { runner_.set_observer(nullptr); }
  ObserverGuard(const ObserverGuard&) = delete;
  ObserverGuard& operator=(const ObserverGuard&) = delete;

 private:
  Runner& runner_;
};

bool all_finite(const KvProfile& profile) {
  const auto finite = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  };
  return std::all_of(profile.layers.begin(), profile.layers.end(), [&](const LayerProfile& layer) {
    return finite(layer.mu) && finite(layer.z) && finite(layer.zi) && finite(layer.g_v) &&
           std::all_of(std::begin(layer.g_k), std::end(layer.g_k), finite);
  });
}

}  // namespace

Result<KvProfile> calibrate(Runner& runner, std::span<const int32_t> tokens, int32_t context,
                            std::string_view model_hash, const ProgressFn& progress, std::vector<float>* score_noise) {
  if (tokens.empty() || context < 1)
    return failure(StatusCode::kInvalidArgument, "calibration needs a text of at least one token");
  attn::KvSpec spec;
  spec.k_format = spec.v_format = attn::KvFormat::kBf16;
  KVANT_ASSIGN_OR_FAIL(const std::unique_ptr<KvCacheSet> cache,
                       runner.create_cache({.spec = spec, .max_tokens = context, .profile = nullptr}));
  KeyStatistics statistics(runner.config(), std::ssize(tokens));
  const ObserverGuard guard(runner, statistics);
  const int64_t total = std::ssize(tokens);
  for (int64_t done = 0; done < total;) {
    if (progress) progress("calibrating the KV cache", done, total);
    const auto chunk =
        tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(std::min<int64_t>(context, total - done)));
    KVANT_ASSIGN_OR_FAIL(const SequenceId sequence, cache->add_sequence());
    const BatchRow row{.cache = cache.get(),
                       .sequence = sequence,
                       .tokens = chunk,
                       .phase = RowPhase::kPrefill,
                       .logits = LogitsWanted::kNone};
    KVANT_FAIL_IF_ERROR(runner.forward({&row, 1}, nullptr));
    cache->remove_sequence(sequence);
    done += std::ssize(chunk);
  }
  if (progress) progress("calibrating the KV cache", total, total);
  KVANT_ASSIGN_OR_FAIL(KvProfile profile, statistics.finish(runner.host_stream()));
  if (!all_finite(profile))
    return failure(StatusCode::kDataLoss,
                   "calibration met keys or values that are not finite; the model's weights are broken");
  profile.model_hash = model_hash;
  profile.tokens = static_cast<int32_t>(total);
  profile.context = std::min(context, static_cast<int32_t>(total));
  profile.id = profile_id(profile);
  if (score_noise != nullptr) {
    KVANT_ASSIGN_OR_FAIL(*score_noise, statistics.score_noise(profile, runner.host_stream()));
  }
  return profile;
}

std::string describe_rough_layers(std::span<const float> score_noise) {
  std::vector<size_t> layers;
  float most = 0.0f;
  for (size_t i = 0; i < score_noise.size(); ++i) {
    most = std::max(most, score_noise[i]);
    if (score_noise[i] > kRoughScores) layers.push_back(i);
  }
  if (layers.empty()) return {};
  const std::string list = fmt::format("{}", fmt::join(layers, ","));
  return fmt::format(
      "conditioning does not tame the keys of layer{} {}: NVFP4 moves their attention scores by up to "
      "{:.2f}; --kv-layers \"{}=bf16;*=nvfp4\" keeps them exact",
      layers.size() == 1 ? "" : "s", list, most, list);
}

}  // namespace kvant::engine
