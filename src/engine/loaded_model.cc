#include "engine/loaded_model.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/device_memory.h"
#include "engine/calibration/calibrate.h"
#include "engine/calibration/profile_store.h"
#include "engine/check_kv.h"
#include "engine/models/checkpoint_kv.h"
#include "engine/models/model_source.h"
#include "engine/text_chunks.h"
#include "engine/tokenizer/folder_chat_template.h"
#include "kvant/core/device.h"

namespace kvant::engine {
namespace {

Status check_context(int32_t context, const ModelConfig& config) {
  if (context >= 0 && context <= config.context_limit) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("a context of {} tokens is outside the model's limit; 1 to {} (0 = that limit) is needed",
                      context, config.context_limit)};
}

Result<DeviceInfo> choose_device(DeviceChoice choice, WeightFormat weights) {
  // Who names a format that only the CPU has means the CPU.
  const bool cpu_weights = weights == WeightFormat::kF32 || weights == WeightFormat::kInt8;
  if (choice == DeviceChoice::kCpu || (choice == DeviceChoice::kAuto && cpu_weights)) return cpu_device();
  std::vector<DeviceInfo> devices = cuda_devices();
  if (!devices.empty()) return std::move(devices.front());
  if (choice == DeviceChoice::kAuto) return cpu_device();
  return failure(StatusCode::kUnsupported, "no CUDA device was found; use --device cpu");
}

Result<Tokenizer> open_tokenizer(const ModelFiles& files) {
  if (files.gguf != nullptr) return Tokenizer::from_gguf(*files.gguf);
  return Tokenizer::from_folder(files.folder->path);
}

}  // namespace

struct LoadedModel::Impl {
  LoadOptions options;
  ModelFiles files;
  std::string hash;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Runner> runner;
  std::shared_ptr<const KvProfile> profile;
  std::string profile_origin;
  std::shared_ptr<const CheckpointKv> kv;
  std::set<std::string> told;  ///< Notices about scales, each given once.

  bool profile_is_asked() const { return options.kv_profile != "auto" && options.kv_profile != "none"; }
  bool has_scales() const { return kv != nullptr && kv->scales != nullptr; }
  /// What a spec means for this model, or why it has no place in it.
  Result<attn::KvSpec> resolve(const attn::KvSpec& spec, const ModelConfig& config) const;
  Status set_layer_specs(ModelConfig& config) const;
  void tell_about_scales(const KvCacheSet& cache);
  void tell_once(const std::string& text) {
    if (told.insert(text).second) notify(text);
  }

  Status load_explicit_profile(const ModelConfig& config);
  Result<std::shared_ptr<const KvProfile>> automatic_profile();
  void notify(std::string_view text) const {
    if (options.notice) options.notice(text);
  }
};

Status LoadedModel::Impl::load_explicit_profile(const ModelConfig& config) {
  if (!profile_is_asked()) return {};
  KVANT_ASSIGN_OR_RETURN(KvProfile loaded, load_profile(options.kv_profile));
  KVANT_RETURN_IF_ERROR(loaded.check_shapes(config));
  if (loaded.model_hash != hash) {
    notify(
        fmt::format("KV profile {} was made from another file ({}) than this model ({}); its shapes fit and it is used",
                    loaded.id, loaded.model_hash, hash));
  }
  profile = std::make_shared<const KvProfile>(std::move(loaded));
  profile_origin = options.kv_profile;
  return {};
}

Result<std::shared_ptr<const KvProfile>> LoadedModel::Impl::automatic_profile() {
  const ProfileStore store(options.cache_dir, options.notice);
  if (auto stored = store.find(hash, runner->config())) {
    profile_origin = "self-calibrated";
    return std::make_shared<const KvProfile>(*std::move(stored));
  }
  const int32_t context = std::min(kCalibrationContext, runner->max_context());
  std::vector<int32_t> tokens = encode_chunks(*tokenizer, neutral_text(), context);
  tokens.resize(std::min<size_t>(tokens.size(), kCalibrationTokens));
  std::vector<float> score_noise;
  KVANT_ASSIGN_OR_FAIL(KvProfile made, calibrate(*runner, tokens, context, hash, options.progress, &score_noise));
  notify(fmt::format("made KV profile {} of this model from {} tokens of a built-in text", made.id, made.tokens));
  if (const std::string rough = describe_rough_layers(score_noise); !rough.empty()) notify(rough);
  store.keep(made);
  profile_origin = "self-calibrated";
  return std::make_shared<const KvProfile>(std::move(made));
}

