#include "ops/int8_kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_bits.h"
#include "core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/int8_kernel.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/panel_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {

using Sums = hn::RebindToSigned<Floats>;
using Words = hn::Repartition<int16_t, Sums>;
using Bytes = hn::Rebind<int8_t, Words>;

/// sum + a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1] in every lane i; kVnni: by AVX-512 VNNI's instruction for it.
template <bool kVnni>
HWY_INLINE hn::Vec<Sums> mul_add_pairs(hn::Vec<Words> a, hn::Vec<Words> b, hn::Vec<Sums> sum) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
    asm("vpdpwssd %[b], %[a], %[sum]" : [sum] "+v"(sum.raw) : [a] "v"(a.raw), [b] "v"(b.raw));
    return sum;
  }
#endif
  const Sums d;
#if HWY_TARGET == HWY_AVX2
  // Left to itself, gcc moves most sums between registers: a seventh of the loop's instructions.
  (void)d;
  hn::Vec<Sums> products;
  asm("vpmaddwd %[a], %[b], %[products]\n\tvpaddd %[products], %[sum], %[sum]"
      : [sum] "+x"(sum.raw), [products] "=&x"(products.raw)
      : [a] "x"(a.raw), [b] "x"(b.raw));
  return sum;
#elif HWY_ARCH_X86
  auto unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, a, b, sum, unused);
#else
  const auto even = [d](auto v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(d, v))); };
  const auto odd = [d](auto v) HWY_ATTR { return hn::ShiftRight<16>(hn::BitCast(d, v)); };
  return hn::Add(sum, hn::Add(hn::Mul(even(a), even(b)), hn::Mul(odd(a), odd(b))));
#endif
}

HWY_INLINE hn::Vec<Words> broadcast_pair(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return hn::BitCast(Words(), hn::Set(Sums(), both));
}

// Up to this many rows the weights' way from memory bounds the speed; the hardware alone does not fetch them far enough
// ahead. With AVX-512 that is every tile: what it costs a prompt is not measurable. Reading past the end of the last
// panel is harmless: a prefetch never faults.
constexpr int64_t kStreamingRows = kVectors == 1 ? kTileRows : 4;
constexpr int64_t kPrefetchBytes = kVectors == 1 ? 2048 : 1024;

template <bool kVnni>
struct Int8Tile {
  /// kRows rows by one panel.
  template <int64_t kRows>
  static HWY_NOINLINE void run(const QuantisedRows& x, const int8_t* HWY_RESTRICT panel,
                               const float* HWY_RESTRICT output_scales, int64_t input_pairs, int64_t num_outputs,
                               float* HWY_RESTRICT y, int64_t y_stride) {
    const int16_t* HWY_RESTRICT values = x.values;
    const int64_t x_stride = x.stride;
    hn::Vec<Sums> sums[kRows][kVectors];
    HWY_UNROLL(16) for (int64_t row = 0; row < kRows; ++row) {
      HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) sums[row][v] = hn::Zero(Sums());
    }
    for (int64_t pair = 0; pair < input_pairs; ++pair) {
      if constexpr (kRows <= kStreamingRows) hwy::Prefetch(panel + 2 * pair * kPanelOutputs + kPrefetchBytes);
      hn::Vec<Words> weights[kVectors];
      HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) {
        weights[v] = hn::PromoteTo(Words(), hn::LoadU(Bytes(), panel + 2 * (pair * kPanelOutputs + v * kLanes)));
      }
      HWY_UNROLL(16) for (int64_t row = 0; row < kRows; ++row) {
        const auto activation = broadcast_pair(values + row * x_stride + 2 * pair);
        HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) {
          sums[row][v] = mul_add_pairs<kVnni>(weights[v], activation, sums[row][v]);
          keep_in_register(sums[row][v]);
        }
      }
    }
    const Floats d;
    HWY_UNROLL(16) for (int64_t row = 0; row < kRows; ++row) {
      hn::Vec<Floats> outputs[kVectors];
      HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) {
        const auto scale = hn::Mul(hn::LoadU(d, output_scales + v * kLanes), hn::Set(d, x.scales[row]));
        outputs[v] = hn::Mul(hn::ConvertTo(d, sums[row][v]), scale);
      }
      store_panel(outputs, num_outputs, y + row * y_stride);
    }
  }
};

