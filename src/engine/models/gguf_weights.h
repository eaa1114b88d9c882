#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/loader/gguf.h"
#include "engine/models/model_source.h"

namespace kvant::engine {

/// Makes checked views of a GGUF file's tensors.
class GgufWeights {
 public:
  explicit GgufWeights(const GgufFile& file) : file_(file) {}

  /// kNotFound when absent, kDataLoss when the shape is another.
  Result<WeightView> matrix(std::string_view name, int64_t rows, int64_t columns) const;
  Result<WeightView> vector(std::string_view name, int64_t size) const;
  bool contains(std::string_view name) const { return file_.find_tensor(name) != nullptr; }

 private:
  Result<WeightView> view(std::string_view name, int64_t rows, int64_t columns) const;

  const GgufFile& file_;
};

/// Reorders the rows of a q or k projection from interleaved RoPE pairs (2 i, 2 i + 1) to halves (i, i + dim / 2), head
/// by head, over the first `rope_dim` channels. Q.K does not change under a common permutation of channels.
WeightView halves_from_interleaved(WeightView weight, int32_t head_dim, int32_t rope_dim);
/// The same for the elements of a bias.
WeightView halves_from_interleaved_bias(WeightView bias, int32_t head_dim, int32_t rope_dim);

/// Hash of size, metadata and samples of every tensor: fast, and different for different models.
std::string hash_model(const GgufFile& file);

}  // namespace kvant::engine
