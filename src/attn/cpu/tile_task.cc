#include "attn/cpu/tile_task.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "attn/cpu/e4m3_table.h"
#include "attn/kv/nvfp4.h"
#include "core/float_bits.h"

namespace kvant::attn::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kAlignFloats = 16;

int64_t aligned(int64_t floats) { return (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats; }

int64_t floats_per_head(const AttnDesc& desc, const Shape& shape) {
  const int64_t dim_k = desc.layout.head_dim_k, dim_v = desc.layout.head_dim_v;
  return aligned(shape.padded_rows * (dim_k + 2 * dim_v + kKeyTile + 6) + shape.max_row_rows * (dim_k + dim_v));
}

int64_t row_tile_floats(const Shape& shape) {
  return aligned((shape.max_heads * int64_t{sizeof(RowTile)} + int64_t{sizeof(float)} - 1) / int64_t{sizeof(float)});
}

constexpr int64_t kLoadedFloats = sizeof(LoadedQueries) / sizeof(float);

int64_t max_head_dim(const AttnDesc& desc) { return std::max(desc.layout.head_dim_k, desc.layout.head_dim_v); }

bool all_finite(const float* values, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= (float_to_bits(values[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return found == 0;
}

bool all_finite16(const uint8_t* values, int64_t count, uint32_t exponent) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, values + 2 * i, sizeof(bits));
    found |= (bits & exponent) == exponent ? 1u : 0u;
  }
  return found == 0;
}

/// Whether no code of a block can overflow or meet a NaN.
bool all_blocks_finite(const uint8_t* scales, int32_t count, float g) {
  return std::all_of(scales, scales + count,
                     [&](uint8_t scale) { return std::isfinite(kE4m3Values[scale] * g * 6.0f); });
}

KvFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return KvFormat::kF32;
    case DType::kF16: return KvFormat::kF16;
    case DType::kBf16: return KvFormat::kBf16;
  }
  return KvFormat::kF32;
}

/// Buffers of one KV head. Row-wise tasks keep rows whole, panel-wise ones keep [head_dim, width] per panel.
struct HeadState {
  float *q, *out, *acc, *scores, *rescale, *bias, *max, *sum, *acc_max, *acc_sum;
  float *q_lanes, *out_lanes;  ///< Of row-wise tasks, in lane order; null where no nvfp4 rows are read in place.
};

class TileTask {
 public:
  TileTask(const RunContext& context, const TaskRange& range, const Scratch& scratch)
      : context_(context),
        range_(range),
        scratch_(scratch),
        view_{.desc = context.desc, .args = context.args, .request = range.request},
        dim_k_(context.desc.layout.head_dim_k),
        dim_v_(context.desc.layout.head_dim_v),
        group_(context.shape.group),
        num_rows_(range.num_tokens * context.shape.group),
        row_wise_(view_.num_tokens() * context.shape.group <= context.shape.max_row_rows),
        width_(context.shape.panel_width()),
        num_panels_(row_wise_ ? 1 : (num_rows_ + width_ - 1) / width_),
        keys_(StepReader::of_keys(context.reader, view_.pages(), takes_all_heads())),
        values_(StepReader::of_values(context.reader, view_.pages(), takes_all_heads())) {}

  void run() {
    // Splits of one request follow one another: a thread conditions the queries once for all that it takes.
    const LoadedQueries wanted{.request = range_.request,
                               .first_token = range_.first_token,
                               .num_tokens = range_.num_tokens,
                               .first_head = range_.first_head,
                               .num_heads = range_.num_heads};
    const bool loaded = *scratch_.loaded == wanted;
    *scratch_.loaded = wanted;
    for (int32_t h = 0; h < range_.num_heads; ++h) {
      if (!loaded) load_queries(h);
      clear_accumulators(h);
      if (row_wise_) std::construct_at(scratch_.row_tiles + h, row_tile(h));
    }
    const KeyRange keys = view_.keys_of(range_.first_token, range_.first_token + range_.num_tokens);
    for (int32_t s = 0; s < range_.num_splits; ++s) {
      const int32_t split = (range_.first_split + s) * kKeySplit;
      const int32_t first = std::max(split, keys.first);
      const int32_t last = std::min(split + kKeySplit, keys.last);
      if (first >= last && range_.first_partial < 0) continue;
      for (int32_t h = 0; h < range_.num_heads; ++h) clear_split(h);
      for (int32_t tile = first / kKeyTile * kKeyTile; tile < last; tile += kKeyTile)
        run_tile(tile, std::max(tile, first), std::min(tile + kKeyTile, last), keys.last);
      for (int32_t h = 0; h < range_.num_heads; ++h) end_split(h);
    }
    if (range_.first_partial >= 0) return;
    for (int32_t h = 0; h < range_.num_heads; ++h) finish(h);
  }

