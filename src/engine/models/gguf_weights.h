#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "engine/loader/gguf.h"
#include "engine/models/model_source.h"

namespace kvant::engine {

/// Makes checked views of a GGUF file's tensors, and keeps account of which were asked for. Not thread-safe.
class GgufWeights {
 public:
  explicit GgufWeights(const GgufFile& file) : file_(file) {}

  /// kNotFound when absent, kDataLoss when the shape is another.
  Result<WeightView> matrix(std::string_view name, int64_t rows, int64_t columns) const;
  /// Several of them in one tensor, as one matrix of all their rows.
  Result<WeightView> matrices(std::string_view name, int64_t count, int64_t rows, int64_t columns) const;
  Result<WeightView> vector(std::string_view name, int64_t size) const;
  bool contains(std::string_view name) const { return file_.find_tensor(name) != nullptr; }

  void use(std::string_view name) const { used_.emplace(name); }
  /// Names a tensor that nobody asked for: running without it would be silently wrong.
  Status check_all_used(std::string_view family) const;

 private:
  Result<WeightView> view(std::string_view name, std::span<const int64_t> shape) const;

  const GgufFile& file_;
  mutable std::set<std::string, std::less<>> used_;
};

/// Hash of size, metadata and samples of every tensor: fast, and different for different models.
std::string hash_model(const GgufFile& file);

}  // namespace kvant::engine
