#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "engine/loader/safetensors_folder.h"
#include "engine/models/model_source.h"

namespace kvant::engine {

/// Makes checked views of a Hugging Face folder's tensors, quantised ones included, and keeps account of which tensors
/// somebody asked for. Not thread-safe while views are made.
///
/// A matrix "x.weight" may be stored as F32, F16 or BF16; as F8_E4M3 with "x.weight_scale" (one, one per row, or 128 x
/// 128 blocks; also "x.weight_scale_inv"); as NVFP4 of ModelOpt ("x.weight" in U8, "x.weight_scale",
/// "x.weight_scale_2") or of compressed-tensors ("x.weight_packed", "x.weight_scale", "x.weight_global_scale").
class FolderWeights {
 public:
  explicit FolderWeights(const SafetensorsFolder& folder) : folder_(folder) {}

  /// kNotFound when absent, kDataLoss when the shape is another.
  Result<WeightView> matrix(std::string_view name, int64_t rows, int64_t columns) const;
  Result<WeightView> vector(std::string_view name, int64_t size) const;
  /// Matrix `index` of a tensor [count, rows, columns] in F32, F16 or BF16.
  Result<WeightView> matrix_of(std::string_view name, int64_t index, int64_t count, int64_t rows,
                               int64_t columns) const;
  /// The same of "NAME_blocks" [count, rows, columns / 32, 16] and "NAME_scales" [count, rows, columns / 32] in MXFP4.
  Result<WeightView> mxfp4_matrix_of(std::string_view name, int64_t index, int64_t count, int64_t rows,
                                     int64_t columns) const;

  /// A tensor of this name, or the packed form of one.
  bool contains(std::string_view name) const;
  const SafetensorsFolder& folder() const { return folder_; }

  /// Counts a tensor as accounted for.
  void use(std::string_view name) const { used_.emplace(name); }
  bool is_used(std::string_view name) const { return used_.contains(name); }
  /// Names what nobody asked for: a checkpoint with tensors that the model does not know is another model.
  Status check_all_used() const;

 private:
  Result<const SafetensorsTensor*> tensor(std::string_view name, std::span<const int64_t> shape) const;
  Result<float> scalar(std::string_view name) const;
  /// Rows of a tensor in 16 or 32 bits, from `first_row` of its flattened form on.
  Result<WeightView> plain_view(const SafetensorsTensor& tensor, std::string name, int64_t rows, int64_t columns,
                                int64_t first_row = 0) const;
  Result<WeightView> fp8_matrix(std::string_view name, int64_t rows, int64_t columns) const;
  Result<WeightView> nvfp4_matrix(std::string_view name, int64_t rows, int64_t columns) const;

  const SafetensorsFolder& folder_;
  mutable std::set<std::string, std::less<>> used_;
};

}  // namespace kvant::engine
