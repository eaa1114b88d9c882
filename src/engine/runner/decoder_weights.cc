#include "engine/runner/decoder_weights.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

namespace kvant::engine {
namespace {

/// Stacks weights with the same input: rows of the first, then rows of the second, and so on.
ops::WeightRows stacked(std::vector<const WeightView*> parts) {
  return [parts = std::move(parts)](int64_t begin, int64_t end, float* out) {
    int64_t first = 0;
    for (const WeightView* part : parts) {
      const int64_t from = std::clamp(begin - first, int64_t{0}, part->rows);
      const int64_t to = std::clamp(end - first, int64_t{0}, part->rows);
      if (from < to) {
        part->read(from, to, out);
        out += (to - from) * part->columns;
      }
      first += part->rows;
    }
  };
}

std::vector<float> read_vector(const WeightView& view) {
  std::vector<float> out(static_cast<size_t>(view.columns));
  view.read(0, 1, out.data());
  return out;
}

class Loader {
 public:
  Loader(ops::LinearFormat format, int64_t max_rows, Stream stream)
      : format_(format), max_rows_(max_rows), stream_(stream) {}

  Result<std::unique_ptr<ops::Linear>> linear(std::initializer_list<const WeightView*> parts) {
    int64_t rows = 0;
    for (const WeightView* part : parts) rows += part->rows;
    const WeightView& first = **parts.begin();
    auto out = ops::Linear::create(format_, rows, first.columns, stacked(parts), max_rows_, stream_);
    if (!out) return failure(out.error().code(), fmt::format("tensor '{}': {}", first.name, out.error().message()));
    bytes_ += (*out)->weight_bytes();
    return out;
  }
  int64_t bytes() const { return bytes_; }

 private:
  ops::LinearFormat format_;
  int64_t max_rows_;
  Stream stream_;
  int64_t bytes_ = 0;
};

Status refuse_missing_features(const LayerConfig& layer) {
  const char* feature = layer.qk_norm       ? "norms of queries and keys"
                        : layer.output_bias ? "a bias of the attention output"
                        : layer.sinks       ? "attention sinks"
                                            : nullptr;
  if (feature == nullptr) return {};
  return {StatusCode::kUnsupported, fmt::format("the model has {}, which the decoder does not have", feature)};
}

}  // namespace

Result<DecoderWeights> load_decoder_weights(const ModelSource& source, ops::LinearFormat format, int64_t max_rows,
                                            const ProgressFn& progress, Stream stream) {
  for (const LayerConfig& layer : source.config.layers) KVANT_FAIL_IF_ERROR(refuse_missing_features(layer));
  Loader loader(format, max_rows, stream);
  DecoderWeights out;
  const auto num_layers = static_cast<int64_t>(source.layers.size());
  const auto report = [&](int64_t done) {
    if (progress) progress("loading weights", done, num_layers + 1);
  };
  report(0);
  for (const LayerWeights& weights : source.layers) {
    DecoderLayer layer;
    layer.attention_norm = read_vector(weights.attention_norm);
    layer.ffn_norm = read_vector(weights.ffn_norm);
    if (weights.q_bias.present()) {
      for (const WeightView* bias : {&weights.q_bias, &weights.k_bias, &weights.v_bias}) {
        const std::vector<float> part = read_vector(*bias);
        layer.qkv_bias.insert(layer.qkv_bias.end(), part.begin(), part.end());
      }
    }
    KVANT_ASSIGN_OR_FAIL(layer.qkv, loader.linear({&weights.q, &weights.k, &weights.v}));
    KVANT_ASSIGN_OR_FAIL(layer.output, loader.linear({&weights.output}));
    KVANT_ASSIGN_OR_FAIL(layer.gate_up, loader.linear({&weights.gate, &weights.up}));
    KVANT_ASSIGN_OR_FAIL(layer.down, loader.linear({&weights.down}));
    out.layers.push_back(std::move(layer));
    report(std::ssize(out.layers));
  }
  out.final_norm = read_vector(source.final_norm);
  KVANT_ASSIGN_OR_FAIL(out.head, loader.linear({&source.head}));
  out.embedding = source.embedding;
  out.bytes = loader.bytes();
  report(num_layers + 1);
  return out;
}

}  // namespace kvant::engine
