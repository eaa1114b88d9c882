#include "engine/models/folder_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/loader/printable.h"
#include "engine/loader/weight_rows.h"

namespace kvant::engine {
namespace {

constexpr int64_t kFp8Block = 128;
constexpr int64_t kNvfp4Block = 16;
constexpr int64_t kMxfp4Block = 32;
constexpr size_t kNamesInMessage = 4;

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

/// "model.x.weight_scale" for "model.x.weight" and "_scale".
std::string beside(std::string_view name, std::string_view suffix) { return fmt::format("{}{}", name, suffix); }

}  // namespace

bool FolderWeights::contains(std::string_view name) const {
  return folder_.find_tensor(name) != nullptr || folder_.find_tensor(beside(name, "_packed")) != nullptr;
}

Result<const SafetensorsTensor*> FolderWeights::tensor(std::string_view name, std::span<const int64_t> shape) const {
  const SafetensorsTensor* found = folder_.find_tensor(name);
  if (found == nullptr)
    return failure(StatusCode::kNotFound, fmt::format("{}: tensor '{}' is missing", folder_.name(), name));
  if (!std::equal(shape.begin(), shape.end(), found->shape.begin(), found->shape.end())) {
    return failure(StatusCode::kDataLoss,
                   fmt::format("{}: tensor '{}' has shape [{}]; the model's configuration needs [{}]", folder_.name(),
                               name, fmt::join(found->shape, ", "), fmt::join(shape, ", ")));
  }
  use(name);
  return found;
}

Result<float> FolderWeights::scalar(std::string_view name) const {
  const SafetensorsTensor* found = folder_.find_tensor(name);
  if (found == nullptr)
    return failure(StatusCode::kNotFound, fmt::format("{}: tensor '{}' is missing", folder_.name(), name));
  use(name);
  if (found->num_elements() != 1) {
    return failure(StatusCode::kDataLoss, fmt::format("{}: tensor '{}' has shape [{}]; one number is needed",
                                                      folder_.name(), name, fmt::join(found->shape, ", ")));
  }
  KVANT_ASSIGN_OR_FAIL(const std::vector<float> values, float_values(*found));
  if (!std::isfinite(values[0]) || values[0] <= 0.0f) {
    return failure(StatusCode::kDataLoss, fmt::format("{}: tensor '{}' is {}; a positive finite number is needed",
                                                      folder_.name(), name, values[0]));
  }
  return values[0];
}

Result<WeightView> FolderWeights::plain_view(const SafetensorsTensor& tensor, std::string name, int64_t rows,
                                             int64_t columns, int64_t first_row) const {
  auto read = float_rows(tensor, columns, first_row);
  if (!read) return failure(read.error().code(), fmt::format("{}: {}", folder_.name(), read.error().message()));
  return WeightView{.name = std::move(name), .rows = rows, .columns = columns, .read = *std::move(read)};
}

Result<WeightView> FolderWeights::matrix(std::string_view name, int64_t rows, int64_t columns) const {
  const SafetensorsTensor* found = folder_.find_tensor(name);
  // Static scales of activations: kvant needs none (docs/checkpoints.md).
  if (std::string input = fmt::format("{}input_scale", name.substr(0, name.rfind('.') + 1)); contains(input))
    use(input);
  if (found == nullptr && folder_.find_tensor(beside(name, "_packed")) != nullptr)
    return nvfp4_matrix(name, rows, columns);
  if (found != nullptr && found->type == SafetensorsType::kF8E4m3) return fp8_matrix(name, rows, columns);
  if (found != nullptr && found->type == SafetensorsType::kU8) return nvfp4_matrix(name, rows, columns);
  const int64_t shape[] = {rows, columns};
  KVANT_ASSIGN_OR_FAIL(found, tensor(name, shape));
  return plain_view(*found, std::string(name), rows, columns);
}

Result<WeightView> FolderWeights::vector(std::string_view name, int64_t size) const {
  const int64_t shape[] = {size};
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* found, tensor(name, shape));
  return plain_view(*found, std::string(name), 1, size);
}

Result<WeightView> FolderWeights::matrix_of(std::string_view name, int64_t index, int64_t count, int64_t rows,
                                            int64_t columns) const {
  const int64_t shape[] = {count, rows, columns};
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* found, tensor(name, shape));
  return plain_view(*found, fmt::format("{}[{}]", name, index), rows, columns, index * rows);
}

