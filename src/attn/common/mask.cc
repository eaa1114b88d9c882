#include "kvant/attn/mask.h"

#include <algorithm>

#include <fmt/format.h>

#include "kvant/attn/batch.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

int32_t longest(std::span<const int32_t> q_offsets) {
  int32_t max = 0;
  for (size_t r = 1; r < q_offsets.size(); ++r) max = std::max(max, q_offsets[r] - q_offsets[r - 1]);
  return max;
}

// Checks the offsets and sizes the mask; all bits 0.
Result<PackedMask> allocate(std::span<const int32_t> q_offsets, int32_t row_words) {
  if (q_offsets.empty()) return failure(invalid("query offsets are empty; one per request and a last one are needed"));
  KVANT_FAIL_IF_ERROR(analyse_query_lengths(q_offsets, q_offsets.back()));
  const int32_t least = mask_words(longest(q_offsets));
  if (row_words != 0 && row_words < least) {
    return failure(invalid(fmt::format("a mask row of {} words holds {} keys; {} words are needed for {} query rows",
                                       row_words, static_cast<int64_t>(row_words) * 32, least, longest(q_offsets))));
  }
  PackedMask mask{.num_rows = q_offsets.back(), .row_words = row_words == 0 ? least : row_words};
  mask.words.resize(static_cast<size_t>(mask.num_rows) * static_cast<size_t>(mask.row_words));
  return mask;
}

std::span<uint32_t> row_of(PackedMask& mask, int32_t row) {
  const size_t words = static_cast<size_t>(mask.row_words);
  return std::span(mask.words).subspan(static_cast<size_t>(row) * words, words);
}

void set_first(std::span<uint32_t> row, int32_t num_bits) {
  const size_t whole = static_cast<size_t>(num_bits / 32);
  std::fill_n(row.begin(), whole, ~uint32_t{0});
  if (num_bits % 32 != 0) row[whole] = (uint32_t{1} << (num_bits % 32)) - 1;
}

Status check_derived(DraftMask kind) {
  if (kind != DraftMask::kPacked) return {};
  return invalid("a packed mask cannot be derived from lengths; use make_tree_mask or kCausal or kFull");
}

// Calls visit(request, first row, row, parent) for every row, parents checked.
template <class Visit>
Status for_each_tree_row(std::span<const int32_t> q_offsets, std::span<const int32_t> parents, Visit visit) {
  if (q_offsets.empty() || static_cast<int64_t>(parents.size()) != q_offsets.back()) {
    return invalid(fmt::format("{} tree parents for {} query rows; one per row is needed", parents.size(),
                               q_offsets.empty() ? 0 : q_offsets.back()));
  }
  for (size_t r = 0; r + 1 < q_offsets.size(); ++r) {
    for (int32_t row = q_offsets[r]; row < q_offsets[r + 1]; ++row) {
      const int32_t index = row - q_offsets[r];
      const int32_t parent = parents[static_cast<size_t>(row)];
      if (parent < kNoParent || parent >= index) {
        return invalid(fmt::format("draft {} of request {} has parent {}; it must be {} or an earlier draft", index, r,
                                   parent, kNoParent));
      }
      visit(r, q_offsets[r], row, parent);
    }
  }
  return {};
}

}  // namespace

Result<PackedMask> make_ragged_mask(std::span<const int32_t> q_offsets, DraftMask kind, int32_t row_words) {
  KVANT_FAIL_IF_ERROR(check_derived(kind));
  KVANT_ASSIGN_OR_FAIL(PackedMask mask, allocate(q_offsets, row_words));
  for (size_t r = 0; r + 1 < q_offsets.size(); ++r) {
    const int32_t length = q_offsets[r + 1] - q_offsets[r];
    for (int32_t i = 0; i < length; ++i)
      set_first(row_of(mask, q_offsets[r] + i), kind == DraftMask::kCausal ? i + 1 : length);
  }
  return mask;
}

Result<PackedMask> make_uniform_mask(int32_t num_requests, int32_t q_len, DraftMask kind, int32_t row_words) {
  if (num_requests < 0 || q_len < 0 || static_cast<int64_t>(num_requests) * q_len > INT32_MAX) {
    return failure(
        invalid(fmt::format("a mask for {} requests of {} query rows is not possible; both must be at least "
                            "0 and their product below 2^31",
                            num_requests, q_len)));
  }
  std::vector<int32_t> q_offsets(static_cast<size_t>(num_requests) + 1);
  for (size_t r = 0; r < q_offsets.size(); ++r) q_offsets[r] = static_cast<int32_t>(r) * q_len;
  return make_ragged_mask(q_offsets, kind, row_words);
}

Result<PackedMask> make_tree_mask(std::span<const int32_t> q_offsets, std::span<const int32_t> parents,
                                  int32_t row_words) {
  KVANT_ASSIGN_OR_FAIL(PackedMask mask, allocate(q_offsets, row_words));
  KVANT_FAIL_IF_ERROR(for_each_tree_row(q_offsets, parents, [&](size_t, int32_t first, int32_t row, int32_t parent) {
    const std::span<uint32_t> words = row_of(mask, row);
    if (parent != kNoParent) std::ranges::copy(row_of(mask, first + parent), words.begin());
    const int32_t index = row - first;
    words[static_cast<size_t>(index / 32)] |= uint32_t{1} << (index % 32);
  }));
  return mask;
}

Result<std::vector<int32_t>> tree_positions(std::span<const int32_t> q_offsets, std::span<const int32_t> parents,
                                            std::span<const int32_t> context_lens) {
  if (q_offsets.size() != context_lens.size() + 1) {
    return failure(invalid(fmt::format("{} context lengths for {} query offsets; one per request is needed",
                                       context_lens.size(), q_offsets.size())));
  }
  KVANT_FAIL_IF_ERROR(analyse_query_lengths(q_offsets, q_offsets.back()));
  std::vector<int32_t> positions(parents.size());
  KVANT_FAIL_IF_ERROR(
      for_each_tree_row(q_offsets, parents, [&](size_t request, int32_t first, int32_t row, int32_t parent) {
        positions[static_cast<size_t>(row)] =
            parent == kNoParent ? context_lens[request] : positions[static_cast<size_t>(first + parent)] + 1;
      }));
  return positions;
}

Status to_uint16(std::span<const uint32_t> words, std::span<uint16_t> out) {
  if (out.size() != 2 * words.size()) {
    return invalid(
        fmt::format("{} uint16 entries for {} words; {} are needed", out.size(), words.size(), 2 * words.size()));
  }
  for (size_t w = 0; w < words.size(); ++w) {
    out[2 * w] = static_cast<uint16_t>(words[w] & 0xffffu);
    out[2 * w + 1] = static_cast<uint16_t>(words[w] >> 16);
  }
  return {};
}

Result<const PackedMask*> DraftMaskCache::get(int32_t q_len, DraftMask kind) {
  KVANT_FAIL_IF_ERROR(check_derived(kind));
  const auto key = std::pair(q_len, kind);
  const auto found = masks_.find(key);
  if (found != masks_.end()) return &found->second;
  PackedMask mask;
  if (q_len > 1) {
    KVANT_ASSIGN_OR_FAIL(mask, make_uniform_mask(max_requests_, q_len, kind));
  }
  return &masks_.emplace(key, std::move(mask)).first->second;
}

}  // namespace kvant::attn
