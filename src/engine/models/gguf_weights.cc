#include "engine/models/gguf_weights.h"

#include <algorithm>
#include <array>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/hash.h"
#include "engine/loader/printable.h"

namespace kvant::engine {
namespace {

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

Result<WeightView> GgufWeights::view(std::string_view name, std::span<const int64_t> shape) const {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr)
    return failure(StatusCode::kNotFound, fmt::format("{}: tensor '{}' is missing", file_.name(), name));
  use(name);
  // Files may write dimensions of 1 at the end, or leave them out.
  const std::vector<int64_t>& found = tensor->shape;
  const auto at = [](std::span<const int64_t> dims, size_t i) { return i < dims.size() ? dims[i] : 1; };
  for (size_t i = 0; i < std::max(found.size(), shape.size()); ++i) {
    if (at(found, i) == at(shape, i)) continue;
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: tensor '{}' has shape [{}]; the model's configuration needs [{}]", file_.name(),
                               name, fmt::join(found, ", "), fmt::join(shape, ", ")));
  }
  return WeightView{
      .name = std::string(name),
      .rows = tensor->num_elements() / shape[0],
      .columns = shape[0],
      .read = [tensor](int64_t begin, int64_t end, float* out) { dequantise_rows(*tensor, begin, end, out); }};
}

Result<WeightView> GgufWeights::matrix(std::string_view name, int64_t rows, int64_t columns) const {
  return view(name, std::array{columns, rows});
}

Result<WeightView> GgufWeights::matrices(std::string_view name, int64_t count, int64_t rows, int64_t columns) const {
  return view(name, std::array{columns, rows, count});
}

Result<WeightView> GgufWeights::vector(std::string_view name, int64_t size) const {
  return view(name, std::array{size, int64_t{1}});
}

Status GgufWeights::check_all_used(std::string_view family) const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.contains(tensor.name)) continue;
    return {StatusCode::kUnsupported, fmt::format("{}: tensor '{}' is not supported for {} models", file_.name(),
                                                  printable(tensor.name), family)};
  }
  return {};
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
    hasher.add_samples(tensor.data);
  }
  return hasher.hex();
}

}  // namespace kvant::engine
