#include "engine/loader/weight_rows.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "core/float_bits.h"
#include "engine/loader/printable.h"

namespace kvant::engine {
namespace {

constexpr int64_t kNvfp4Block = 16;
constexpr int64_t kMxfp4Block = 32;

template <class Code, class Decode>
ops::WeightRows plain(const std::byte* data, int64_t columns, Decode decode) {
  return [=](int64_t begin, int64_t end, float* out) {
    const std::byte* at = data + static_cast<size_t>(begin * columns) * sizeof(Code);
    for (int64_t i = 0; i < (end - begin) * columns; ++i, at += sizeof(Code)) {
      Code code;
      std::memcpy(&code, at, sizeof(code));
      out[i] = decode(code);
    }
  };
}

/// The value of every code.
template <size_t kCodes>
std::array<float, kCodes> values_of(float (*decode)(uint8_t)) {
  std::array<float, kCodes> values;
  for (size_t code = 0; code < kCodes; ++code) values[code] = decode(static_cast<uint8_t>(code));
  return values;
}

auto e4m3_values() { return std::make_shared<const std::array<float, 256>>(values_of<256>(e4m3_to_float)); }

/// 2^(code - 127); 255 is NaN.
float e8m0_to_float(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
}

/// Rows of packed e2m1 codes whose block scales `scale_of(code)` gives.
template <int64_t kBlock, class ScaleOf>
ops::WeightRows packed_rows(const std::byte* codes, const std::byte* scales, int64_t columns, ScaleOf scale_of) {
  return [=, values = values_of<16>(e2m1_to_float)](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* row_codes = codes + row * (columns / 2);
      const std::byte* row_scales = scales + row * (columns / kBlock);
      for (int64_t column = 0; column < columns; column += 2, out += 2) {
        const float scale = scale_of(static_cast<uint8_t>(row_scales[column / kBlock]));
        const auto pair = static_cast<uint8_t>(row_codes[column / 2]);
        out[0] = values[pair & 15u] * scale;
        out[1] = values[pair >> 4] * scale;
      }
    }
  };
}

}  // namespace

Result<ops::WeightRows> float_rows(const SafetensorsTensor& tensor, int64_t columns, int64_t first_row) {
  const std::byte* data = tensor.data.data() + first_row * columns * element_bytes(tensor.type);
  switch (tensor.type) {
    case SafetensorsType::kF32: return plain<float>(data, columns, [](float value) { return value; });
    case SafetensorsType::kF16: return plain<uint16_t>(data, columns, [](uint16_t bits) { return f16_to_float(bits); });
    case SafetensorsType::kBf16:
      return plain<uint16_t>(data, columns, [](uint16_t bits) { return bf16_to_float(bits); });
    default:
      return failure(StatusCode::kUnsupported, fmt::format("tensor '{}' is {}; F32, F16 or BF16 is needed",
                                                           printable(tensor.name), to_string(tensor.type)));
  }
}

Result<std::vector<float>> float_values(const SafetensorsTensor& tensor) {
  const int64_t count = tensor.num_elements();
  KVANT_ASSIGN_OR_FAIL(const ops::WeightRows read, float_rows(tensor, count));
  std::vector<float> values(static_cast<size_t>(count));
  if (count > 0) read(0, 1, values.data());
  return values;
}

ops::WeightRows fp8_rows(const SafetensorsTensor& codes, int64_t columns, std::shared_ptr<const BlockScales> scales) {
  return [columns, data = codes.data.data(), scales = std::move(scales), values = e4m3_values()](
             int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row) {
      const float* row_scales = scales->of_row(row, columns);
      const std::byte* row_codes = data + row * columns;
      for (int64_t column = 0; column < columns; ++column)
        *out++ = (*values)[static_cast<size_t>(row_codes[column])] * row_scales[column / scales->block_columns];
    }
  };
}

ops::Fp8WeightRows fp8_codes(const SafetensorsTensor& codes, int64_t columns,
                             std::shared_ptr<const BlockScales> scales) {
  if (columns % ops::kFp8Group != 0 || scales->block_columns % ops::kFp8Group != 0) return nullptr;
  return [columns, data = codes.data.data(), scales = std::move(scales)](int64_t begin, int64_t end, uint8_t* out,
                                                                         float* out_scales) {
    std::memcpy(out, data + begin * columns, static_cast<size_t>((end - begin) * columns));
    for (int64_t row = begin; row < end; ++row) {
      const float* row_scales = scales->of_row(row, columns);
      for (int64_t column = 0; column < columns; column += ops::kFp8Group)
        *out_scales++ = row_scales[column / scales->block_columns];
    }
  };
}

ops::WeightRows nvfp4_rows(const SafetensorsTensor& codes, const SafetensorsTensor& block_scales, int64_t columns,
                           float global_scale) {
  const auto values = e4m3_values();
  return packed_rows<kNvfp4Block>(codes.data.data(), block_scales.data.data(), columns,
                                  [=](uint8_t code) { return fl_mul((*values)[code], global_scale); });
}

ops::WeightRows mxfp4_rows(const SafetensorsTensor& codes, const SafetensorsTensor& block_scales, int64_t columns,
                           int64_t first_row) {
  return packed_rows<kMxfp4Block>(codes.data.data() + first_row * (columns / 2),
                                  block_scales.data.data() + first_row * (columns / kMxfp4Block), columns,
                                  e8m0_to_float);
}

}  // namespace kvant::engine
