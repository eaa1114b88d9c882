#include <algorithm>

#include <fmt/format.h>

#include "kvant/attn/batch.h"

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// First 0 and never decreasing; what every reader of offsets relies on.
Status check_ascending(std::span<const int32_t> offsets) {
  if (offsets.empty()) return invalid("query offsets are empty; one per request and a last one are needed");
  if (offsets[0] != 0) return invalid(fmt::format("query offset 0 is {}; it must be 0", offsets[0]));
  for (size_t r = 1; r < offsets.size(); ++r) {
    if (offsets[r] < offsets[r - 1]) {
      return invalid(fmt::format("query offset {} is {}, less than {} before it; offsets must not decrease", r,
                                 offsets[r], offsets[r - 1]));
    }
  }
  return {};
}

struct Lengths {
  int32_t max = 0;
  int32_t num_empty = 0;
  bool equal = true;  // All nonzero lengths are.
};

Lengths measure(std::span<const int32_t> offsets) {
  Lengths lengths;
  for (size_t r = 1; r < offsets.size(); ++r) {
    const int32_t length = offsets[r] - offsets[r - 1];
    if (length == 0) {
      ++lengths.num_empty;
      continue;
    }
    lengths.equal = lengths.equal && (lengths.max == 0 || length == lengths.max);
    lengths.max = std::max(lengths.max, length);
  }
  return lengths;
}

int64_t num_requests_of(std::span<const int32_t> offsets) { return static_cast<int64_t>(offsets.size()) - 1; }

bool has_work(std::span<const int32_t> offsets, int64_t num_tokens) { return offsets.size() > 1 && num_tokens > 0; }

std::vector<int32_t> to_vector(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

}  // namespace

Status check_query_offsets(std::span<const int32_t> offsets, int64_t num_rows, int32_t max_query_len) {
  KVANT_RETURN_IF_ERROR(check_ascending(offsets));
  for (size_t r = 1; r < offsets.size(); ++r) {
    if (const int32_t length = offsets[r] - offsets[r - 1]; length > max_query_len) {
      return invalid(
          fmt::format("request {} has {} query rows (offsets {} to {}), more than the limit {}; raise "
                      "max_query_len or split the request",
                      r - 1, length, offsets[r - 1], offsets[r], max_query_len));
    }
  }
  if (offsets.back() != num_rows) {
    return invalid(
        fmt::format("the last query offset (index {}) is {}, but there are {} query rows; they must be equal",
                    offsets.size() - 1, offsets.back(), num_rows));
  }
  return {};
}

Result<QueryShape> analyse_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens) {
  KVANT_FAIL_IF_ERROR(check_ascending(offsets));
  if (offsets.back() > num_tokens) {
    return failure(invalid(fmt::format("the last query offset (index {}) is {}, beyond the {} query rows",
                                       offsets.size() - 1, offsets.back(), num_tokens)));
  }
  const Lengths lengths = measure(offsets);
  QueryShape shape{.width = std::max(lengths.max, 1), .num_empty = lengths.num_empty};
  if (has_work(offsets, num_tokens))
    shape.uniform = lengths.equal && num_tokens == num_requests_of(offsets) * shape.width;
  return shape;
}

PeerQueryLengths xqa_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens) {
  if (!has_work(offsets, num_tokens)) return {};
  const Lengths lengths = measure(offsets);
  const int32_t width = std::max(lengths.max, 1);
  if (lengths.equal && num_tokens == num_requests_of(offsets) * width) return {.width = width};
  if (width <= 1) return {};
  PeerQueryLengths answer{.width = width, .offsets = to_vector(offsets)};
  for (size_t r = 1; r < offsets.size(); ++r) answer.lengths.push_back(offsets[r] - offsets[r - 1]);
  return answer;
}

PeerQueryLengths trtllm_gen_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens) {
  if (!has_work(offsets, num_tokens)) return {};
  const Lengths lengths = measure(offsets);
  const int64_t num_requests = num_requests_of(offsets);
  const bool all_equal = lengths.equal && lengths.num_empty == 0;
  if (all_equal && num_tokens == num_requests * lengths.max) return {.width = lengths.max};
  if (lengths.max <= 1) return {};
  return {.width = lengths.max, .offsets = to_vector(offsets)};
}

PeerQueryLengths trtllm_gen_varlen_query_lengths(std::span<const int32_t> offsets, int64_t num_tokens,
                                                 int32_t threshold) {
  if (!has_work(offsets, num_tokens)) return {};
  return {.width = std::min(measure(offsets).max, threshold), .offsets = to_vector(offsets)};
}

}  // namespace kvant::attn
