#include <gtest/gtest.h>

#include "attn/cpu/attention_kernels.h"
#include "attn/kv/row_codec.h"
#include "support/kv_test_cache.h"

namespace kvant::attn::test {
namespace {

/// Every code, in every position of a vector, gives the value of the scalar codec, without rounding differently; NaN
/// stays NaN.
TEST(ExpandRows, GivesTheValuesOfTheScalarCodec) {
  for_each_simd_target([](const char* target) {
    for (const KvFormatInfo& format : kKvFormats) {
      for (const CodeOrder order : {CodeOrder::kLinear, CodeOrder::kPacked}) {
        for (const int32_t dim : {16, 48, 64, 80}) {
          Random random(static_cast<uint32_t>(dim));
          constexpr int32_t kRows = 40;
          const int64_t stride = KvLayout::data_row_bytes(format.format, dim) + 8;
          std::vector<uint8_t> data(static_cast<size_t>(kRows * stride)), scales(kRows * 40);
          for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.bits());
          for (uint8_t& byte : scales) byte = static_cast<uint8_t>(random.bits());
          const cpu::EncodedRows rows{data.data(), stride, scales.data(), 40, 0.37f};
          std::vector<float> actual(static_cast<size_t>(kRows * dim));
          cpu::attention_kernels().expand_rows(format.format, order)(rows, kRows, dim, actual.data());
          for (int32_t row = 0; row < kRows; ++row) {
            std::vector<float> expected(static_cast<size_t>(dim));
            const RowCodec codec{format.format, dim, 0.37f, ScalePolicy::kAmax, order};
            decode_row(codec, data.data() + row * stride, LinearScales<const uint8_t>{scales.data() + row * 40},
                       expected.data());
            for (int32_t i = 0; i < dim; ++i) {
              const float value = actual[static_cast<size_t>(row * dim + i)];
              const bool same = is_nan(expected[i]) ? is_nan(value) : value == expected[i];
              ASSERT_TRUE(same) << target << " " << format.name << " dim " << dim << " row " << row << " [" << i
                                << "]: " << value << " vs " << expected[i];
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvant::attn::test