Result<WeightView> FolderWeights::fp8_matrix(std::string_view name, int64_t rows, int64_t columns) const {
  const int64_t shape[] = {rows, columns};
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* codes, tensor(name, shape));
  std::string scale_name = beside(name, "_scale");
  if (folder_.find_tensor(scale_name) == nullptr) scale_name = beside(name, "_scale_inv");
  const SafetensorsTensor* scale = folder_.find_tensor(scale_name);
  if (scale == nullptr) {
    return failure(StatusCode::kNotFound, fmt::format("{}: tensor '{}' is F8_E4M3 and needs '{}', which is missing",
                                                      folder_.name(), name, beside(name, "_scale")));
  }
  use(scale_name);
  const auto has_shape = [&](std::initializer_list<int64_t> wanted) {
    return std::equal(wanted.begin(), wanted.end(), scale->shape.begin(), scale->shape.end());
  };
  BlockScales scales;
  if (scale->num_elements() == 1) {
    scales.block_rows = rows;
    scales.block_columns = columns;
  } else if (has_shape({rows, 1}) || has_shape({rows})) {
    scales.block_rows = 1;
    scales.block_columns = columns;
  } else if (has_shape({blocks_of(rows, kFp8Block), blocks_of(columns, kFp8Block)})) {
    scales.block_rows = scales.block_columns = kFp8Block;
  } else {
    return failure(StatusCode::kUnsupported,
                   fmt::format("{}: tensor '{}' has shape [{}]; one scale, one per row ({}) or one per 128 x 128 block "
                               "is read",
                               folder_.name(), scale_name, fmt::join(scale->shape, ", "), rows));
  }
  auto values = float_values(*scale);
  if (!values) return failure(values.error().code(), fmt::format("{}: {}", folder_.name(), values.error().message()));
  scales.values = *std::move(values);
  const auto bad = std::find_if(scales.values.begin(), scales.values.end(),
                                [](float value) { return !std::isfinite(value) || value <= 0.0f; });
  if (bad != scales.values.end()) {
    return failure(StatusCode::kDataLoss, fmt::format("{}: tensor '{}' holds {}; positive finite scales are needed",
                                                      folder_.name(), scale_name, *bad));
  }
  const auto shared = std::make_shared<const BlockScales>(std::move(scales));
  return WeightView{.name = std::string(name),
                    .rows = rows,
                    .columns = columns,
                    .read = fp8_rows(*codes, columns, shared),
                    .read_fp8 = fp8_codes(*codes, columns, shared)};
}

Result<WeightView> FolderWeights::nvfp4_matrix(std::string_view name, int64_t rows, int64_t columns) const {
  if (columns % kNvfp4Block != 0) {
    return failure(StatusCode::kUnsupported, fmt::format("{}: NVFP4 tensor '{}' has {} columns; a multiple of {} is "
                                                         "needed",
                                                         folder_.name(), name, columns, kNvfp4Block));
  }
  const bool packed_name = folder_.find_tensor(name) == nullptr;
  const int64_t code_shape[] = {rows, columns / 2};
  const int64_t scale_shape[] = {rows, columns / kNvfp4Block};
  const std::string scale_name = beside(name, "_scale");
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* codes,
                       tensor(packed_name ? beside(name, "_packed") : std::string(name), code_shape));
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* scales, tensor(scale_name, scale_shape));
  if (codes->type != SafetensorsType::kU8 || scales->type != SafetensorsType::kF8E4m3) {
    return failure(StatusCode::kUnsupported,
                   fmt::format("{}: tensor '{}' is {} with scales in {}; NVFP4 has U8 with scales in F8_E4M3",
                               folder_.name(), name, to_string(codes->type), to_string(scales->type)));
  }
  // ModelOpt stores the factor, compressed-tensors its inverse.
  float global = 1.0f;
  if (packed_name) {
    KVANT_ASSIGN_OR_FAIL(global, scalar(beside(name, "_global_scale")));
    global = 1.0f / global;
    if (std::string input = fmt::format("{}input_global_scale", name.substr(0, name.rfind('.') + 1)); contains(input))
      use(input);
  } else {
    KVANT_ASSIGN_OR_FAIL(global, scalar(beside(name, "_scale_2")));
  }
  return WeightView{.name = std::string(name),
                    .rows = rows,
                    .columns = columns,
                    .read = nvfp4_rows(*codes, *scales, columns, global)};
}

Result<WeightView> FolderWeights::mxfp4_matrix_of(std::string_view name, int64_t index, int64_t count, int64_t rows,
                                                  int64_t columns) const {
  const int64_t code_shape[] = {count, rows, columns / kMxfp4Block, kMxfp4Block / 2};
  const int64_t scale_shape[] = {count, rows, columns / kMxfp4Block};
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* codes, tensor(beside(name, "_blocks"), code_shape));
  KVANT_ASSIGN_OR_FAIL(const SafetensorsTensor* scales, tensor(beside(name, "_scales"), scale_shape));
  if (columns % kMxfp4Block != 0 || codes->type != SafetensorsType::kU8 || scales->type != SafetensorsType::kU8) {
    return failure(
        StatusCode::kUnsupported,
        fmt::format("{}: '{}' has {} columns, codes in {} and scales in {}; MXFP4 has a multiple of {} "
                    "columns and U8 for both",
                    folder_.name(), name, columns, to_string(codes->type), to_string(scales->type), kMxfp4Block));
  }
  return WeightView{.name = fmt::format("{}[{}]", name, index),
                    .rows = rows,
                    .columns = columns,
                    .read = mxfp4_rows(*codes, *scales, columns, index * rows)};
}

Status FolderWeights::check_all_used() const {
  std::vector<std::string> unused;
  size_t count = 0;
  for (const auto& [name, tensor] : folder_.tensors()) {
    if (is_used(name)) continue;
    if (++count <= kNamesInMessage) unused.push_back(fmt::format("'{}'", printable(name)));
  }
  if (count == 0) return {};
  return {
      StatusCode::kUnsupported,
      fmt::format("{}: {} of {} tensors are not part of this architecture as kvant knows it: {}{}", folder_.name(),
                  count, folder_.tensors().size(), fmt::join(unused, ", "), count > kNamesInMessage ? ", ..." : "")};
}

}  // namespace kvant::engine
