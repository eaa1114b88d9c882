#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/models/model_source.h"

// Views of weights in another order or form than the file's. None reads a byte. Only a stack can be read as it is
// stored.
namespace kvant::engine {

/// Reorders the rows of a q or k projection from interleaved RoPE pairs (2 i, 2 i + 1) to halves (i, i + dim / 2), head
/// by head, over the first `rope_dim` channels. Q.K does not change under a common permutation of channels.
WeightView halves_from_interleaved(WeightView weight, int32_t head_dim, int32_t rope_dim);
/// The same for the elements of a bias.
WeightView halves_from_interleaved_bias(WeightView bias, int32_t head_dim, int32_t rope_dim);

/// Rows of several matrices of one width, one after the other.
WeightView stacked(std::string name, std::vector<WeightView> parts);

/// The matrix's rows as one vector.
WeightView flattened(WeightView matrix);

/// Every value plus 1.
WeightView plus_one(WeightView weight);

/// Every `step`-th row, or element of a vector, from `first` on.
WeightView every_row(WeightView weight, int64_t first, int64_t step);
WeightView every_element(WeightView vector, int64_t first, int64_t step);

}  // namespace kvant::engine
