// What the row kernels of all formats share. Included once per Highway target.
#if defined(KVANT_ATTN_CPU_ROW_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_ATTN_CPU_ROW_STEPS_INL_H_
#undef KVANT_ATTN_CPU_ROW_STEPS_INL_H_
#else
#define KVANT_ATTN_CPU_ROW_STEPS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <type_traits>

#include "attn/cpu/attention_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Adds the 128-bit blocks of a vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto add_blocks([[maybe_unused]] D d, V v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// Sums of four vectors, stored next to each other.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_four_sums(D d, V a, V b, V c, V e, float* out) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> du64;
  const auto ab = hn::BitCast(du64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(du64, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const V sums =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(du64, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(du64, ab, ce)));
  const hn::FixedTag<float, 4> d4;
  hn::StoreU(add_blocks(d, sums), d4, out);
}

/// Calls body(integral_constant<kRows>, first row) for groups of one to four rows, as many as registers hold sums of.
template <class Body>
HWY_INLINE void for_row_groups(int32_t num_rows, const Body& body) {
  int32_t row = 0;
  for (; num_rows - row == 3 || num_rows - row > 4; row += 3) body(std::integral_constant<int, 3>(), row);
  if (num_rows - row == 4) return body(std::integral_constant<int, 4>(), row);
  if (num_rows - row == 2) return body(std::integral_constant<int, 2>(), row);
  if (num_rows - row == 1) return body(std::integral_constant<int, 1>(), row);
}

/// Asks memory for the rows that are read soon, a few at a time: it takes in only so many wishes at once.
HWY_INLINE void prefetch_ahead(const RowTile& tile, int32_t key, int32_t count) {
  const RowsAhead& ahead = tile.ahead;
  if (ahead.data == nullptr) return;
  const uint8_t* row = ahead.data + (key - tile.begin) * ahead.stride;
  const bool adjacent = ahead.stride == ahead.bytes;
  const int32_t bytes = adjacent ? count * ahead.bytes : ahead.bytes;
  for (int32_t i = 0; i < (adjacent ? 1 : count); ++i, row += ahead.stride)
    for (int32_t byte = 0; byte < bytes; byte += 64) hwy::Prefetch(row + byte);
  // Scales of a few rows share a line.
  if (ahead.scales != nullptr) hwy::Prefetch(ahead.scales + (key - tile.begin) * ahead.scale_stride);
}

}  // namespace kvant::attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
