#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvant/attn/kv_cache.h"
#include "kvant/attn/kv_format.h"
#include "kvant/attn/kv_layout.h"

namespace kvant::attn::cpu {

/// Keys are taken in tiles and splits that start at multiples of these, counted from the request's first key, so that
/// what a row computes depends on the row alone.
inline constexpr int32_t kKeyTile = 64;
inline constexpr int32_t kKeySplit = 256;
/// Keys that few query rows take at once, at most.
inline constexpr int32_t kRowStep = 16;
static_assert(kKeyTile % kRowStep == 0);
static_assert(kKeySplit % kKeyTile == 0 && kKeyTile == 64, "a tile's visible keys are the bits of one uint64_t");

/// Rows of one K or V plane with equal distances. 16-bit and 32-bit formats have no scales.
struct EncodedRows {
  const uint8_t* data = nullptr;
  int64_t data_stride = 0;  ///< Bytes between rows.
  const uint8_t* scales = nullptr;
  int64_t scale_stride = 0;  ///< Bytes between rows.
  float g = 1.0f;
};
/// Writes [num_rows, dim] fp32 values, times g; dim is a multiple of 16.
using ExpandRows = void (*)(const EncodedRows& rows, int32_t num_rows, int32_t dim, float* out);

/// How raw dot products become base-2 logits: with t = dot + bias, t * scale, or cap * tanh(t * scale).
struct LogitTransform {
  float scale = 1.0f;  ///< softmax_scale * log2(e), or softmax_scale / cap
  float cap = 0.0f;    ///< soft cap * log2(e); 0 = none
};

/// Memory that is read soon, a part for each key of a step.
struct RowsAhead {
  const uint8_t* data = nullptr;    ///< Null = nothing.
  int64_t stride = 0;               ///< Bytes between the parts.
  int32_t bytes = 0;                ///< Of a part.
  const uint8_t* scales = nullptr;  ///< Null = none.
  int64_t scale_stride = 0;         ///< Bytes between rows.
};

/// Part of a key tile for few query rows; a row's scores lie next to each other.
struct RowTile {
  const float* q = nullptr;        ///< [num_rows, dim_k]
  const float* q_lanes = nullptr;  ///< The same in lane order, for nvfp4 keys; null = none of those
  float* scores = nullptr;         ///< [num_rows, kKeyTile]: dot products, then probabilities
  EncodedRows rows;                ///< Key or value `begin` and those after it
  RowsAhead ahead;
  const float* bias = nullptr;        ///< [num_rows]
  const uint64_t* visible = nullptr;  ///< [num_rows]: bit j = key j of the tile; null = all of it
  float* max = nullptr;               ///< [num_rows], in and out
  float* sum = nullptr;               ///< [num_rows], in and out
  float* out = nullptr;               ///< [num_rows, dim_v], in and out
  float* out_lanes = nullptr;  ///< [num_rows, dim_v] in lane order, in and out: nvfp4 values; null = none of those
  int32_t num_rows = 0;
  int32_t begin = 0;            ///< Key of the tile that `rows` starts with; a multiple of four.
  int32_t first = 0, last = 0;  ///< Keys of the tile that count.
  int32_t dim_k = 0, dim_v = 0;
  LogitTransform logits;
};
using RowKernel = void (*)(const RowTile& tile);

/// One key tile for a panel of as many query rows as two vectors have lanes; a key's scores lie next to each other.
struct PanelTile {
  const float* q = nullptr;           ///< [dim_k, width]
  float* scores = nullptr;            ///< [kKeyTile, width]: dot products, then probabilities
  const float* expanded = nullptr;    ///< [kKeyTile, dim_k or dim_v]: keys, then values
  const float* bias = nullptr;        ///< [width]
  const uint32_t* visible = nullptr;  ///< [2, width]: bit j of word w = key 32 w + j of the tile; null = all of it
  float* max = nullptr;               ///< [width], in and out
  float* sum = nullptr;               ///< [width], in and out
  float* rescale = nullptr;           ///< [width]: what the new maximum does to earlier sums
  float* out = nullptr;               ///< [dim_v, width], in and out
  int32_t num_vectors = 2;            ///< 1 when the panel's second half holds no rows.
  int32_t first = 0, last = 0;        ///< Keys of the tile that were expanded.
  int32_t dim_k = 0, dim_v = 0;
  LogitTransform logits;
};

/// What one instruction set offers. Every function computes each row by itself, in the same order whatever the other
/// rows are.
struct AttentionKernels {
  std::string_view isa;
  int32_t lanes;  ///< fp32 lanes of a vector; a panel is twice as wide.
  ExpandRows (*expand_rows)(KvFormat format, CodeOrder order);
  /// Conditions a query row in place and returns the q . mu of the row as it was.
  float (*condition_query)(const KeyConditioner& conditioner, int32_t kv_head, int32_t head_dim, float* row);
  /// Whether row_scores and row_values read a format as it lies in a page: f32, f16, bf16, and nvfp4 in linear order
  /// where vectors divide the head size.
  bool (*reads_in_place)(KvFormat format, CodeOrder order, int32_t head_dim);
  /// Reads keys first & ~3 up to last rounded up to four.
  RowKernel (*row_scores)(KvFormat format);
  /// Also scales earlier sums of values down to a new maximum.
  RowKernel row_softmax;
  RowKernel (*row_values)(KvFormat format);
  /// The order in which nvfp4 kernels take a row's elements.
  void (*to_lane_order)(const float* row, int32_t head_dim, float* lanes);
  /// row += lanes, put back in order.
  void (*add_lane_order)(const float* lanes, int32_t head_dim, float* row);
  void (*panel_scores)(const PanelTile& tile);
  void (*panel_softmax)(const PanelTile& tile);
  void (*panel_values)(const PanelTile& tile);
  /// acc = acc * acc_factor + part * part_factor over [count].
  void (*merge_row)(float* acc, float acc_factor, const float* part, float part_factor, int32_t count);
  /// The same with a factor per lane, over [dim_v, width].
  void (*merge_panel)(float* acc, const float* acc_factor, const float* part, const float* part_factor, int32_t dim_v);
};

/// Kernels for the best instruction set that this CPU and Highway's target mask allow.
const AttentionKernels& attention_kernels();

}  // namespace kvant::attn::cpu
