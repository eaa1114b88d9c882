#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device_memory.h"
#include "engine/models/model_source.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"
#include "kvant/engine/engine.h"
#include "ops/decoder_ops.h"
#include "ops/experts.h"
#include "ops/linear.h"

namespace kvant::engine {

/// One layer's weights as the decoder runs them, in memory of its device: q, k, v in one product, gate and up in one.
/// Vectors are fp32; an empty one means that the layer has none.
struct DecoderLayer {
  DeviceBuffer attention_norm;
  std::unique_ptr<ops::Linear> qkv;
  DeviceBuffer qkv_bias;
  DeviceBuffer q_norm, k_norm;
  DeviceBuffer sinks;
  std::unique_ptr<ops::Linear> output;
  DeviceBuffer output_bias;
  DeviceBuffer post_attention_norm;
  DeviceBuffer ffn_norm;
  std::unique_ptr<ops::Experts> experts;  ///< In place of gate_up and down.
  std::unique_ptr<ops::Linear> gate_up;
  std::unique_ptr<ops::Linear> down;
  DeviceBuffer post_ffn_norm;
};

struct DecoderWeights {
  std::unique_ptr<ops::LinearContext> context;  ///< Before the layers: it outlives them.
  std::vector<DecoderLayer> layers;
  DeviceBuffer final_norm;
  std::unique_ptr<ops::Linear> head;
  ops::Embedding embedding;
  int64_t bytes = 0;  ///< Of matrices held in memory.
  bool fp8 = false;   ///< Whether some are held as e4m3.
};

struct WeightOptions {
  ops::LinearFormat format = ops::LinearFormat::kF32;
  bool fp8 = false;      ///< Matrices that the checkpoint has in e4m3 stay so where the device multiplies them.
  int64_t max_rows = 1;  ///< Of a product.
};

/// Reads and prepares all weights of a model for a stream's device. Layer features that the decoder does not have are
/// refused by name. `loaders` reads and converts. The source must outlive the weights.
Result<DecoderWeights> load_decoder_weights(const ModelSource& source, const WeightOptions& options,
                                            const ProgressFn& progress, Stream stream, ThreadPool& loaders);

}  // namespace kvant::engine
