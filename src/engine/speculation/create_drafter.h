#pragma once

#include <memory>

#include "engine/loaded_model.h"
#include "engine/speculation/drafter.h"
#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

/// A drafter with the model it runs, if any.
struct OwnedDrafter {
  std::unique_ptr<LoadedModel> model;  ///< Null without a draft model.
  std::unique_ptr<Drafter> drafter;
};

/// What `options.speculation` asks for; null for none. A draft model must have the vocabulary of `target`.
Result<std::unique_ptr<OwnedDrafter>> create_drafter(const EngineOptions& options, const LoadedModel& target,
                                                     int32_t max_sequences);

}  // namespace kvant::engine
