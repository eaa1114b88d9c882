#pragma once

#include <algorithm>
#include <cstdint>

#include "attn/common/context_parallel.h"
#include "kvant/attn/attention.h"

namespace kvant::attn::cpu {

/// Local keys [first, last); empty when first >= last.
struct KeyRange {
  int32_t first = 0;
  int32_t last = 0;

  constexpr bool empty() const { return first >= last; }
  /// Bits of the tile that starts at `tile`, one per key.
  constexpr uint64_t bits(int32_t tile) const {
    const int32_t low = std::clamp(first - tile, 0, 64);
    const int32_t high = std::clamp(last - tile, 0, 64);
    if (low >= high) return 0;
    return (~uint64_t{0} >> (64 - (high - low))) << low;
  }
};

/// One request of a run, seen from its query rows.
struct RequestView {
  const AttnDesc& desc;
  const AttnArgs& args;
  int32_t request = 0;

  int32_t first_token() const { return args.q_offsets[request]; }
  int32_t num_tokens() const { return args.q_offsets[request + 1] - first_token(); }
  int32_t kv_len() const { return args.kv_lens[request]; }
  const int32_t* pages() const { return args.page_table + request * args.page_table_stride; }

  /// Keys that bounds let token i see; a packed mask may hide some of the last num_tokens() of them.
  KeyRange keys(int32_t i) const {
    const int32_t token = first_token() + i;
    const int64_t length = kv_len();
    const int64_t index = length - num_tokens() + i;
    const int64_t position = args.positions == nullptr ? index : args.positions[token];
    const int64_t last = desc.draft_mask == DraftMask::kCausal ? index + 1 : length;
    const int64_t first = desc.window > 0 ? std::clamp<int64_t>(position - desc.window + 1, 0, length) : 0;
    return {static_cast<int32_t>(local_keys(desc.context_parallel, first)),
            static_cast<int32_t>(local_keys(desc.context_parallel, std::max<int64_t>(last, 0)))};
  }

  /// Smallest range that holds the keys of tokens [first, last).
  KeyRange keys_of(int32_t first, int32_t last) const {
    if (first >= last || kv_len() == 0) return {};
    KeyRange all = keys(first);
    if (args.positions == nullptr) {
      all.last = keys(last - 1).last;
      return all;
    }
    for (int32_t i = first + 1; i < last; ++i) {
      const KeyRange range = keys(i);
      all.first = std::min(all.first, range.first);
      all.last = std::max(all.last, range.last);
    }
    return all;
  }

  /// Bit j = token i sees key tile + j.
  uint64_t visible(int32_t i, int32_t tile) const {
    uint64_t bits = kv_len() == 0 ? 0 : keys(i).bits(tile);
    if (desc.draft_mask != DraftMask::kPacked || bits == 0) return bits;
    const uint32_t* row = args.mask + static_cast<int64_t>(first_token() + i) * args.mask_row_words;
    const int64_t block = static_cast<int64_t>(kv_len()) - num_tokens();
    for (int32_t j = 63; j >= 0; --j) {
      const int64_t drafted = global_key(desc.context_parallel, tile + j) - block;
      if (drafted < 0) break;
      if (drafted >= num_tokens()) continue;
      if ((row[drafted / 32] >> (drafted % 32) & 1u) == 0) bits &= ~(uint64_t{1} << j);
    }
    return bits;
  }
};

}  // namespace kvant::attn::cpu
