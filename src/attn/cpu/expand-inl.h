// Expansion of encoded rows to fp32. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_EXPAND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_EXPAND_INL_H_
#undef KVANT_ATTN_CPU_EXPAND_INL_H_
#else
#define KVANT_ATTN_CPU_EXPAND_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/e2m1_lanes-inl.h"
#include "attn/cpu/e4m3_table.h"
#include "attn/kv/e2m1.h"
#include "attn/kv/nvfp4.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// f16 bits to fp32, inf and NaN included: Highway's own emulation on CPUs without F16C takes them for numbers.
template <class D, class VU16>
HWY_INLINE hn::Vec<D> promote_f16(D d, VU16 bits) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
  const hn::RebindToUnsigned<D> du;
  const auto half = hn::PromoteTo(du, bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::And(half, hn::Set(du, 0x7fffu));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals.
  const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(d, shifted), hn::Set(d, 0x1p112f)));
  const auto special = hn::Or(shifted, hn::Set(du, 0x7f800000u));
  const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x7bffu));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
#else
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(d, hn::BitCast(df16, bits));
#endif
}

struct F32Codec {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* data) {
    return hn::LoadU(d, reinterpret_cast<const float*>(data));
  }
  static constexpr int kBytes = 4;
};

struct F16Codec {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* data) {
    const hn::Rebind<uint16_t, D> du16;
    return promote_f16(d, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(data)));
  }
  static constexpr int kBytes = 2;
};

struct Bf16Codec {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* data) {
    const hn::Rebind<uint16_t, D> du16;
    const hn::RebindToUnsigned<D> du32;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(data));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
  }
  static constexpr int kBytes = 2;
};

template <class Codec>
void expand_floats(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  const hn::ScalableTag<float> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t row = 0; row < num_rows; ++row) {
    const uint8_t* data = rows.data + row * rows.data_stride;
    for (int32_t i = 0; i < dim; i += lanes) hn::StoreU(Codec::load(d, data + i * Codec::kBytes), d, out + i);
    out += dim;
  }
}

/// Both fp8 formats become f16 by moving bits. An e5m2 number is the upper byte of an f16 number; an e4m3 number, its
/// exponent placed in the low bits of f16's, is 2^8 times too small.
template <bool kIsE4m3, class D, class V = hn::Vec<D>>
HWY_INLINE V fp8_to_f16_bits(D du16, V codes) {
  const hn::RebindToSigned<D> di16;
  V bits = hn::ShiftLeft<8>(codes);
  if constexpr (kIsE4m3) {
    bits = hn::And(hn::BitCast(du16, hn::ShiftRight<1>(hn::BitCast(di16, bits))), hn::Set(du16, 0xbfff));
    // 0x7f and 0xff are the only NaNs; without this they would read as 480.
    const V largest = hn::Set(du16, 0x3f80);
    const V nan = hn::VecFromMask(du16, hn::Eq(hn::And(bits, largest), largest));
    bits = hn::Or(bits, hn::And(nan, hn::Set(du16, 0x7e00)));
  }
  return bits;
}

template <bool kIsE4m3>
void expand_fp8(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<uint16_t, 16> du16;
  const hn::Rebind<uint8_t, decltype(du16)> du8;
  const auto g = hn::Set(d, kIsE4m3 ? rows.g * 256.0f : rows.g);
  for (int32_t row = 0; row < num_rows; ++row) {
    const uint8_t* data = rows.data + row * rows.data_stride;
    for (int32_t i = 0; i < dim; i += static_cast<int32_t>(hn::Lanes(du16))) {
      const auto bits = fp8_to_f16_bits<kIsE4m3>(du16, hn::PromoteTo(du16, hn::LoadU(du8, data + i)));
      if constexpr (hn::MaxLanes(du16) == hn::MaxLanes(d)) {
        hn::StoreU(hn::Mul(promote_f16(d, bits), g), d, out + i);
      } else {
        const hn::Half<decltype(du16)> half;
        const auto low = promote_f16(d, hn::LowerHalf(half, bits));
        const auto high = promote_f16(d, hn::UpperHalf(half, bits));
        hn::StoreU(hn::Mul(low, g), d, out + i);
        hn::StoreU(hn::Mul(high, g), d, out + i + static_cast<int32_t>(hn::Lanes(d)));
      }
    }
    out += dim;
  }
}

template <CodeOrder kOrder>
void expand_nvfp4(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  using L = E2m1Lanes;
  const L::Floats d;
  HWY_ALIGN float lanes[L::kElements];
  HWY_ALIGN float block_scales[L::kLanes] = {};
  for (int32_t row = 0; row < num_rows; ++row) {
    const uint8_t* data = rows.data + row * rows.data_stride;
    const uint8_t* scales = rows.scales + row * rows.scale_stride;
    for (int32_t first = 0; first < dim; first += L::kElements) {
      const int32_t count = dim - first < L::kElements ? dim - first : L::kElements;
      const uint8_t* codes = data + first / 2;
      uint8_t linear[L::kElements / 2] = {};
      if (kOrder == CodeOrder::kPacked || count < L::kElements) {
        for (int32_t byte = 0; byte < count / 2; byte += 4) {
          uint32_t word;
          std::memcpy(&word, codes + byte, sizeof(word));
          if constexpr (kOrder == CodeOrder::kPacked) word = packed_to_linear(word);
          std::memcpy(linear + byte, &word, sizeof(word));
        }
        codes = linear;
      }
      for (int32_t i = 0; i < count / kNvfp4Block; ++i)
        block_scales[i] = kE4m3Values[scales[first / kNvfp4Block + i]] * rows.g;
      const L::V scale = L::spread<0>(hn::Load(d, block_scales));
      const auto take = [&](int32_t vector, L::V values)
                            HWY_ATTR { hn::Store(hn::Mul(values, scale), d, lanes + vector * L::kLanes); };
      L::for_each(take, codes);
      const auto to_row = [&](float* to) HWY_ATTR {
        L::from_lanes(lanes, [&](int32_t i, auto values)
                                 HWY_ATTR { hn::StoreU(values, hn::DFromV<decltype(values)>(), to + i); });
      };
      if (count == L::kElements) {
        to_row(out + first);
      } else {
        float chunk[L::kElements];
        to_row(chunk);
        std::memcpy(out + first, chunk, static_cast<size_t>(count) * sizeof(float));
      }
    }
    out += dim;
  }
}

inline ExpandRows expand_rows(KvFormat format, CodeOrder order) {
  switch (format) {
    case KvFormat::kF32: return expand_floats<F32Codec>;
    case KvFormat::kF16: return expand_floats<F16Codec>;
    case KvFormat::kBf16: return expand_floats<Bf16Codec>;
    case KvFormat::kE4m3: return expand_fp8<true>;
    case KvFormat::kE5m2: return expand_fp8<false>;
    case KvFormat::kNvfp4:
      return order == CodeOrder::kLinear ? expand_nvfp4<CodeOrder::kLinear> : expand_nvfp4<CodeOrder::kPacked>;
  }
  return nullptr;
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