template <bool kVnni>
void multiply_tiles(const QuantisedRows& x, int64_t num_rows, const Int8Panels& weights, int64_t panel_begin,
                    int64_t panel_end, float* y) {
  const int64_t height = tile_height(num_rows);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t output = panel * kPanelOutputs;
    const int64_t num_outputs = HWY_MIN(kPanelOutputs, weights.out_features - output);
    for (int64_t row = 0; row < num_rows; row += height) {
      const QuantisedRows tile{x.values + row * x.stride, x.stride, x.scales + row};
      run_tile<Int8Tile<kVnni>>(HWY_MIN(height, num_rows - row), tile,
                                weights.weights + output * weights.input_pairs * 2, weights.scales + output,
                                weights.input_pairs, num_outputs, y + row * weights.out_features + output,
                                weights.out_features);
    }
  }
}

void multiply_panels(const QuantisedRows& x, int64_t num_rows, const Int8Panels& weights, int64_t panel_begin,
                     int64_t panel_end, float* y) {
#if HWY_TARGET == HWY_AVX3
  // Highway's set of targets with it, AVX3_DL, is off by default, and 1.0.3 compiles it for AVX-VNNI, another
  // extension.
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  if (has_vnni) return multiply_tiles<true>(x, num_rows, weights, panel_begin, panel_end, y);
#endif
  multiply_tiles<false>(x, num_rows, weights, panel_begin, panel_end, y);
}

float quantise(const float* x, int64_t in_features, int32_t limit, int16_t* values) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int16_t, decltype(df)> dw;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const int64_t even_features = in_features + in_features % 2;
  // Magnitudes compare as integers the way they do as floats, and NaN is above infinity: nothing can hide one.
  auto max_bits = hn::Zero(di);
  int64_t i = 0;
  for (; i + lanes <= in_features; i += lanes)
    max_bits = hn::Max(max_bits, hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i))));
  int32_t largest_bits = hn::GetLane(hn::MaxOfLanes(di, max_bits));
  for (; i < in_features; ++i) {
    largest_bits = HWY_MAX(largest_bits, static_cast<int32_t>(float_to_bits(x[i]) & 0x7fffffffu));
  }
  const float largest = bits_to_float(static_cast<uint32_t>(largest_bits));
  if (!(largest <= std::numeric_limits<float>::max())) {
    std::memset(values, 0, static_cast<size_t>(even_features) * sizeof(int16_t));
    return std::numeric_limits<float>::quiet_NaN();
  }
  // Below this the scale's inverse would overflow; such a row is zero next to anything a model computes.
  const float inverse = largest < 1e-30f ? 0.0f : static_cast<float>(limit) / largest;
  const auto inverses = hn::Set(df, inverse);
  for (i = 0; i + lanes <= in_features; i += lanes) {
    hn::StoreU(hn::DemoteTo(dw, hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverses))), dw, values + i);
  }
  for (; i < in_features; ++i) values[i] = static_cast<int16_t>(std::nearbyint(x[i] * inverse));
  if (even_features != in_features) values[in_features] = 0;
  return largest / static_cast<float>(limit);
}

}  // namespace kvant::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvant::ops {

HWY_EXPORT(multiply_panels);
HWY_EXPORT(quantise);

float quantise_row(const float* x, int64_t in_features, int32_t limit, int16_t* values) {
  return HWY_DYNAMIC_DISPATCH(quantise)(x, in_features, limit, values);
}

void multiply_int8_panels(const QuantisedRows& x, int64_t num_rows, const Int8Panels& weights, int64_t panel_begin,
                          int64_t panel_end, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_panels)(x, num_rows, weights, panel_begin, panel_end, y);
}

}  // namespace kvant::ops
#endif
