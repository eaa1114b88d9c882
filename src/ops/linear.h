#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"
#include "ops/activation.h"

namespace kvant::ops {

enum class LinearFormat : uint8_t { kF32, kBf16, kInt8 };

std::string_view to_string(LinearFormat format);

/// Fills rows [row_begin, row_end) of a weight [out_features, in_features] as fp32. Called from several threads.
using WeightRows = std::function<void(int64_t row_begin, int64_t row_end, float* out)>;

/// A weight's e4m3 codes share an fp32 scale in groups of so many columns of a row.
inline constexpr int64_t kFp8Group = 128;
/// Fills rows [row_begin, row_end) of a weight [out_features, in_features] as they are stored: codes, and scales
/// [row_end - row_begin, in_features / kFp8Group]. Called from several threads.
using Fp8WeightRows = std::function<void(int64_t row_begin, int64_t row_end, uint8_t* codes, float* scales)>;

/// The library multiplies so many rows at once.
constexpr int64_t padded_fp8_rows(int64_t num_rows) { return (num_rows + 3) / 4 * 4; }

/// What the linear layers of one model share on a device: nothing on the CPU; on CUDA the matrix library, its
/// workspace, the plans of all shapes, and staging memory for uploads. Outlives the layers.
class LinearContext {
 public:
  /// `loaders` turns checkpoint rows into fp32 while weights are read.
  static Result<std::unique_ptr<LinearContext>> create(Stream stream, ThreadPool& loaders);
  virtual ~LinearContext() = default;

  /// Whether the device multiplies a weight as e4m3 codes.
  virtual bool multiplies_fp8(int64_t /*out_features*/, int64_t /*in_features*/) const { return false; }
};

enum class LinearOutput : uint8_t {
  kActivations,  ///< y in the device's activation type.
  kF32,
  kAddF32,  ///< Added to y, fp32: the residual stream.
  kGated,   ///< act(gate) * up as activations, where gates() says so: y is [num_rows, out_features / 2].
};

struct LinearArgs {
  const void* x = nullptr;  ///< [num_rows, in_features] in the device's activation type (ops/decoder_ops.h)
  int64_t num_rows = 0;     ///< At most max_rows.
  void* y = nullptr;        ///< [num_rows, out_features], with room for padded_fp8_rows of e4m3 weights
  LinearOutput output = LinearOutput::kActivations;
  Gate gate = {};           ///< For kGated. The weight has gate channels first.
  void* scratch = nullptr;  ///< [num_rows, out_features] fp32, for kAddF32 on the CPU
};

/// y = x W^T for a weight prepared once. Owns its packed weight. On the CPU with kF32 and kInt8 a row's result has the
/// same bits in every batch and on any number of threads; with kBf16, and on CUDA, the order of sums may change with
/// the number of rows.
class Linear {
 public:
  /// kUnsupported when this device lacks what the format needs. `context` is needed on CUDA.
  static Result<std::unique_ptr<Linear>> create(LinearFormat format, int64_t out_features, int64_t in_features,
                                                const WeightRows& rows, int64_t max_rows, Stream stream,
                                                LinearContext* context = nullptr);
  /// Products of e4m3 codes, where the context multiplies them: x is rounded to e4m3 on the way, with a scale for every
  /// kFp8Group columns of a row. y has room for padded_fp8_rows(num_rows) rows.
  static Result<std::unique_ptr<Linear>> create_fp8(int64_t out_features, int64_t in_features,
                                                    const Fp8WeightRows& rows, int64_t max_rows, Stream stream,
                                                    LinearContext* context);
  virtual ~Linear() = default;

  /// Allocates nothing after the first call with a given num_rows (CPU: bucket of them). On CUDA such later calls can
  /// be captured.
  virtual Status run(const LinearArgs& args, Stream stream) = 0;

  /// Whether it can gate the product of so many rows itself. Both halves are rounded to activations first.
  virtual bool gates(int64_t) const { return false; }

  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;
  virtual int64_t weight_bytes() const = 0;
  /// The weight as rows [out_features, in_features] of the device's activation type, where it is held so; else null.
  virtual const void* plain_rows() const { return nullptr; }
};

/// The format that weights take unless the user names one; docs/design/2026-11-29-linear-layers.md says why.
LinearFormat default_linear_format(Stream stream);

/// Formats that the device runs with native instructions.
bool linear_format_supported(LinearFormat format, Stream stream);

}  // namespace kvant::ops
