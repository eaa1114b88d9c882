#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/core/status.h"

namespace kvant::attn {

// ---- Phases and order -------------------------------------------------------------------------------------------

/// What a request does in this step. In batch order.
enum class RequestPhase : uint8_t {
  kDecode,   ///< The prompt is in the cache; rows are a sampled token and its drafts.
  kExtend,   ///< A further chunk of an unfinished prompt.
  kPrefill,  ///< The first chunk of a prompt: nothing in the cache yet.
};
inline constexpr int kNumPhases = 3;

/// The phase follows from what is committed, never from how many rows the step brings: a last prompt chunk of
/// 1 + drafts tokens has the shape of a decode and is none.
constexpr RequestPhase phase_of(int64_t prompt_tokens, int64_t committed_tokens) {
  if (committed_tokens <= 0) return RequestPhase::kPrefill;
  return committed_tokens < prompt_tokens ? RequestPhase::kExtend : RequestPhase::kDecode;
}

/// Requests by phase: decodes first, then extends, then prefills.
struct BatchOrder {
  std::vector<int32_t> source;  ///< New place i takes the request from old place source[i].
  std::array<int32_t, kNumPhases> counts{};
  int32_t num_moved = 0;  ///< Requests whose place changes.
};

/// The order with the fewest moves: a request that already stands in its phase's region stays there, and the others
/// change places in the fewest swaps, earliest first. Hosts that keep per-request state in rows copy only what moved.
BatchOrder order_batch(std::span<const RequestPhase> phases);

// ---- Query lengths ----------------------------------------------------------------------------------------------

/// Request r has the rows [offsets[r], offsets[r+1]). Refuses offsets that do not start at 0, decrease, do not end at
/// num_rows, or hold a length above max_query_len; the text names index and values. For hosts that have a copy of
/// the offsets in host memory.
Status check_query_offsets(std::span<const int32_t> offsets, int64_t num_rows, int32_t max_query_len);

/// What kernels need to know of a batch's query lengths.
struct QueryShape {
  int32_t width = 1;      ///< Rows of every request when uniform, else the longest.
  bool uniform = true;    ///< Rows are [request][width]; offsets are not needed.
  int32_t num_empty = 0;  ///< Requests without rows.

  friend bool operator==(const QueryShape&, const QueryShape&) = default;
};

/// kvant's rule: uniform iff all nonzero lengths are equal and num_tokens == requests * width. Anything else is ragged
/// and keeps its offsets, with padding requests as length 0; they own no row. num_tokens may exceed the last offset
/// (a token count padded for a graph). Bad offsets are kInvalidArgument.
Result<QueryShape> analyse_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens);

/// What vLLM hands to its kernels; an empty vector means that none is handed over.
struct PeerQueryLengths {
  int32_t width = 1;
  std::vector<int32_t> offsets{};
  std::vector<int32_t> lengths{};

  friend bool operator==(const PeerQueryLengths&, const PeerQueryLengths&) = default;
};

/// The rules of vLLM's two decode paths, for hosts that must answer as vLLM does. Offsets are trusted.
PeerQueryLengths xqa_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens);
PeerQueryLengths trtllm_gen_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens);
/// trtllm-gen with adaptive verification: always ragged, at most `threshold` rows wide.
PeerQueryLengths trtllm_gen_varlen_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens,
                                                 int32_t threshold);

// ---- Padding for graphs -----------------------------------------------------------------------------------------

/// Token counts to capture for batches of `width` rows a request: every asked count rounded up to a multiple of width,
/// cut at max_requests * width, without doubles, ascending. Nothing asked: 1, 2, 4, 8 ... requests, and max_requests.
Result<std::vector<int32_t>> graph_token_counts(std::span<const int32_t> asked, int32_t width, int32_t max_requests);

/// Metadata of one batch in host memory, sized for the padded batch.
struct BatchTables {
  std::span<int32_t> q_offsets;   ///< [num_padded + 1]
  std::span<int32_t> kv_lens;     ///< [num_padded]
  std::span<int32_t> page_table;  ///< [num_padded, page_table_stride]
  int64_t page_table_stride = 0;
};

/// Turns the requests from num_requests on into padding: no rows, no keys, no pages, whatever an earlier batch left.
Status pad_requests(const BatchTables& tables, int32_t num_requests);

/// Adds num_new keys to each request that has rows; padding keeps length 0 however often a draft loop calls this.
Status advance_kv_lens(std::span<const int32_t> q_offsets, std::span<int32_t> kv_lens, int32_t num_new);

// ---- Host blocks and pages --------------------------------------------------------------------------------------

/// Pages per block of a host whose manager hands out larger blocks. kInvalidArgument unless it is a whole number.
Result<int32_t> pages_per_block(int32_t block_size, int32_t page_size);

/// Writes ratio pages for every block; block b owns pages b * ratio ... A negative block gives kNoPage entries; the
/// pool bit is kept. pages has blocks.size() * ratio entries.
Status expand_block_table(std::span<const int32_t> blocks, int32_t ratio, std::span<int32_t> pages);

}  // namespace kvant::attn
