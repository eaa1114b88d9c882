// NVFP4 codes to fp32 in the order that costs least. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_E2M1_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_E2M1_LANES_INL_H_
#undef KVANT_ATTN_CPU_E2M1_LANES_INL_H_
#else
#define KVANT_ATTN_CPU_E2M1_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include "attn/kv/nvfp4.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// e2m1 codes in linear order to fp32, a chunk of eight vectors at a time in the order that costs least, the lane
/// order: a vector holds every fourth element of two blocks of 16 (one on 128-bit vectors). With a chunk as [half
/// h][group g][j][e], 2 x 2 x 4 x 4 elements, lane (h, j) of vector 4 g + e is element (h, g, j, e): the two codes of
/// a byte go to the same lane of two vectors, and a vector's lanes of one half share a scale.
struct E2m1Lanes {
  using Floats = hn::CappedTag<float, 8>;
  using Words = hn::RebindToUnsigned<Floats>;
  using Bytes = hn::Repartition<uint8_t, Floats>;
  using Quad = hn::FixedTag<float, 4>;
  using V = hn::Vec<Floats>;
  static constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(Floats()));
  static constexpr int32_t kHalves = kLanes / 4;
  static constexpr int32_t kElements = 8 * kLanes;
  static constexpr int32_t kBlocks = kElements / kNvfp4Block;
  static constexpr int32_t kGroups = 2;

  enum class Codes { kLow, kHigh };  ///< Of a byte: elements e = 0 and 2, or 1 and 3.

  template <Codes kCodes>
  static HWY_INLINE hn::Vec<Bytes> select(hn::Vec<Bytes> chunk) {
    const hn::Repartition<uint16_t, Bytes> pairs;
    if constexpr (kCodes == Codes::kHigh) chunk = hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(pairs, chunk)));
    return hn::And(chunk, hn::Set(Bytes(), 15));
  }

  /// The upper two bytes of a value come from byte look-ups, the lower two are zero: elements e and e + 2 of a group
  /// are the halves of words.
  struct Halves {
    hn::Vec<Bytes> first, second;
    HWY_INLINE explicit Halves(hn::Vec<Bytes> codes)
        : first(hn::TableLookupBytes(hn::LoadDup128(Bytes(), kFirst), codes)),
          second(hn::TableLookupBytes(hn::LoadDup128(Bytes(), kSecond), codes)) {}
    template <int kGroup>
    HWY_INLINE hn::Vec<Words> words() const {
      return hn::BitCast(Words(), kGroup == 0 ? hn::InterleaveLower(Bytes(), second, first)
                                              : hn::InterleaveUpper(Bytes(), second, first));
    }
  };
  static HWY_INLINE V lower(hn::Vec<Words> words) { return hn::BitCast(Floats(), hn::ShiftLeft<16>(words)); }
  static HWY_INLINE V upper(hn::Vec<Words> words) {
    return hn::BitCast(Floats(), hn::And(words, hn::Set(Words(), 0xffff0000u)));
  }

  /// Calls take(vector, values) for all eight vectors of a chunk.
  template <class Take>
  static HWY_INLINE void for_each(const uint8_t* codes, const Take& take) {
    const auto chunk = hn::LoadU(Bytes(), codes);
    const Halves low(select<Codes::kLow>(chunk));
    const Halves high(select<Codes::kHigh>(chunk));
    for_group<0>(low, high, take);
    for_group<1>(low, high, take);
  }

  /// The scale of a group's vectors, from the scales of a chunk's blocks.
  template <class D = Floats>
  static HWY_INLINE hn::Vec<D> group_scale(const float* scales, int32_t group) {
    const D d;
    if constexpr (hn::MaxLanes(D()) == 4) {
      return hn::Set(d, scales[group]);
    } else {
      const hn::Half<D> half;
      return hn::Combine(d, hn::Set(half, scales[kGroups + group]), hn::Set(half, scales[group]));
    }
  }

  /// Scales of one or more chunks, one for each vector group in lane order: `scales` holds them by block, `out` takes
  /// [kGroups][kLanes] a chunk. The count is a multiple of kLanes: scales of two chunks.
  static HWY_INLINE void spread(V scales, float* out) {
    const hn::RebindToSigned<Floats> di;
    const auto half = hn::ShiftLeft<1>(hn::ShiftRight<2>(hn::Iota(di, 0)));
    HWY_UNROLL(4)
    for (int32_t i = 0; i < 4; ++i) {
      const auto from = hn::Add(half, hn::Set(di, i / 2 * kBlocks + i % 2));
      hn::StoreU(hn::TableLookupLanes(scales, hn::IndicesFromVec(Floats(), from)), Floats(), out + i * kLanes);
    }
  }

  static HWY_INLINE void to_lanes(const float* chunk, float* lanes) {
    const Quad d4;
    for (int32_t h = 0; h < kHalves; ++h) {
      for (int32_t g = 0; g < kGroups; ++g) {
        hn::Vec<Quad> e0, e1, e2, e3;
        hn::LoadInterleaved4(d4, chunk + (h * kGroups + g) * kNvfp4Block, e0, e1, e2, e3);
        float* to = lanes + 4 * g * kLanes + 4 * h;
        hn::StoreU(e0, d4, to);
        hn::StoreU(e1, d4, to + kLanes);
        hn::StoreU(e2, d4, to + 2 * kLanes);
        hn::StoreU(e3, d4, to + 3 * kLanes);
      }
    }
  }
  static HWY_INLINE void from_lanes(const float* lanes, float* chunk) {
    const Quad d4;
    for (int32_t h = 0; h < kHalves; ++h) {
      for (int32_t g = 0; g < kGroups; ++g) {
        const float* from = lanes + 4 * g * kLanes + 4 * h;
        hn::StoreInterleaved4(hn::LoadU(d4, from), hn::LoadU(d4, from + kLanes), hn::LoadU(d4, from + 2 * kLanes),
                              hn::LoadU(d4, from + 3 * kLanes), d4, chunk + (h * kGroups + g) * kNvfp4Block);
      }
    }
  }

 private:
  template <int kGroup, class Take>
  static HWY_INLINE void for_group(const Halves& low, const Halves& high, const Take& take) {
    const auto even = low.template words<kGroup>();
    const auto odd = high.template words<kGroup>();
    take(4 * kGroup, lower(even));
    take(4 * kGroup + 1, lower(odd));
    take(4 * kGroup + 2, upper(even));
    take(4 * kGroup + 3, upper(odd));
  }

  alignas(16) static constexpr uint8_t kFirst[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                     0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  alignas(16) static constexpr uint8_t kSecond[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                                      0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
};

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
