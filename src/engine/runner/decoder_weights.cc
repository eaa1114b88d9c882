#include "engine/runner/decoder_weights.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "engine/models/weight_views.h"
#include "engine/runner/gate.h"

namespace kvant::engine {
namespace {

/// Of every expert `size` rows of gate, then as many of up.
ops::WeightRows paired(const WeightView& gate, const WeightView& up, int64_t size) {
  return [&gate, &up, size](int64_t begin, int64_t end, float* out) {
    while (begin < end) {
      const int64_t expert = begin / (2 * size), row = begin % (2 * size);
      const WeightView& part = row < size ? gate : up;
      const int64_t first = expert * size + row % size;
      const int64_t count = std::min(end - begin, size - row % size);
      part.read(first, first + count, out);
      out += count * part.columns;
      begin += count;
    }
  };
}

class Loader {
 public:
  Loader(const WeightOptions& options, Stream stream, ops::LinearContext& context)
      : options_(options), stream_(stream), context_(context) {}

  Result<std::unique_ptr<ops::Linear>> linear(std::initializer_list<const WeightView*> parts) {
    std::vector<WeightView> views;
    for (const WeightView* part : parts) views.push_back(*part);
    const WeightView all = stacked((*parts.begin())->name, std::move(views));
    const bool fp8 = options_.fp8 && all.read_fp8 && context_.multiplies_fp8(all.rows, all.columns);
    auto out = fp8 ? ops::Linear::create_fp8(all.rows, all.columns, all.read_fp8, options_.max_rows, stream_, &context_)
                   : ops::Linear::create(options_.format, all.rows, all.columns, all.read, options_.max_rows, stream_,
                                         &context_);
    if (!out) return failure(out.error().code(), fmt::format("tensor '{}': {}", all.name, out.error().message()));
    bytes_ += (*out)->weight_bytes();
    fp8_ = fp8_ || fp8;
    return out;
  }

  /// Vectors one after the other; those that the model does not have add nothing.
  Result<DeviceBuffer> vectors(std::initializer_list<const WeightView*> parts) const {
    return upload(values(parts, 1), "weights", stream_);
  }
  Result<std::unique_ptr<ops::Experts>> experts(const LayerConfig& layer, const LayerWeights& weights) {
    auto out =
        ops::Experts::create(experts_shape(layer, weights.router.columns),
                             {.router = weights.router.read,
                              .gate_up = paired(weights.gate, weights.up, layer.ffn_size),
                              .down = weights.down.read,
                              .router_bias = values({&weights.router_bias}, 1),
                              .gate_up_bias = values({&weights.gate_bias, &weights.up_bias}, layer.experts.count),
                              .down_bias = values({&weights.down_bias}, 1)},
                             options_.format, options_.max_rows, stream_, &context_);
    if (!out) return failure(out.error().code(), fmt::format("'{}': {}", weights.gate.name, out.error().message()));
    bytes_ += (*out)->weight_bytes();
    return out;
  }
  int64_t bytes() const { return bytes_; }
  bool fp8() const { return fp8_; }

 private:
  /// Vectors cut into `parts` pieces each: the first piece of every vector, then the second, and so on.
  static std::vector<float> values(std::initializer_list<const WeightView*> vectors, int64_t parts) {
    std::vector<float> out;
    for (int64_t part = 0; part < parts; ++part) {
      for (const WeightView* vector : vectors) {
        if (!vector->present()) continue;
        std::vector<float> all(static_cast<size_t>(vector->columns));
        vector->read(0, 1, all.data());
        const auto size = vector->columns / parts;
        out.insert(out.end(), all.begin() + part * size, all.begin() + (part + 1) * size);
      }
    }
    return out;
  }

  WeightOptions options_;
  Stream stream_;
  ops::LinearContext& context_;
  int64_t bytes_ = 0;
  bool fp8_ = false;
};

Status refuse_missing_features(const LayerConfig& layer) {
  if (layer.experts.count == 0 || !layer.post_norms) return {};
  return {StatusCode::kUnsupported,
          "the model norms what its experts give before it is added, which the decoder does not have"};
}

}  // namespace

Result<DecoderWeights> load_decoder_weights(const ModelSource& source, const WeightOptions& options,
                                            const ProgressFn& progress, Stream stream, ThreadPool& loaders) {
  for (const LayerConfig& layer : source.config.layers) KVANT_FAIL_IF_ERROR(refuse_missing_features(layer));
  DecoderWeights out;
  KVANT_ASSIGN_OR_FAIL(out.context, ops::LinearContext::create(stream, loaders));
  Loader loader(options, stream, *out.context);
  const auto num_layers = static_cast<int64_t>(source.layers.size());
  const auto report = [&](int64_t done) {
    if (progress) progress("loading weights", done, num_layers + 1);
  };
  report(0);
  for (size_t index = 0; index < source.layers.size(); ++index) {
    const LayerWeights& weights = source.layers[index];
    DecoderLayer layer;
    KVANT_ASSIGN_OR_FAIL(layer.attention_norm, loader.vectors({&weights.attention_norm}));
    KVANT_ASSIGN_OR_FAIL(layer.ffn_norm, loader.vectors({&weights.ffn_norm}));
    KVANT_ASSIGN_OR_FAIL(layer.qkv_bias, loader.vectors({&weights.q_bias, &weights.k_bias, &weights.v_bias}));
    KVANT_ASSIGN_OR_FAIL(layer.q_norm, loader.vectors({&weights.q_norm}));
    KVANT_ASSIGN_OR_FAIL(layer.k_norm, loader.vectors({&weights.k_norm}));
    KVANT_ASSIGN_OR_FAIL(layer.qkv, loader.linear({&weights.q, &weights.k, &weights.v}));
    KVANT_ASSIGN_OR_FAIL(layer.output, loader.linear({&weights.output}));
    KVANT_ASSIGN_OR_FAIL(layer.sinks, loader.vectors({&weights.sinks}));
    KVANT_ASSIGN_OR_FAIL(layer.output_bias, loader.vectors({&weights.output_bias}));
    KVANT_ASSIGN_OR_FAIL(layer.post_attention_norm, loader.vectors({&weights.post_attention_norm}));
    KVANT_ASSIGN_OR_FAIL(layer.post_ffn_norm, loader.vectors({&weights.post_ffn_norm}));
    if (const LayerConfig& config = source.config.layers[index]; config.experts.count > 0) {
      KVANT_ASSIGN_OR_FAIL(layer.experts, loader.experts(config, weights));
    } else {
      KVANT_ASSIGN_OR_FAIL(layer.gate_up, loader.linear({&weights.gate, &weights.up}));
      KVANT_ASSIGN_OR_FAIL(layer.down, loader.linear({&weights.down}));
    }
    out.layers.push_back(std::move(layer));
    report(std::ssize(out.layers));
  }
  KVANT_ASSIGN_OR_FAIL(out.final_norm, loader.vectors({&source.final_norm}));
  KVANT_ASSIGN_OR_FAIL(out.head, loader.linear({&source.head}));
  KVANT_ASSIGN_OR_FAIL(
      out.embedding,
      ops::Embedding::create(source.embedding.rows, source.embedding.columns, source.embedding.read,
                             source.config.tied_head ? out.head.get() : nullptr, stream, out.context.get()));
  out.bytes = loader.bytes() + out.embedding.bytes();
  out.fp8 = loader.fp8();
  KVANT_FAIL_IF_ERROR(synchronise(stream));
  report(num_layers + 1);
  return out;
}

}  // namespace kvant::engine
