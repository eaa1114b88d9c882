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
struct WordLookup {
  // GCC gives a constructor the target's instructions only when it is written out.
  HWY_INLINE WordLookup() {}
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 sign_bit = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
  const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMagnitudeRight<kOrder>.data()));
  const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kSignLeft<kOrder>.data()));

  HWY_INLINE void expand_block(const uint8_t* data, __m256 scale, float* out) const {
    for (int32_t half = 0; half < 2; ++half) {
      int32_t word;
      std::memcpy(&word, data + 4 * half, sizeof(word));
      const __m256i codes = _mm256_set1_epi32(word);
      const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, _mm256_srlv_epi32(codes, right));
      const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(codes, left)), sign_bit);
      _mm256_storeu_ps(out + 8 * half, _mm256_mul_ps(_mm256_xor_ps(magnitude, sign), scale));
    }
  }
};

/// Two blocks in linear order. The upper two bytes of each code's fp32 value come from byte look-ups; the first shuffle
/// puts codes where unpacking within 128-bit halves leaves them in order.
struct ByteLookup {
  HWY_INLINE ByteLookup() {}
  const __m256i twice = _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13,  //
                                         2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15);
  const __m256i even = _mm256_set1_epi16(0x000f);
  const __m256i odd = _mm256_set1_epi16(0x0f00);
  const __m256i first_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i second_bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));

  HWY_INLINE void expand_two_blocks(const uint8_t* data, __m256 scale0, __m256 scale1, float* out) const {
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data))), twice);
    const __m256i codes =
        _mm256_or_si256(_mm256_and_si256(bytes, even), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), odd));
    const __m256i first = _mm256_shuffle_epi8(first_bytes, codes);
    const __m256i second = _mm256_shuffle_epi8(second_bytes, codes);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_unpacklo_epi8(second, first);
    const __m256i high = _mm256_unpackhi_epi8(second, first);
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, low)), scale0));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, low)), scale0));
    _mm256_storeu_ps(out + 16, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, high)), scale1));
    _mm256_storeu_ps(out + 24, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, high)), scale1));
  }
};

template <CodeOrder kOrder>
void expand_nvfp4(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out) {
  const WordLookup<kOrder> words;
  const ByteLookup bytes;
  const __m256 g = _mm256_set1_ps(rows.g);
  const int64_t num_blocks = dim / 16;
  const uint8_t* data = rows.data;
  const uint8_t* scales = rows.scales;
  const auto scale_of = [&](int64_t block)
                            HWY_ATTR { return _mm256_mul_ps(_mm256_broadcast_ss(&kE4m3Values[scales[block]]), g); };
  for (int32_t row = 0; row < num_rows; ++row) {
    int64_t block = 0;
    if constexpr (kOrder == CodeOrder::kLinear)
      for (; block + 2 <= num_blocks; block += 2)
        bytes.expand_two_blocks(data + 8 * block, scale_of(block), scale_of(block + 1), out + 16 * block);
    for (; block < num_blocks; ++block) words.expand_block(data + 8 * block, scale_of(block), out + 16 * block);
    data += rows.data_stride;
    scales += rows.scale_stride;
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
