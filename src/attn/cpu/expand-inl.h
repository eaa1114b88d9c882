// Expansion of encoded rows to fp32. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_EXPAND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_EXPAND_INL_H_
#undef KVANT_ATTN_CPU_EXPAND_INL_H_
#else
#define KVANT_ATTN_CPU_EXPAND_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstring>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/e4m3_table.h"
#include "attn/kv/e2m1.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(data))));
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
template <bool kIsE4m3>
void expand_fp8(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  const hn::Rebind<uint16_t, decltype(d)> du16;
  const hn::Rebind<int16_t, decltype(d)> di16;
  const hn::Rebind<hwy::float16_t, decltype(d)> df16;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto g = hn::Set(d, kIsE4m3 ? rows.g * 256.0f : rows.g);
  for (int32_t row = 0; row < num_rows; ++row) {
    const uint8_t* data = rows.data + row * rows.data_stride;
    for (int32_t i = 0; i < dim; i += lanes) {
      auto bits = hn::ShiftLeft<8>(hn::PromoteTo(du16, hn::LoadU(du8, data + i)));
      if constexpr (kIsE4m3) {
        bits = hn::BitCast(du16, hn::ShiftRight<1>(hn::BitCast(di16, bits)));
        bits = hn::And(bits, hn::Set(du16, 0xbfff));
        // 0x7f and 0xff are the only NaNs; without this they would read as 480.
        const auto magnitude = hn::And(bits, hn::Set(du16, 0x3f80));
        const auto nan = hn::VecFromMask(du16, hn::Eq(magnitude, hn::Set(du16, 0x3f80)));
        bits = hn::Or(bits, hn::And(nan, hn::Set(du16, 0x7e00)));
      }
      hn::StoreU(hn::Mul(hn::PromoteTo(d, hn::BitCast(df16, bits)), g), d, out + i);
    }
    out += dim;
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

/// Shifts that bring the magnitudes of a word's eight codes to bits 0..2, and their signs to bit 31.
template <CodeOrder kOrder>
inline constexpr std::array<int32_t, 8> kMagnitudeRight = [] {
  std::array<int32_t, 8> shifts{};
  for (int32_t i = 0; i < 8; ++i)
    shifts[i] = kOrder == CodeOrder::kLinear ? linear_magnitude_shift(i) : packed_magnitude_shift(i);
  return shifts;
}();
template <CodeOrder kOrder>
inline constexpr std::array<int32_t, 8> kSignLeft = [] {
  std::array<int32_t, 8> shifts{};
  for (int32_t i = 0; i < 8; ++i)
    shifts[i] = 31 - (kOrder == CodeOrder::kLinear ? linear_sign_shift(i) : packed_sign_shift(i));
  return shifts;
}();

/// A word is broadcast to eight lanes, each lane shifts its own code down and looks its magnitude up in a register.
template <CodeOrder kOrder>
void expand_nvfp4(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 sign_bit = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
  const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMagnitudeRight<kOrder>.data()));
  const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kSignLeft<kOrder>.data()));
  for (int32_t row = 0; row < num_rows; ++row) {
    const uint8_t* data = rows.data + row * rows.data_stride;
    const uint8_t* scales = rows.scales + row * rows.scale_stride;
    for (int32_t block = 0; block < dim / 16; ++block) {
      const __m256 scale = _mm256_set1_ps(kE4m3Values[scales[block]] * rows.g);
      for (int32_t half = 0; half < 2; ++half) {
        int32_t word;
        std::memcpy(&word, data + 8 * block + 4 * half, sizeof(word));
        const __m256i codes = _mm256_set1_epi32(word);
        const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, _mm256_srlv_epi32(codes, right));
        const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(codes, left)), sign_bit);
        _mm256_storeu_ps(out + 16 * block + 8 * half, _mm256_mul_ps(_mm256_xor_ps(magnitude, sign), scale));
      }
    }
    out += dim;
  }
}

#else

/// Byte look-up from codes to twice their value, which is an integer.
template <CodeOrder kOrder>
void expand_nvfp4(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di32;
  const hn::Rebind<int8_t, decltype(d)> di8;
  const hn::Full128<uint8_t> du8;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  alignas(16) static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const auto table = hn::Load(du8, reinterpret_cast<const uint8_t*>(kTwice));
  for (int32_t row = 0; row < num_rows; ++row) {
    const uint8_t* data = rows.data + row * rows.data_stride;
    const uint8_t* scales = rows.scales + row * rows.scale_stride;
    for (int32_t block = 0; block < dim / 16; ++block) {
      uint32_t words[2];
      std::memcpy(words, data + 8 * block, sizeof(words));
      if constexpr (kOrder == CodeOrder::kPacked) {
        words[0] = packed_to_linear(words[0]);
        words[1] = packed_to_linear(words[1]);
      }
      alignas(16) uint8_t bytes[16] = {};
      std::memcpy(bytes, words, sizeof(words));
      const auto pairs = hn::Load(du8, bytes);
      const auto low = hn::And(pairs, hn::Set(du8, 15));
      const auto high = hn::ShiftRight<4>(pairs);
      alignas(16) uint8_t twice[16];
      hn::Store(hn::TableLookupBytes(table, hn::InterleaveLower(du8, low, high)), du8, twice);
      const auto scale = hn::Set(d, kE4m3Values[scales[block]] * rows.g * 0.5f);
      for (int32_t i = 0; i < 16; i += lanes) {
        const auto integers = hn::PromoteTo(di32, hn::LoadU(di8, reinterpret_cast<const int8_t*>(twice) + i));
        hn::StoreU(hn::Mul(hn::ConvertTo(d, integers), scale), d, out + 16 * block + i);
      }
    }
    out += dim;
  }
}

#endif

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
