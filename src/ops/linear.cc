#include "ops/linear.h"

#include <fmt/format.h>

#include "ops/cuda/linear_cuda.h"
#include "ops/linear_bf16.h"
#include "ops/linear_f32.h"
#include "ops/linear_int8.h"

namespace kvant::ops {

std::string_view to_string(LinearFormat format) {
  switch (format) {
    case LinearFormat::kF32: return "f32";
    case LinearFormat::kBf16: return "bf16";
    case LinearFormat::kInt8: return "int8";
  }
  return "?";
}

Result<std::unique_ptr<Linear>> Linear::create(LinearFormat format, int64_t out_features, int64_t in_features,
                                               const WeightRows& rows, int64_t max_rows, Stream stream,
                                               LinearContext* context) {
  if (out_features <= 0 || in_features <= 0 || max_rows <= 0) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("a linear layer of {} outputs, {} inputs and {} rows; each must be at least 1",
                               out_features, in_features, max_rows));
  }
  if (!linear_format_supported(format, stream)) {
    return failure(StatusCode::kUnsupported,
                   stream.cuda != nullptr
                       ? fmt::format("{} weights: on CUDA weights are held in bf16", to_string(format))
                       : fmt::format("{} weights: this CPU lacks the instructions; use f32", to_string(format)));
  }
  if (stream.cuda != nullptr) return cuda::create_linear(out_features, in_features, rows, context);
  switch (format) {
    case LinearFormat::kF32: return create_f32_linear(out_features, in_features, rows, stream);
    case LinearFormat::kBf16: return create_bf16_linear(out_features, in_features, rows, max_rows, stream);
    case LinearFormat::kInt8: return create_int8_linear(out_features, in_features, rows, max_rows, stream);
  }
  return failure(StatusCode::kInternal, "unknown weight format");
}

Result<std::unique_ptr<Linear>> Linear::create_fp8(int64_t out_features, int64_t in_features, const Fp8WeightRows& rows,
                                                   int64_t max_rows, Stream stream, LinearContext* context) {
  if (context == nullptr || !context->multiplies_fp8(out_features, in_features))
    return failure(StatusCode::kUnsupported, fmt::format("a weight of {} x {} in fp8: this device has no such products",
                                                         out_features, in_features));
  return cuda::create_fp8_linear(out_features, in_features, rows, max_rows, stream, context);
}

bool linear_format_supported(LinearFormat format, Stream stream) {
  if (stream.cuda != nullptr) return format == LinearFormat::kBf16;
  switch (format) {
    case LinearFormat::kF32:
    case LinearFormat::kInt8: return true;
    case LinearFormat::kBf16: return has_bf16_instructions();
  }
  return false;
}

LinearFormat default_linear_format(Stream stream) {
  return stream.cuda != nullptr ? LinearFormat::kBf16 : LinearFormat::kInt8;
}

Result<std::unique_ptr<LinearContext>> LinearContext::create(Stream stream, ThreadPool& loaders) {
  if (stream.cuda != nullptr) return cuda::create_linear_context(stream.cuda, loaders);
  return std::make_unique<LinearContext>();
}

}  // namespace kvant::ops
