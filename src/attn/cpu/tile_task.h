#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/cpu/attention_kernels.h"
#include "attn/cpu/finish.h"
#include "attn/cpu/key_range.h"
#include "attn/cpu/schedule.h"
#include "attn/cpu/tile_reader.h"

namespace kvant::attn::cpu {

/// What all tasks of one run share.
struct RunContext {
  const AttnDesc& desc;
  const AttnArgs& args;
  const Shape& shape;
  const AttentionKernels& kernels;
  const TileReader& reader;
  const RowSink& sink;
  LogitTransform logits;
  float* partial_values = nullptr;     ///< [max_partials, head_dim_v]
  Softmax* partial_softmax = nullptr;  ///< [max_partials]
};

/// Query tokens, KV heads and key splits of one request that one thread computes.
struct TaskRange {
  int32_t request = 0;
  int32_t first_token = 0, num_tokens = 0;
  int32_t first_head = 0, num_heads = 0;
  int32_t first_split = 0, num_splits = 0;
  int64_t first_partial = -1;  ///< Where this split's results go; -1 = the task finishes its rows itself.
};

/// Whose conditioned queries lie in a thread's scratch memory.
struct LoadedQueries {
  int32_t request = -1;  ///< -1 = nobody's.
  int32_t first_token = 0, num_tokens = 0;
  int32_t first_head = 0, num_heads = 0;
  friend bool operator==(const LoadedQueries&, const LoadedQueries&) = default;
};

/// Scratch memory of one thread.
struct Scratch {
  static size_t bytes(const AttnDesc& desc, const Shape& shape);
  Scratch(std::byte* memory, const AttnDesc& desc, const Shape& shape);
  /// Before the first task of a run.
  void forget_queries() const;

  float* expanded;       ///< [kKeyTile, max head_dim]
  float* row;            ///< [max head_dim]
  float* factors;        ///< [2, width]
  uint64_t* row_bits;    ///< [padded_rows]
  uint32_t* panel_bits;  ///< [panels, 2, width]
  float* heads;          ///< [max_heads, head_floats]
  int64_t head_floats;
  RowTile* row_tiles;  ///< [max_heads], of row-wise tasks, which construct theirs
  LoadedQueries* loaded;
};

/// Adds the results of one split after the other to a row.
struct RowMerger {
  const AttentionKernels& kernels;
  float* values;  ///< [head_dim_v]
  int32_t head_dim_v;
  Softmax softmax;

  void start();
  void add(const float* part_values, const Softmax& part);
};

void run_task(const RunContext& context, const TaskRange& range, const Scratch& scratch);

}  // namespace kvant::attn::cpu