 private:
  HeadState head(int32_t h) const {
    float* at = scratch_.heads + h * scratch_.head_floats;
    const int64_t rows = context_.shape.padded_rows;
    HeadState state{};
    state.q = at;
    state.out = state.q + rows * dim_k_;
    state.acc = state.out + rows * dim_v_;
    state.scores = state.acc + rows * dim_v_;
    state.rescale = state.scores + rows * kKeyTile;
    state.bias = state.rescale + rows;
    state.max = state.bias + rows;
    state.sum = state.max + rows;
    state.acc_max = state.sum + rows;
    state.acc_sum = state.acc_max + rows;
    if (!row_wise_) return state;
    if (context_.reader.keys_in_lane_order()) state.q_lanes = state.acc_sum + rows;
    if (context_.reader.values_in_lane_order())
      state.out_lanes = state.acc_sum + rows + int64_t{context_.shape.max_row_rows} * dim_k_;
    return state;
  }

  bool takes_all_heads() const { return range_.num_heads == context_.desc.layout.num_kv_heads; }
  int32_t buffer_rows() const { return row_wise_ ? num_rows_ : num_panels_ * width_; }
  int32_t q_head(int32_t h, int32_t row) const { return (range_.first_head + h) * group_ + row % group_; }
  int32_t token(int32_t row) const { return view_.first_token() + range_.first_token + row / group_; }
  /// Element 0 of a row in a [rows, dim] buffer, and the distance between its elements.
  float* row_start(float* buffer, int32_t row, int32_t dim) const {
    return row_wise_ ? buffer + int64_t{row} * dim : buffer + int64_t{row / width_} * width_ * dim + row % width_;
  }
  int32_t element_stride() const { return row_wise_ ? 1 : width_; }
  /// Copies a row into, or out of, a [rows, dim] buffer.
  void put_row(const float* from, float* buffer, int32_t row, int32_t dim) const {
    float* to = row_start(buffer, row, dim);
    if (row_wise_) return static_cast<void>(std::copy_n(from, dim, to));
    for (int32_t i = 0; i < dim; ++i) to[i * width_] = from[i];
  }
  void get_row(float* buffer, int32_t row, int32_t dim, float* to) const {
    const float* from = row_start(buffer, row, dim);
    if (row_wise_) return static_cast<void>(std::copy_n(from, dim, to));
    for (int32_t i = 0; i < dim; ++i) to[i] = from[i * width_];
  }

