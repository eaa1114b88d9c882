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

struct Stack {
  std::vector<WeightView> parts;
  std::vector<int64_t> first_rows;

  /// Calls visit(part, first, last) for the rows of each part that are among the stack's [begin, end).
  template <class Visit>
  void for_parts(int64_t begin, int64_t end, const Visit& visit) const {
    while (begin < end) {
      const auto next = std::upper_bound(first_rows.begin(), first_rows.end(), begin);
      const auto index = static_cast<size_t>(next - first_rows.begin()) - 1;
      const int64_t first = begin - first_rows[index];
      const int64_t last = std::min(end - first_rows[index], parts[index].rows);
      visit(parts[index], first, last);
      begin += last - first;
    }
  }
};

}  // namespace

WeightView halves_from_interleaved(WeightView weight, int32_t head_dim, int32_t rope_dim) {
  weight.read = [=, columns = weight.columns, read = std::move(weight.read)](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t stored = interleaved_row(row, head_dim, rope_dim);
      read(stored, stored + 1, out + (row - begin) * columns);
    }
  };
  weight.read_fp8 = nullptr;
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
  std::vector<int64_t> first_rows;
  for (const WeightView& part : parts) {
    first_rows.push_back(out.rows);
    out.rows += part.rows;
  }
  const bool fp8 = std::all_of(parts.begin(), parts.end(), [](const WeightView& part) { return part.read_fp8; });
  const auto stack = std::make_shared<const Stack>(Stack{std::move(parts), std::move(first_rows)});
  out.read = [stack, columns = out.columns](int64_t begin, int64_t end, float* to) {
    stack->for_parts(begin, end, [&](const WeightView& part, int64_t first, int64_t last) {
      part.read(first, last, to);
      to += (last - first) * columns;
    });
  };
  if (!fp8) return out;
  out.read_fp8 = [stack, columns = out.columns](int64_t begin, int64_t end, uint8_t* codes, float* scales) {
    stack->for_parts(begin, end, [&](const WeightView& part, int64_t first, int64_t last) {
      part.read_fp8(first, last, codes, scales);
      codes += (last - first) * columns;
      scales += (last - first) * (columns / ops::kFp8Group);
    });
  };
  return out;
}

WeightView flattened(WeightView matrix) {
  matrix.read = [rows = matrix.rows, read = std::move(matrix.read)](int64_t, int64_t, float* out) {
    read(0, rows, out);
  };
  matrix.columns *= matrix.rows;
  matrix.rows = 1;
  matrix.read_fp8 = nullptr;
  return matrix;
}

WeightView plus_one(WeightView weight) {
  weight.read = [columns = weight.columns, read = std::move(weight.read)](int64_t begin, int64_t end, float* out) {
    read(begin, end, out);
    for (int64_t i = 0; i < (end - begin) * columns; ++i) out[i] += 1.0f;
  };
  weight.read_fp8 = nullptr;
  return weight;
}

WeightView every_row(WeightView weight, int64_t first, int64_t step) {
  weight.read = [=, columns = weight.columns, read = std::move(weight.read)](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row, out += columns) read(first + row * step, first + row * step + 1, out);
  };
  weight.rows /= step;
  weight.read_fp8 = nullptr;
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
