// Per-target part of the kernels that multiply rows by panels; included once per instruction set.

#if defined(KVANT_OPS_PANEL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVANT_OPS_PANEL_TILE_INL_H_
#undef KVANT_OPS_PANEL_TILE_INL_H_
#else
#define KVANT_OPS_PANEL_TILE_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "ops/panel_tasks.h"

HWY_BEFORE_NAMESPACE();
namespace kvant::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector of sums holds neighbouring outputs; a panel takes kVectors of them.
using Floats = HWY_CAPPED(float, kPanelOutputs);
constexpr int64_t kLanes = hn::MaxLanes(Floats());
constexpr int64_t kVectors = kPanelOutputs / kLanes;
// As many rows as keep all sums, one panel step of weights and one activation in registers.
constexpr int64_t kTileRows = kVectors == 1 ? 12 : kVectors == 2 ? 6 : 2;

/// Keeps the compiler from starting other rows before this sum is done, which would spill most sums to the stack.
template <class V>
HWY_INLINE void keep_in_register([[maybe_unused]] V& sum) {
#if HWY_ARCH_X86
  asm volatile("" : "+v"(sum.raw));
#endif
}

/// Stores a row's outputs of one panel; only `num_outputs` of them exist.
HWY_INLINE void store_panel(const hn::Vec<Floats>* outputs, int64_t num_outputs, float* y) {
  const Floats d;
  if (num_outputs == kPanelOutputs) {
    HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(outputs[v], d, y + v * kLanes);
    return;
  }
  HWY_ALIGN float buffer[kPanelOutputs];
  HWY_UNROLL(16) for (int64_t v = 0; v < kVectors; ++v) hn::Store(outputs[v], d, buffer + v * kLanes);
  std::memcpy(y, buffer, static_cast<size_t>(num_outputs) * sizeof(float));
}

/// Height of the tiles that cut `num_rows` rows into as few and as even tiles as possible.
constexpr int64_t tile_height(int64_t num_rows) { return divide_up(num_rows, divide_up(num_rows, kTileRows)); }

/// Calls `Tile::run<rows>(args...)` with rows known at compile time, 1 to kTileRows.
template <class Tile, int64_t kRows = kTileRows, class... Args>
HWY_INLINE void run_tile(int64_t rows, const Args&... args) {
  if constexpr (kRows == 1) {
    Tile::template run<1>(args...);
  } else {
    if (rows == kRows) return Tile::template run<kRows>(args...);
    run_tile<Tile, kRows - 1>(rows, args...);
  }
}

}  // namespace kvant::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