  void load_queries(int32_t h) {
    const HeadState state = head(h);
    const DType dtype = context_.desc.q_dtype;
    const ExpandRows expand = context_.kernels.expand_rows(format_of(dtype), CodeOrder::kLinear);
    const KeyConditioner& conditioner = context_.args.cache.conditioner;
    const int32_t kv_head = range_.first_head + h;
    if (!row_wise_) {
      std::fill_n(state.q, int64_t{num_panels_} * width_ * dim_k_, 0.0f);
      std::fill_n(state.bias, num_panels_ * width_, 0.0f);
    }
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int64_t index = int64_t{token(row)} * context_.desc.num_q_heads + q_head(h, row);
      const auto* q = static_cast<const uint8_t*>(context_.args.q) + index * dim_k_ * dtype_bytes(dtype);
      expand({.data = q}, 1, dim_k_, scratch_.row);
      state.bias[row] = context_.kernels.condition_query(conditioner, kv_head, dim_k_, scratch_.row);
      put_row(scratch_.row, state.q, row, dim_k_);
      if (state.q_lanes != nullptr)
        context_.kernels.to_lane_order(scratch_.row, dim_k_, state.q_lanes + int64_t{row} * dim_k_);
    }
  }

  void clear_accumulators(int32_t h) {
    const HeadState state = head(h);
    std::fill_n(state.acc, int64_t{buffer_rows()} * dim_v_, 0.0f);
    std::fill_n(state.acc_max, buffer_rows(), kMinusInfinity);
    std::fill_n(state.acc_sum, buffer_rows(), 0.0f);
  }

  void clear_split(int32_t h) {
    const HeadState state = head(h);
    std::fill_n(state.out, int64_t{buffer_rows()} * dim_v_, 0.0f);
    if (state.out_lanes != nullptr) std::fill_n(state.out_lanes, int64_t{num_rows_} * dim_v_, 0.0f);
    std::fill_n(state.max, buffer_rows(), kMinusInfinity);
    std::fill_n(state.sum, buffer_rows(), 0.0f);
  }

  /// What the rows of one panel (or of the whole row-wise task) see of the expanded keys.
  struct PanelView {
    bool any, all;
  };

  /// Fills row_bits with the visible keys of each row among `expanded`.
  void mark_visible(int32_t tile, uint64_t expanded) {
    for (int32_t i = 0; i < range_.num_tokens; ++i)
      std::fill_n(scratch_.row_bits + i * group_, group_, view_.visible(range_.first_token + i, tile) & expanded);
  }

  PanelView panel_view(int32_t panel, uint64_t expanded) const {
    const int32_t first = row_wise_ ? 0 : panel * width_;
    const int32_t last = row_wise_ ? num_rows_ : std::min(num_rows_, first + width_);
    uint64_t any = 0;
    uint64_t all = expanded;
    for (int32_t row = first; row < last; ++row) {
      any |= scratch_.row_bits[row];
      all &= scratch_.row_bits[row];
    }
    return {.any = any != 0, .all = all == expanded};
  }

  void split_panel_bits(int32_t panel) {
    uint32_t* bits = scratch_.panel_bits + int64_t{panel} * 2 * width_;
    for (int32_t lane = 0; lane < width_; ++lane) {
      const int32_t row = panel * width_ + lane;
      const uint64_t visible = row < num_rows_ ? scratch_.row_bits[row] : 0;
      bits[lane] = static_cast<uint32_t>(visible);
      bits[width_ + lane] = static_cast<uint32_t>(visible >> 32);
    }
  }

  /// Keys [first, last) of a tile; the task goes on to the next ones up to `last_key`.
  void run_tile(int32_t tile, int32_t first, int32_t last, int32_t last_key) {
    const uint64_t expanded = KeyRange{first, last}.bits(tile);
    mark_visible(tile, expanded);
    if (row_wise_) return run_row_tile(tile, first, last, last_key);
    for (int32_t panel = 0; panel < num_panels_; ++panel)
      if (!panel_view(panel, expanded).all) split_panel_bits(panel);
    for (int32_t h = 0; h < range_.num_heads; ++h) {
      const bool last_head = h + 1 == range_.num_heads;
      run_panel_tile(h, tile, rows(h, first, last),
                     last_head ? rows(0, last, std::min(last + kKeyTile, last_key)) : rows(h + 1, first, last));
    }
  }

  TileReader::Rows rows(int32_t h, int32_t first, int32_t last) const {
    return {.pages = view_.pages(), .head = range_.first_head + h, .first = first, .last = last};
  }

  void run_panel_tile(int32_t h, int32_t tile, const TileReader::Rows& now, const TileReader::Rows& next) {
    const uint64_t expanded = KeyRange{now.first, now.last}.bits(tile);
    context_.reader.read_keys(now, tile, scratch_.expanded, next);
    for (int32_t panel = 0; panel < num_panels_; ++panel) {
      const PanelView seen = panel_view(panel, expanded);
      if (!seen.any) continue;
      const PanelTile panel_rows = panel_tile(h, panel, tile, now.first, now.last, !seen.all);
      context_.kernels.panel_scores(panel_rows);
      context_.kernels.panel_softmax(panel_rows);
    }
    context_.reader.read_values(now, tile, scratch_.expanded, next);
    const float* values = scratch_.expanded + int64_t{now.first - tile} * dim_v_;
    const bool no_row_hides =
        std::all_of(scratch_.row_bits, scratch_.row_bits + num_rows_, [&](uint64_t bits) { return bits == expanded; });
    const bool may_multiply_hidden = no_row_hides || all_finite(values, int64_t{now.last - now.first} * dim_v_);
    for (int32_t panel = 0; panel < num_panels_; ++panel) {
      const PanelView seen = panel_view(panel, expanded);
      if (!seen.any) continue;
      const int32_t first_row = panel * width_;
      if (seen.all || may_multiply_hidden)
        context_.kernels.panel_values(panel_tile(h, panel, tile, now.first, now.last, false));
      else
        add_visible_values(h, first_row, std::min(num_rows_, first_row + width_), tile, now.first, now.last, values);
    }
  }

  /// Few rows take keys in steps that lie in one page, so that most formats are read in place, and all heads of a step
  /// together: as they lie in memory.
  void run_row_tile(int32_t tile, int32_t first, int32_t last, int32_t last_key) {
    const PanelView seen = panel_view(0, KeyRange{first, last}.bits(tile));
    if (!seen.any) return;
    const int32_t page_size = context_.args.cache.layout.page_size;
    const int32_t step = page_size % 4 == 0 ? std::min(page_size, kRowStep) : kRowStep;
    const auto for_steps = [&](StepReader& reader, auto kernel_of, const auto& body) {
      for (int32_t begin = first / step * step; begin < last; begin += step) {
        const int32_t step_first = std::max(begin, first);
        const int32_t step_last = std::min(begin + step, last);
        reader.move_to(begin, step_first, step_last, std::min(2 * step_last - step_first, last_key));
        const RowKernel kernel = kernel_of(reader.format());
        for (int32_t h = 0; h < range_.num_heads; ++h) {
          RowTile& part = scratch_.row_tiles[h];
          part.begin = begin - tile;
          part.first = step_first - tile;
          part.last = step_last - tile;
          reader.take(range_.first_head + h, scratch_.expanded, part);
          body(h, part, kernel);
        }
      }
    };
    for_steps(keys_, context_.kernels.row_scores, [](int32_t, const RowTile& part, RowKernel kernel) { kernel(part); });
    for (int32_t h = 0; h < range_.num_heads; ++h) {
      RowTile whole = scratch_.row_tiles[h];
      whole.visible = !seen.all || last - first < kKeyTile ? scratch_.row_bits : nullptr;
      context_.kernels.row_softmax(whole);
    }
    for_steps(values_, context_.kernels.row_values, [&](int32_t h, const RowTile& part, RowKernel kernel) {
      if (seen.all || step_is_finite(part)) return kernel(part);
      context_.reader.read_values(rows(h, values_.first(), values_.last()), values_.begin(), scratch_.expanded, {});
      add_visible_values(h, 0, num_rows_, tile, values_.first(), values_.last(),
                         scratch_.expanded + int64_t{values_.first() - values_.begin()} * dim_v_);
    });
  }

  bool step_is_finite(const RowTile& part) const {
    for (int32_t i = part.first - part.begin; i < part.last - part.begin; ++i)
      if (!row_is_finite(values_.format(), part.rows, i)) return false;
    return true;
  }

  bool row_is_finite(KvFormat format, const EncodedRows& rows, int32_t i) const {
    const uint8_t* row = rows.data + i * rows.data_stride;
    switch (format) {
      case KvFormat::kF32: return all_finite(reinterpret_cast<const float*>(row), dim_v_);
      case KvFormat::kF16: return all_finite16(row, dim_v_, 0x7c00);
      case KvFormat::kBf16: return all_finite16(row, dim_v_, 0x7f80);
      case KvFormat::kNvfp4:
        return all_blocks_finite(rows.scales + i * rows.scale_stride, dim_v_ / kNvfp4Block, rows.g);
      case KvFormat::kE4m3:
      case KvFormat::kE5m2: return false;  // Never read in place.
    }
    return false;
  }

  /// What stays the same of a row-wise task's tiles.
  RowTile row_tile(int32_t h) const {
    const HeadState state = head(h);
    RowTile tile;
    tile.q = state.q;
    tile.q_lanes = state.q_lanes;
    tile.scores = state.scores;
    tile.bias = state.bias;
    tile.max = state.max;
    tile.sum = state.sum;
    tile.out = state.out;
    tile.out_lanes = state.out_lanes;
    tile.num_rows = num_rows_;
    tile.dim_k = dim_k_;
    tile.dim_v = dim_v_;
    tile.logits = context_.logits;
    return tile;
  }

  PanelTile panel_tile(int32_t h, int32_t panel, int32_t tile, int32_t first, int32_t last, bool masked) const {
    const HeadState state = head(h);
    const int64_t row = int64_t{panel} * width_;
    return {.q = state.q + row * dim_k_,
            .scores = state.scores + row * kKeyTile,
            .expanded = scratch_.expanded,
            .bias = state.bias + row,
            .visible = masked ? scratch_.panel_bits + 2 * row : nullptr,
            .max = state.max + row,
            .sum = state.sum + row,
            .rescale = state.rescale + row,
            .out = state.out + row * dim_v_,
            .num_vectors = num_rows_ - row > context_.shape.lanes ? 2 : 1,
            .first = first - tile,
            .last = last - tile,
            .dim_k = dim_k_,
            .dim_v = dim_v_,
            .logits = context_.logits};
  }

  /// A hidden key has probability 0, but 0 * NaN is NaN: with such values around, hidden keys are left out one by one.
  /// `values` holds keys [first, last).
  void add_visible_values(int32_t h, int32_t first_row, int32_t last_row, int32_t tile, int32_t first, int32_t last,
                          const float* values) {
    const HeadState state = head(h);
    for (int32_t row = first_row; row < last_row; ++row) {
      const float* p = row_start(state.scores, row, kKeyTile);
      float* out = row_start(state.out, row, dim_v_);
      for (int32_t i = 0; i < dim_v_; ++i) {
        float sum = out[i * element_stride()];
        if (!row_wise_) sum *= state.rescale[row];
        for (int32_t key = first; key < last; ++key) {
          const int32_t j = key - tile;
          if ((scratch_.row_bits[row] >> j & 1u) != 0)
            sum += p[j * element_stride()] * values[int64_t{key - first} * dim_v_ + i];
        }
        out[i * element_stride()] = sum;
      }
    }
  }

  void end_split(int32_t h) {
    const HeadState state = head(h);
    if (state.out_lanes != nullptr) {
      for (int64_t row = 0; row < num_rows_; ++row)
        context_.kernels.add_lane_order(state.out_lanes + row * dim_v_, dim_v_, state.out + row * dim_v_);
    }
    if (range_.first_partial >= 0)
      write_partials(h);
    else if (row_wise_)
      merge_rows(h);
    else
      merge_panels(h);
  }

  void write_partials(int32_t h) {
    const HeadState state = head(h);
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int64_t slot = range_.first_partial + int64_t{row / group_} * context_.desc.num_q_heads + q_head(h, row);
      get_row(state.out, row, dim_v_, context_.partial_values + slot * dim_v_);
      context_.partial_softmax[slot] = {.max = state.max[row], .sum = state.sum[row]};
    }
  }

  MergeFactors merge_state(const HeadState& state, int32_t row) const {
    Softmax acc{.max = state.acc_max[row], .sum = state.acc_sum[row]};
    const MergeFactors factors = merge_softmax(acc, {.max = state.max[row], .sum = state.sum[row]});
    state.acc_max[row] = acc.max;
    state.acc_sum[row] = acc.sum;
    return factors;
  }

  void merge_rows(int32_t h) {
    const HeadState state = head(h);
    for (int32_t row = 0; row < num_rows_; ++row) {
      const MergeFactors factors = merge_state(state, row);
      const int64_t at = int64_t{row} * dim_v_;
      context_.kernels.merge_row(state.acc + at, factors.acc, state.out + at, factors.part, dim_v_);
    }
  }

  void merge_panels(int32_t h) {
    const HeadState state = head(h);
    for (int32_t panel = 0; panel < num_panels_; ++panel) {
      const int32_t first = panel * width_;
      for (int32_t lane = 0; lane < width_; ++lane) {
        const MergeFactors factors = merge_state(state, first + lane);
        scratch_.factors[lane] = factors.acc;
        scratch_.factors[width_ + lane] = factors.part;
      }
      const int64_t at = int64_t{first} * dim_v_;
      context_.kernels.merge_panel(state.acc + at, scratch_.factors, state.out + at, scratch_.factors + width_, dim_v_);
    }
  }

  void finish(int32_t h) {
    const HeadState state = head(h);
    for (int32_t row = 0; row < num_rows_; ++row) {
      get_row(state.acc, row, dim_v_, scratch_.row);
      context_.sink.write(token(row), q_head(h, row), scratch_.row,
                          {.max = state.acc_max[row], .sum = state.acc_sum[row]});
    }
  }

  const RunContext& context_;
  const TaskRange& range_;
  const Scratch& scratch_;
  const RequestView view_;
  const int32_t dim_k_, dim_v_, group_, num_rows_;
  const bool row_wise_;
  const int32_t width_, num_panels_;
  StepReader keys_, values_;  ///< Of row-wise tasks.
};

}  // namespace