Result<attn::KvSpec> LoadedModel::Impl::resolve(const attn::KvSpec& spec, const ModelConfig& config) const {
  KVANT_ASSIGN_OR_FAIL(const attn::KvSpec resolved,
                       resolve_checkpoint_spec(spec, config, kv.get(), profile_is_asked()));
  KVANT_FAIL_IF_ERROR(check_checkpoint_spec(resolved, kv.get()));
  return resolved;
}

Status LoadedModel::Impl::set_layer_specs(ModelConfig& config) const {
  const bool is_auto = !options.kv.empty() && std::all_of(options.kv.begin(), options.kv.end(),
                                                          [](const attn::KvSpec& spec) { return spec.automatic; });
  KVANT_ASSIGN_OR_RETURN(const auto specs, layer_specs(options.kv_layers, is_auto, config, kv.get()));
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i]) continue;
    KVANT_ASSIGN_OR_RETURN(config.layers[i].kv_override, resolve(*specs[i], config));
  }
  return {};
}

/// Says what became of the checkpoint's scales, from what is in effect.
void LoadedModel::Impl::tell_about_scales(const KvCacheSet& cache) {
  if (kv == nullptr) return;
  if (!has_scales()) {
    if (kv->quantisation.kv_format && cache.spec().quantised() && cache.scale_source() == "1.0")
      tell_once(fmt::format("{} declares a KV cache of {}, but the checkpoint holds no scales; 1.0 is used",
                            kv->quantisation.source, attn::to_string(*kv->quantisation.kv_format)));
    return;
  }
  const int32_t used = cache.num_checkpoint_scales(), found = kv->scales->num_tensors();
  std::string line = fmt::format("KV scales: {} of {} used, from the checkpoint", used, found);
  if (used == 0 && cache.uses_profile())
    line = fmt::format("KV scales: 0 of {} used: those of the profile are in effect", found);
  else if (used == 0)
    line = fmt::format("KV scales: 0 of {} used: a cache in {} has none", found, cache.format());
  if (kv->num_query_scales > 0)
    line += fmt::format("; {} scales of queries are not needed, which stay in 16 bit", kv->num_query_scales);
  tell_once(line);
  if (used > 0)
    for (const std::string& notice : kv->notices) tell_once(notice);
}

LoadedModel::LoadedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadedModel::~LoadedModel() = default;

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const LoadOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  KVANT_ASSIGN_OR_FAIL(impl->files, ModelFiles::open(options.model));
  KVANT_ASSIGN_OR_FAIL(ModelSource source, impl->files.open_model());
  impl->hash = source.hash;
  KVANT_FAIL_IF_ERROR(check_context(options.context, source.config));
  if (impl->options.context == 0) impl->options.context = source.config.context_limit;
  KVANT_ASSIGN_OR_FAIL(const DeviceInfo device, choose_device(options.device, options.weights));
  impl->kv = source.kv;
  KVANT_FAIL_IF_ERROR(impl->set_layer_specs(source.config));
  for (const attn::KvSpec& spec : options.kv) {
    KVANT_ASSIGN_OR_FAIL(const attn::KvSpec resolved, impl->resolve(spec, source.config));
    KVANT_FAIL_IF_ERROR(check_kv_spec(resolved, source.config, device,
                                      {.page_size = options.page_size,
                                       .max_requests = options.max_requests,
                                       .max_batch_tokens = kDefaultBatchTokens,
                                       .has_profile = options.kv_profile != "none"}));
  }
  KVANT_FAIL_IF_ERROR(impl->load_explicit_profile(source.config));
  KVANT_ASSIGN_OR_FAIL(Tokenizer tokenizer, open_tokenizer(impl->files));
  if (tokenizer.vocabulary_size() > source.config.vocabulary_size) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: the tokenizer has {} tokens, the embedding only {} rows", impl->files.name,
                               tokenizer.vocabulary_size(), source.config.vocabulary_size));
  }
  impl->tokenizer.emplace(std::move(tokenizer));
  impl->pool = std::make_unique<ThreadPool>(options.threads);
  const int32_t batch_tokens = options.max_batch_tokens > 0 ? options.max_batch_tokens : kDefaultBatchTokens;
  // Whoever asks for a short context first must not leave a profile of short chunks to everybody after.
  const int32_t runner_context =
      std::max(impl->options.context, std::min(kCalibrationContext, source.config.context_limit));
  KVANT_ASSIGN_OR_FAIL(impl->runner, Runner::create(std::move(source),
                                                    {.weights = options.weights,
                                                     .max_batch_tokens = batch_tokens,
                                                     .max_requests = options.max_requests,
                                                     .max_context = runner_context,
                                                     .cuda = device.family != DeviceFamily::kCpu,
                                                     .progress = options.progress},
                                                    *impl->pool));
  return std::unique_ptr<LoadedModel>(new LoadedModel(std::move(impl)));
}

