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
/// order: lanes 2 b and 2 b + 1 of every vector hold elements of block b of the chunk, so that all vectors share one
/// vector of scales. With a chunk as [block b][u][k][e], 2 x 2 x 4 elements a block, lane (b, k) of vector 4 u + e is
/// element (b, u, k, e): the two codes of a byte go to the same lane of two vectors.
struct E2m1Lanes {
  using Floats = hn::CappedTag<float, 8>;
  using Words = hn::RebindToUnsigned<Floats>;
  using Bytes = hn::Repartition<uint8_t, Floats>;
  using V = hn::Vec<Floats>;
  static constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(Floats()));
  static constexpr int32_t kElements = 8 * kLanes;
  static constexpr int32_t kBlocks = kElements / kNvfp4Block;

  enum class Codes { kLow, kHigh };  ///< Of a byte: elements e = 0 and 2, or 1 and 3.

  /// Codes of a chunk, those of the blocks of a half taking turns of four bytes.
  static HWY_INLINE hn::Vec<Bytes> load(const uint8_t* codes) {
    return hn::TableLookupBytes(hn::LoadU(Bytes(), codes), hn::LoadDup128(Bytes(), kTurns));
  }

  template <Codes kCodes>
  static HWY_INLINE hn::Vec<Bytes> select(hn::Vec<Bytes> chunk) {
    const hn::Repartition<uint16_t, Bytes> pairs;
    if constexpr (kCodes == Codes::kHigh) chunk = hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(pairs, chunk)));
    return hn::And(chunk, hn::Set(Bytes(), 15));
  }

  /// The upper two bytes of a value come from byte look-ups, the lower two are zero: elements e and e + 2 are the
  /// halves of words.
  struct Halves {
    hn::Vec<Bytes> first, second;
    HWY_INLINE explicit Halves(hn::Vec<Bytes> codes)
        : first(hn::TableLookupBytes(hn::LoadDup128(Bytes(), kFirst), codes)),
          second(hn::TableLookupBytes(hn::LoadDup128(Bytes(), kSecond), codes)) {}
    template <int kU>
    HWY_INLINE hn::Vec<Words> words() const {
      return hn::BitCast(
          Words(), kU == 0 ? hn::InterleaveLower(Bytes(), second, first) : hn::InterleaveUpper(Bytes(), second, first));
    }
  };
  static HWY_INLINE V lower(hn::Vec<Words> words) { return hn::BitCast(Floats(), hn::ShiftLeft<16>(words)); }
  static HWY_INLINE V upper(hn::Vec<Words> words) {
    return hn::BitCast(Floats(), hn::And(words, hn::Set(Words(), 0xffff0000u)));
  }

  /// Calls take(vector, values) for all eight vectors of a chunk, or take(vector, values, values) of two chunks.
  template <class Take, class... Chunks>
  static HWY_INLINE void for_each(const Take& take, const Chunks*... codes) {
    for_words<Codes::kLow>(take, Halves(select<Codes::kLow>(load(codes)))...);
    for_words<Codes::kHigh>(take, Halves(select<Codes::kHigh>(load(codes)))...);
  }

  /// A value for each block of two chunks to one for each lane of the first chunk's vectors, or of the second's.
  template <int kChunk>
  static HWY_INLINE V spread(V blocks) {
    const hn::RebindToSigned<Floats> di;
    const auto from = hn::Add(hn::ShiftRight<1>(hn::Iota(di, 0)), hn::Set(di, kChunk * kBlocks));
    return hn::TableLookupLanes(blocks, hn::IndicesFromVec(Floats(), from));
  }

  static HWY_INLINE void to_lanes(const float* chunk, float* lanes) {
    const Floats d;
    HWY_ALIGN float runs[4 * kLanes];
    for (int32_t u = 0; u < 2; ++u, lanes += 4 * kLanes) {
      for (int32_t block = 0; block < kBlocks; ++block)
        copy_run(chunk + block * kNvfp4Block + u * kRun, runs + block * kRun);
      V e0, e1, e2, e3;
      hn::LoadInterleaved4(d, runs, e0, e1, e2, e3);
      hn::StoreU(e0, d, lanes);
      hn::StoreU(e1, d, lanes + kLanes);
      hn::StoreU(e2, d, lanes + 2 * kLanes);
      hn::StoreU(e3, d, lanes + 3 * kLanes);
    }
  }
  /// Calls put(element of the chunk, vector) for a row's elements in order, vectors of at most eight.
  template <class Put>
  static HWY_INLINE void from_lanes(const float* lanes, const Put& put) {
    const Floats d;
    const hn::CappedTag<float, kRun> run;
    HWY_ALIGN float runs[4 * kLanes];
    for (int32_t u = 0; u < 2; ++u, lanes += 4 * kLanes) {
      hn::StoreInterleaved4(hn::LoadU(d, lanes), hn::LoadU(d, lanes + kLanes), hn::LoadU(d, lanes + 2 * kLanes),
                            hn::LoadU(d, lanes + 3 * kLanes), d, runs);
      for (int32_t i = 0; i < 4 * kLanes; i += static_cast<int32_t>(hn::MaxLanes(run)))
        put(i / kRun * kNvfp4Block + u * kRun + i % kRun, hn::Load(run, runs + i));
    }
  }

 private:
  static constexpr int32_t kRun = kNvfp4Block / 2;  ///< Elements (k, e), adjacent in a block.

  static HWY_INLINE void copy_run(const float* from, float* to) {
    const hn::CappedTag<float, kRun> d;
    for (int32_t i = 0; i < kRun; i += static_cast<int32_t>(hn::MaxLanes(d)))
      hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  }

  template <Codes kCodes, class Take, class... Chunk>
  static HWY_INLINE void for_words(const Take& take, const Chunk&... halves) {
    constexpr int kE = kCodes == Codes::kHigh ? 1 : 0;
    take(kE, lower(halves.template words<0>())...);
    take(kE + 2, upper(halves.template words<0>())...);
    take(kE + 4, lower(halves.template words<1>())...);
    take(kE + 6, upper(halves.template words<1>())...);
  }

  alignas(16) static constexpr uint8_t kTurns[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
  alignas(16) static constexpr uint8_t kFirst[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                     0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  alignas(16) static constexpr uint8_t kSecond[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                                      0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
};

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
