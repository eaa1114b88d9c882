#include "engine/models/weight_views.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace kvant::engine {
namespace {

/// Where a file of interleaved pairs keeps a row of a q or k projection that is counted in halves.
int64_t interleaved_row(int64_t row, int64_t head_dim, int64_t rope_dim) {
  const int64_t channel = row % head_dim;
  const int64_t half = rope_dim / 2;
  return channel < rope_dim ? row - channel + 2 * (channel % half) + channel / half : row;
}

}  // namespace

WeightView halves_from_interleaved(WeightView weight, int32_t head_dim, int32_t rope_dim) {
  weight.read = [=, columns = weight.columns, read = std::move(weight.read)](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t stored = interleaved_row(row, head_dim, rope_dim);
      read(stored, stored + 1, out + (row - begin) * columns);
    }
  };
  return weight;
}

WeightView halves_from_interleaved_bias(WeightView bias, int32_t head_dim, int32_t rope_dim) {
  bias.read = [=, size = bias.columns, read = std::move(bias.read)](int64_t, int64_t, float* out) {
    std::vector<float> stored(static_cast<size_t>(size));
    read(0, 1, stored.data());
    for (int64_t row = 0; row < size; ++row)
      out[row] = stored[static_cast<size_t>(interleaved_row(row, head_dim, rope_dim))];
  };
  return bias;
}

WeightView stacked(std::string name, std::vector<WeightView> parts) {
  WeightView out{.name = std::move(name), .rows = 0, .columns = parts.front().columns, .read = nullptr};
  // Parts are many and read often: where each begins is kept.
  auto first_rows = std::make_shared<std::vector<int64_t>>();
  for (const WeightView& part : parts) {
    first_rows->push_back(out.rows);
    out.rows += part.rows;
  }
  auto shared = std::make_shared<const std::vector<WeightView>>(std::move(parts));
  out.read = [shared, first_rows, columns = out.columns](int64_t begin, int64_t end, float* to) {
    while (begin < end) {
      const auto next = std::upper_bound(first_rows->begin(), first_rows->end(), begin);
      const auto index = static_cast<size_t>(next - first_rows->begin()) - 1;
      const WeightView& part = (*shared)[index];
      const int64_t first = (*first_rows)[index];
      const int64_t count = std::min(end - begin, first + part.rows - begin);
      part.read(begin - first, begin - first + count, to);
      begin += count;
      to += count * columns;
    }
  };
  return out;
}

WeightView flattened(WeightView matrix) {
  matrix.read = [rows = matrix.rows, read = std::move(matrix.read)](int64_t, int64_t, float* out) {
    read(0, rows, out);
  };
  matrix.columns *= matrix.rows;
  matrix.rows = 1;
  return matrix;
}

WeightView plus_one(WeightView weight) {
  weight.read = [columns = weight.columns, read = std::move(weight.read)](int64_t begin, int64_t end, float* out) {
    read(begin, end, out);
    for (int64_t i = 0; i < (end - begin) * columns; ++i) out[i] += 1.0f;
  };
  return weight;
}

WeightView every_row(WeightView weight, int64_t first, int64_t step) {
  weight.read = [=, columns = weight.columns, read = std::move(weight.read)](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row, out += columns) read(first + row * step, first + row * step + 1, out);
  };
  weight.rows /= step;
  return weight;
}

WeightView every_element(WeightView vector, int64_t first, int64_t step) {
  vector.read = [=, size = vector.columns, read = std::move(vector.read)](int64_t, int64_t, float* out) {
    std::vector<float> all(static_cast<size_t>(size));
    read(0, 1, all.data());
    for (int64_t i = first; i < size; i += step) *out++ = all[static_cast<size_t>(i)];
  };
  vector.columns /= step;
  return vector;
}

}  // namespace kvant::engine