const ModelFiles& LoadedModel::files() const { return impl_->files; }
Result<std::optional<std::string>> LoadedModel::chat_template() const {
  const ModelFiles& files = impl_->files;
  if (files.gguf == nullptr) return read_folder_chat_template(files.folder->path);
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (!files.gguf->contains(kKey)) return std::optional<std::string>();
  return files.gguf->get_string(kKey).map([](std::string text) { return std::optional(std::move(text)); });
}
const ModelConfig& LoadedModel::config() const { return impl_->runner->config(); }
const std::string& LoadedModel::hash() const { return impl_->hash; }
const Tokenizer& LoadedModel::tokenizer() const { return *impl_->tokenizer; }
Runner& LoadedModel::runner() { return *impl_->runner; }
ThreadPool& LoadedModel::pool() { return *impl_->pool; }
int32_t LoadedModel::context() const { return impl_->options.context; }

Result<KvBudget> LoadedModel::plan_cache(const attn::KvSpec& spec, const CacheRequest& request,
                                         const KvMemory& memory) const {
  KVANT_ASSIGN_OR_FAIL(const attn::KvSpec resolved, impl_->resolve(spec, config()));
  const bool cuda = impl_->runner->stream().cuda != nullptr;
  KVANT_ASSIGN_OR_FAIL(const auto groups, make_layer_groups(config(), resolved, impl_->options.page_size,
                                                            device_of(impl_->runner->stream())));
  return plan_kv_budget(groups,
                        {.page_size = impl_->options.page_size,
                         .max_sequences = request.max_sequences,
                         .max_tokens = request.max_tokens,
                         .pool_tokens = request.pool_tokens,
                         .prefix_cache = request.prefix_cache},
                        memory, cuda ? free_cuda_memory() : free_memory_bytes());
}

Result<std::unique_ptr<KvCacheSet>> LoadedModel::create_cache(const attn::KvSpec& spec, const CacheRequest& request) {
  Impl& impl = *impl_;
  KVANT_ASSIGN_OR_FAIL(const attn::KvSpec resolved, impl.resolve(spec, config()));
  // Scales of the checkpoint belong to raw keys; a profile that the user named takes their place.
  const bool from_checkpoint = impl.has_scales() && !impl.profile_is_asked();
  const auto wants = [&](const attn::KvSpec& one) {
    return from_checkpoint ? spec_needs_profile(one) : spec_wants_profile(one);
  };
  const auto& layers = config().layers;
  const bool wants_profile =
      wants(resolved) || std::any_of(layers.begin(), layers.end(), [&](const LayerConfig& layer) {
        return layer.kv_override && wants(*layer.kv_override);
      });
  if (wants_profile && impl.profile == nullptr && impl.options.kv_profile != "none") {
    KVANT_ASSIGN_OR_FAIL(impl.profile, impl.automatic_profile());
  }
  KVANT_ASSIGN_OR_FAIL(auto cache, impl.runner->create_cache(
                                       {.spec = resolved,
                                        .page_size = impl.options.page_size,
                                        .max_sequences = request.max_sequences,
                                        .max_tokens = request.max_tokens,
                                        .pool_tokens = request.pool_tokens,
                                        .prefix_cache = request.prefix_cache,
                                        .profile = wants_profile || impl.profile_is_asked() ? impl.profile : nullptr,
                                        .profile_is_explicit = impl.profile_is_asked(),
                                        .checkpoint_scales = from_checkpoint ? impl.kv->scales : nullptr,
                                        .batch_invariant = request.batch_invariant}));
  impl.tell_about_scales(*cache);
  return cache;
}

std::string LoadedModel::describe_scales(const KvCacheSet& cache) const {
  if (!cache.uses_profile() || cache.num_checkpoint_scales() > 0) return cache.scale_source();
  const KvProfile& profile = *impl_->profile;
  return fmt::format("profile {} ({}, {} tokens)", profile.id, impl_->profile_origin, profile.tokens);
}

}  // namespace kvant::engine