size_t Scratch::bytes(const AttnDesc& desc, const Shape& shape) {
  const int64_t rows = shape.padded_rows;
  const int64_t floats = aligned(kKeyTile * max_head_dim(desc)) + aligned(max_head_dim(desc)) +
                         aligned(2 * shape.panel_width()) + 2 * aligned(2 * rows) +
                         shape.max_heads * floats_per_head(desc, shape) + row_tile_floats(shape) +
                         aligned(kLoadedFloats);
  return static_cast<size_t>(floats) * sizeof(float);
}

Scratch::Scratch(std::byte* memory, const AttnDesc& desc, const Shape& shape) {
  const int64_t rows = shape.padded_rows;
  auto* at = reinterpret_cast<float*>(memory);
  const auto take = [&](int64_t floats) {
    float* taken = at;
    at += aligned(floats);
    return taken;
  };
  expanded = take(kKeyTile * max_head_dim(desc));
  row = take(max_head_dim(desc));
  factors = take(2 * shape.panel_width());
  row_bits = reinterpret_cast<uint64_t*>(take(2 * rows));
  panel_bits = reinterpret_cast<uint32_t*>(take(2 * rows));
  head_floats = floats_per_head(desc, shape);
  heads = take(shape.max_heads * head_floats);
  row_tiles = reinterpret_cast<RowTile*>(take(row_tile_floats(shape)));
  loaded = reinterpret_cast<LoadedQueries*>(take(kLoadedFloats));
}

void Scratch::forget_queries() const { std::construct_at(loaded); }

void RowMerger::start() {
  std::fill_n(values, head_dim_v, 0.0f);
  softmax = {.max = kMinusInfinity, .sum = 0.0f};
}

void RowMerger::add(const float* part_values, const Softmax& part) {
  const MergeFactors factors = merge_softmax(softmax, part);
  kernels.merge_row(values, factors.acc, part_values, factors.part, head_dim_v);
}

void run_task(const RunContext& context, const TaskRange& range, const Scratch& scratch) {
  TileTask(context, range, scratch).run();
}

}  // namespace kvant::attn::cpu
