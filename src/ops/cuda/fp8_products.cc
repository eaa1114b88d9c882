#include "ops/cuda/fp8_products.h"

#include "ops/cuda/one_row.h"
#include "ops/cuda/quantise_rows.h"

namespace kvant::ops::cuda {
namespace {

/// Scales of blocks pay where there is much to multiply, and cost where there is little: the library's kernels differ
/// (docs/design/2026-11-29-cuda-engine.md has times).
bool prefers_blocks(int64_t num_rows, int64_t out_features) {
  return num_rows > 64 && num_rows * out_features >= int64_t{1} << 20;
}

}  // namespace

Status Fp8Products::reserve(int64_t max_rows, int64_t in_features) {
  const int64_t rows = padded_fp8_rows(max_rows);
  const int64_t scale_bytes = rows * (in_features / kFp8Group) * int64_t{sizeof(float)};
  if (codes_.bytes() < rows * in_features) {
    KVANT_ASSIGN_OR_RETURN(codes_, DeviceBuffer::create(MemoryKind::kCuda, rows * in_features, "fp8 activations"));
  }
  if (scales_.bytes() < scale_bytes) {
    KVANT_ASSIGN_OR_RETURN(scales_, DeviceBuffer::create(MemoryKind::kCuda, scale_bytes, "scales of fp8 activations"));
  }
  return {};
}

Status Fp8Products::multiply(const Fp8DeviceWeight& weight, const LinearArgs& args, void* stream) {
  const int64_t rows = args.num_rows == 1 ? 1 : padded_fp8_rows(args.num_rows);
  KVANT_RETURN_IF_ERROR(quantise_rows({.x = args.x,
                                       .num_rows = args.num_rows,
                                       .padded_rows = rows,
                                       .columns = weight.in_features,
                                       .codes = codes_.data(),
                                       .scales = scales_.as<float>()},
                                      stream));
  if (rows == 1)
    return multiply_one_fp8_row({.weight = weight.codes.data(),
                                 .scales = weight.scales.as<float>(),
                                 .x = codes_.data(),
                                 .x_scales = scales_.as<float>(),
                                 .y = args.y,
                                 .out_features = weight.out_features,
                                 .in_features = weight.in_features,
                                 .output = args.output},
                                stream);
  const bool blocks = weight.block_scales.bytes() > 0 && prefers_blocks(args.num_rows, weight.out_features);
  const LtScales scales{.weight = (blocks ? weight.block_scales : weight.scales).as<float>(), .x = scales_.as<float>()};
  KVANT_ASSIGN_OR_RETURN(const LtProduct* product, products_.find({.out_features = weight.out_features,
                                                                   .in_features = weight.in_features,
                                                                   .num_rows = rows,
                                                                   .output = args.output,
                                                                   .blocks = blocks},
                                                                  &scales));
  return product->run(weight.codes.data(), codes_.data(), args.y, stream, &scales);
}

}  // namespace kvant::ops::cuda
