#include "engine/models/gguf_weights.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/hash.h"

namespace kvant::engine {
namespace {

constexpr size_t kSampleBytes = 64;
constexpr size_t kSamplesPerTensor = 4;

/// Where a file of interleaved pairs keeps a row of a q or k projection that is counted in halves.
int64_t interleaved_row(int64_t row, int64_t head_dim, int64_t rope_dim) {
  const int64_t channel = row % head_dim;
  const int64_t half = rope_dim / 2;
  return channel < rope_dim ? row - channel + 2 * (channel % half) + channel / half : row;
}

void add_value(Hasher& hasher, const GgufValue& value) {
  hasher.add_value(value.index());
  std::visit(
      [&](const auto& item) {
        using T = std::decay_t<decltype(item)>;
        if constexpr (std::is_same_v<T, std::string>) {
          hasher.add(item);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          hasher.add_value(item.index());
          std::visit(
              [&](const auto& elements) {
                hasher.add_value(elements.size());
                for (const auto& element : elements) {
                  if constexpr (std::is_same_v<std::decay_t<decltype(element)>, std::string>)
                    hasher.add(element);
                  else
                    hasher.add_value(element);
                }
              },
              item);
        } else {
          hasher.add_value(item);
        }
      },
      value);
}

}  // namespace

Result<WeightView> GgufWeights::view(std::string_view name, int64_t rows, int64_t columns) const {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr)
    return failure(StatusCode::kNotFound, fmt::format("{}: tensor '{}' is missing", file_.name(), name));
  int64_t found_rows = 1;
  for (size_t i = 1; i < tensor->shape.size(); ++i) found_rows *= tensor->shape[i];
  const bool is_flat = std::all_of(tensor->shape.begin() + std::min<std::ptrdiff_t>(2, std::ssize(tensor->shape)),
                                   tensor->shape.end(), [](int64_t size) { return size == 1; });
  if (!is_flat || tensor->shape.at(0) != columns || found_rows != rows) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: tensor '{}' has shape [{}]; the model's configuration needs [{}, {}]", file_.name(),
                               name, fmt::join(tensor->shape, ", "), columns, rows));
  }
  return WeightView{
      .name = std::string(name),
      .rows = rows,
      .columns = columns,
      .read = [tensor](int64_t begin, int64_t end, float* out) { dequantise_rows(*tensor, begin, end, out); }};
}

Result<WeightView> GgufWeights::matrix(std::string_view name, int64_t rows, int64_t columns) const {
  return view(name, rows, columns);
}

Result<WeightView> GgufWeights::vector(std::string_view name, int64_t size) const { return view(name, 1, size); }

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

std::string hash_model(const GgufFile& file) {
  Hasher hasher;
  for (const auto& [key, value] : file.metadata()) {
    hasher.add(key);
    add_value(hasher, value);
  }
  for (const GgufTensor& tensor : file.tensors()) {
    hasher.add(tensor.name);
    hasher.add_value(tensor.type);
    hasher.add_value(tensor.data.size());
    const size_t stride = std::max(kSampleBytes, tensor.data.size() / kSamplesPerTensor);
    for (size_t offset = 0; offset < tensor.data.size(); offset += stride)
      hasher.add(tensor.data.subspan(offset, std::min(kSampleBytes, tensor.data.size() - offset)));
  }
  return hasher.hex();
}

}  // namespace kvant::engine
