#include "engine/speculation/create_drafter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/speculation/model_drafter.h"
#include "engine/speculation/ngram_drafter.h"

namespace kvant::engine {
namespace {

Status check_vocabulary(const LoadedModel& draft, const LoadedModel& target) {
  const auto refuse = [&](std::string_view why) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("draft model {} {}; a draft model needs the vocabulary of the model it drafts for",
                              draft.files().name, why));
  };
  const int32_t drafted = draft.config().vocabulary_size, wanted = target.config().vocabulary_size;
  if (drafted != wanted) return refuse(fmt::format("has {} tokens, the model {}", drafted, wanted));
  const int32_t count = std::min(draft.tokenizer().vocabulary_size(), target.tokenizer().vocabulary_size());
  for (int32_t id = 0; id < count; ++id) {
    if (draft.tokenizer().token_bytes(id, true) != target.tokenizer().token_bytes(id, true))
      return refuse(fmt::format("means another text by token {}", id));
  }
  return {};
}

Result<std::unique_ptr<OwnedDrafter>> create_model_drafter(const EngineOptions& options, const LoadedModel& target,
                                                           int32_t max_sequences) {
  KVANT_ASSIGN_OR_FAIL(const attn::KvSpec spec, attn::parse_kv_spec("auto"));
  auto out = std::make_unique<OwnedDrafter>();
  KVANT_ASSIGN_OR_FAIL(out->model, LoadedModel::load({.model = options.speculation.draft_model,
                                                      .device = options.device,
                                                      .weights = options.weights,
                                                      .threads = options.threads,
                                                      .max_requests = max_sequences,
                                                      .cache_dir = options.cache_dir,
                                                      .progress = options.progress,
                                                      .notice = options.notice,
                                                      .kv_layers = {},
                                                      .kv = {spec}}));
  KVANT_FAIL_IF_ERROR(check_vocabulary(*out->model, target));
  KVANT_ASSIGN_OR_FAIL(
      auto cache, out->model->create_cache(spec, {.max_sequences = max_sequences,
                                                  .max_tokens = std::min(out->model->context(), target.context())}));
  out->drafter = std::make_unique<ModelDrafter>(out->model->runner(), std::move(cache));
  return out;
}

}  // namespace

Result<std::unique_ptr<OwnedDrafter>> create_drafter(const EngineOptions& options, const LoadedModel& target,
                                                     int32_t max_sequences) {
  switch (options.speculation.kind) {
    case Speculation::Kind::kNone: break;
    case Speculation::Kind::kNgram: {
      auto out = std::make_unique<OwnedDrafter>();
      out->drafter = std::make_unique<NgramDrafter>();
      return out;
    }
    case Speculation::Kind::kDraft: return create_model_drafter(options, target, max_sequences);
  }
  return std::unique_ptr<OwnedDrafter>();
}

}  // namespace kvant::engine
