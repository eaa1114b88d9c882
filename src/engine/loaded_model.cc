#include "engine/loaded_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/device_memory.h"
#include "engine/calibration/calibrate.h"
#include "engine/calibration/profile_store.h"
#include "engine/models/model_source.h"
#include "engine/text_chunks.h"
#include "engine/tokenizer/folder_chat_template.h"
#include "kvant/attn/attention.h"
#include "kvant/attn/validate.h"
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

/// What the attention library says of one layer before weights are read.
Status check_layer(int32_t index, const ModelConfig& config, const attn::KvSpec& model_spec,
                   const LoadOptions& options) {
  const LayerConfig& layer = config.layers[static_cast<size_t>(index)];
  const attn::KvSpec& spec = layer.kv_override ? *layer.kv_override : model_spec;
  attn::ModelAttentionConfig attention;
  attention.layer = index;
  attention.k_format = attn::to_string(spec.k_format);
  attention.v_format = attn::to_string(spec.v_format);
  attention.model_dtype = config.kv_dtype;
  attention.num_q_heads = layer.num_q_heads;
  attention.num_kv_heads = layer.num_kv_heads;
  attention.head_dim_k = layer.head_dim_k;
  attention.head_dim_v = layer.head_dim_v;
  attention.page_size = options.page_size;
  attention.window = layer.window;
  attention.soft_cap = layer.soft_cap;
  attention.edges = spec.edges;
  attention.conditioning = spec.conditioning;
  return attn::validate_model_attention(attention);
}

/// Asks the attention library about every layer, then about every group of layers as planning will once the weights are
/// there.
Status check_spec(const attn::KvSpec& spec, const LoadOptions& options, const ModelConfig& config,
                  const DeviceInfo& device) {
  const attn::KvSpec resolved = attn::resolve_kv_spec(spec, config.kv_dtype);
  for (int32_t layer = 0; layer < config.num_layers(); ++layer)
    KVANT_RETURN_IF_ERROR(check_layer(layer, config, resolved, options));
  KVANT_ASSIGN_OR_RETURN(const std::vector<LayerGroup> groups,
                         make_layer_groups(config, resolved, options.page_size, device));
  const attn::AttnLimits limits{.max_requests = options.max_requests,
                                .max_tokens = kDefaultBatchTokens,
                                .max_query_len = kDefaultBatchTokens,
                                .max_pages_per_request = config.context_limit};
  for (const LayerGroup& group : groups) {
    if (options.kv_profile == "none" && spec_needs_profile(group.spec)) return missing_profile(group.spec);
    const auto bytes = attn::workspace_size(group.desc, limits, device, 1);
    if (!bytes && device.family != DeviceFamily::kCpu)
      return {bytes.error().code(), fmt::format("{}; or use --device cpu", bytes.error().message())};
    KVANT_RETURN_IF_ERROR(bytes);
  }
  return {};
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
  bool profile_is_explicit = false;

  Status load_explicit_profile(const ModelConfig& config);
  Result<std::shared_ptr<const KvProfile>> automatic_profile();
  void notify(std::string_view text) const {
    if (options.notice) options.notice(text);
  }
};

Status LoadedModel::Impl::load_explicit_profile(const ModelConfig& config) {
  if (options.kv_profile == "auto" || options.kv_profile == "none") return {};
  KVANT_ASSIGN_OR_RETURN(KvProfile loaded, load_profile(options.kv_profile));
  KVANT_RETURN_IF_ERROR(loaded.check_shapes(config));
  if (loaded.model_hash != hash) {
    notify(
        fmt::format("KV profile {} was made from another file ({}) than this model ({}); its shapes fit and it is used",
                    loaded.id, loaded.model_hash, hash));
  }
  profile = std::make_shared<const KvProfile>(std::move(loaded));
  profile_is_explicit = true;
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
  for (const attn::KvSpec& spec : options.kv) KVANT_FAIL_IF_ERROR(check_spec(spec, options, source.config, device));
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
  const attn::KvSpec resolved = attn::resolve_kv_spec(spec, config().kv_dtype);
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
  const attn::KvSpec resolved = attn::resolve_kv_spec(spec, config().kv_dtype);
  const bool may_calibrate = impl.profile == nullptr && impl.options.kv_profile != "none";
  if (may_calibrate && spec_wants_profile(resolved)) {
    KVANT_ASSIGN_OR_FAIL(impl.profile, impl.automatic_profile());
  }
  return impl.runner->create_cache({.spec = resolved,
                                    .page_size = impl.options.page_size,
                                    .max_sequences = request.max_sequences,
                                    .max_tokens = request.max_tokens,
                                    .pool_tokens = request.pool_tokens,
                                    .prefix_cache = request.prefix_cache,
                                    .profile = impl.profile,
                                    .profile_is_explicit = impl.profile_is_explicit,
                                    .batch_invariant = request.batch_invariant});
}

std::string LoadedModel::describe_scales(const KvCacheSet& cache) const {
  if (!cache.uses_profile()) return cache.scale_source();
  const KvProfile& profile = *impl_->profile;
  return fmt::format("profile {} ({}, {} tokens)", profile.id, impl_->profile_origin, profile.tokens);
}

}  // namespace kvant::engine
