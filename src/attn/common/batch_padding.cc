#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "kvant/attn/batch.h"
#include "kvant/attn/kv_cache.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

}  // namespace

Result<std::vector<int32_t>> graph_token_counts(std::span<const int32_t> asked, int32_t width, int32_t max_requests) {
  if (width < 1) return failure(invalid(fmt::format("graph width {} must be at least 1 row a request", width)));
  if (max_requests < 1) return failure(invalid(fmt::format("max_requests {} must be at least 1", max_requests)));
  const int64_t most = static_cast<int64_t>(width) * max_requests;
  if (most > std::numeric_limits<int32_t>::max()) {
    return failure(invalid(fmt::format("{} requests of {} rows are {} tokens, too many for one graph; lower either",
                                       max_requests, width, most)));
  }
  std::vector<int32_t> counts;
  for (int32_t count : asked) {
    if (count < 1) return failure(invalid(fmt::format("graph size {} must be at least 1 token", count)));
    const int64_t rounded = (static_cast<int64_t>(count) + width - 1) / width * width;
    counts.push_back(static_cast<int32_t>(std::min(rounded, most)));
  }
  if (asked.empty()) {
    for (int64_t requests = 1; requests < max_requests; requests *= 2)
      counts.push_back(static_cast<int32_t>(requests * width));
    counts.push_back(static_cast<int32_t>(most));
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

Status pad_requests(const BatchTables& tables, int32_t num_requests) {
  const int64_t num_padded = static_cast<int64_t>(tables.kv_lens.size());
  if (num_requests < 0 || num_requests > num_padded) {
    return invalid(fmt::format("{} requests do not fit a batch padded to {}", num_requests, num_padded));
  }
  if (static_cast<int64_t>(tables.q_offsets.size()) != num_padded + 1) {
    return invalid(fmt::format("{} query offsets for a batch padded to {} requests; {} are needed",
                               tables.q_offsets.size(), num_padded, num_padded + 1));
  }
  if (tables.page_table_stride < 0 ||
      static_cast<int64_t>(tables.page_table.size()) != num_padded * tables.page_table_stride) {
    return invalid(fmt::format("{} page-table entries for {} requests of {} entries; {} are needed",
                               tables.page_table.size(), num_padded, tables.page_table_stride,
                               num_padded * tables.page_table_stride));
  }
  const auto from = [](auto values, int64_t first) { return values.subspan(static_cast<size_t>(first)); };
  if (num_requests == 0) tables.q_offsets[0] = 0;
  std::ranges::fill(from(tables.q_offsets, num_requests + 1), tables.q_offsets[static_cast<size_t>(num_requests)]);
  std::ranges::fill(from(tables.kv_lens, num_requests), 0);
  std::ranges::fill(from(tables.page_table, num_requests * tables.page_table_stride), kNoPage);
  return {};
}

Status advance_kv_lens(std::span<const int32_t> q_offsets, std::span<int32_t> kv_lens, int32_t num_new) {
  if (q_offsets.size() != kv_lens.size() + 1) {
    return invalid(fmt::format("{} query offsets for {} requests; {} are needed", q_offsets.size(), kv_lens.size(),
                               kv_lens.size() + 1));
  }
  for (size_t r = 0; r < kv_lens.size(); ++r)
    if (q_offsets[r + 1] > q_offsets[r]) kv_lens[r] += num_new;
  return {};
}

Result<int32_t> pages_per_block(int32_t block_size, int32_t page_size) {
  if (page_size < 1 || block_size < page_size || block_size % page_size != 0) {
    return failure(
        invalid(fmt::format("a block of {} tokens is not a whole number of pages of {} tokens; choose a page "
                            "size that divides the block",
                            block_size, page_size)));
  }
  return block_size / page_size;
}

Status expand_block_table(std::span<const int32_t> blocks, int32_t ratio, std::span<int32_t> pages) {
  if (ratio < 1 || pages.size() != blocks.size() * static_cast<size_t>(ratio)) {
    return invalid(fmt::format("{} page entries for {} blocks of {} pages each; {} are needed", pages.size(),
                               blocks.size(), ratio, static_cast<int64_t>(blocks.size()) * ratio));
  }
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int32_t entry = blocks[b];
    const int64_t first = static_cast<int64_t>(page_id(entry)) * ratio;
    if (entry >= 0 && first + ratio > kExactPageBit) {
      return invalid(fmt::format("block {} (entry {}) of {} pages is beyond the last page id {}", page_id(entry), b,
                                 ratio, kExactPageBit - 1));
    }
    const int32_t pool = is_exact_page(entry) ? kExactPageBit : 0;
    for (int32_t i = 0; i < ratio; ++i) {
      pages[b * static_cast<size_t>(ratio) + static_cast<size_t>(i)] =
          entry < 0 ? kNoPage : static_cast<int32_t>(first + i) | pool;
    }
  }
  return {};
}

}  // namespace kvant::attn
