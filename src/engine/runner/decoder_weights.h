#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/models/model_source.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/engine/engine.h"
#include "ops/linear.h"

namespace kvant::engine {

/// One layer's weights as the decoder runs them: q, k, v in one product, gate and up in one.
struct DecoderLayer {
  std::vector<float> attention_norm;
  std::unique_ptr<ops::Linear> qkv;
  std::vector<float> qkv_bias;  ///< Empty = none.
  std::unique_ptr<ops::Linear> output;
  std::vector<float> ffn_norm;
  std::unique_ptr<ops::Linear> gate_up;
  std::unique_ptr<ops::Linear> down;
};

struct DecoderWeights {
  std::vector<DecoderLayer> layers;
  std::vector<float> final_norm;
  std::unique_ptr<ops::Linear> head;
  WeightView embedding;  ///< Rows are read when a token needs them.
  int64_t bytes = 0;     ///< Of what is held in memory; the embedding stays in its file.
};

/// Reads and prepares all weights of a model. Layer features that the decoder does not have are refused by name.
Result<DecoderWeights> load_decoder_weights(const ModelSource& source, ops::LinearFormat format, int64_t max_rows,
                                            const ProgressFn& progress, Stream stream);

}  // namespace kvant::engine
