#include "kvant/attn/shared_runs.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "attn/common/context_parallel.h"

namespace kvant::attn {
namespace {

constexpr int32_t kTileTokens = 16;

Status check(const SharedRunBatch& batch, std::span<const SharedRun> runs) {
  const size_t num_requests = batch.kv_lens.size();
  const auto refuse = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (batch.q_offsets.size() != num_requests + 1)
    return refuse(fmt::format("{} query offsets for {} requests; one more than requests is needed",
                              batch.q_offsets.size(), num_requests));
  if (runs.size() != num_requests + 1)
    return refuse(
        fmt::format("room for {} runs of {} requests; one more than requests is needed", runs.size(), num_requests));
  if (batch.page_size < 1 || batch.page_table_stride < 0 ||
      batch.page_table.size() < num_requests * static_cast<size_t>(batch.page_table_stride))
    return refuse(fmt::format("a page table of {} entries in rows of {}, pages of {} tokens, does not hold {} requests",
                              batch.page_table.size(), batch.page_table_stride, batch.page_size, num_requests));
  return {};
}

class Finder {
 public:
  Finder(const SharedRunBatch& batch, const SharedRunRules& rules, std::span<SharedRun> runs)
      : batch_(batch), rules_(rules), runs_(runs.subspan(1)), common_(runs_.size(), 0) {
    int32_t before = runs_.empty() ? 0 : usable_pages(0);
    for (size_t r = 1; r < runs_.size(); ++r) {
      const int32_t usable = usable_pages(r);
      common_[r] = common_pages(r, std::min(before, usable));
      before = usable;
    }
  }

  /// Requests that share.
  int32_t run() {
    // A stack of its own: prefixes that grow from request to request would make recursion deep.
    std::vector<std::pair<size_t, size_t>> open{{0, runs_.size()}};
    while (!open.empty()) {
      const auto [first, last] = open.back();
      open.pop_back();
      divide(first, last, open);
    }
    return num_sharing_;
  }

 private:
  /// Whole tiles of pages whose keys all rows of a request see, so that one key at least is left to it.
  int32_t usable_pages(size_t r) const {
    const int32_t length = batch_.kv_lens[r], q_len = batch_.q_offsets[r + 1] - batch_.q_offsets[r];
    if (q_len < 1) return 0;
    const ContextParallel& cp = batch_.context_parallel;
    const int64_t keys = std::min(local_keys(cp, length - q_len), local_keys(cp, length) - 1);
    const int32_t pages =
        static_cast<int32_t>(std::min(std::max<int64_t>(keys, 0) / batch_.page_size, batch_.page_table_stride));
    const int32_t tile_pages = kTileTokens / std::gcd(kTileTokens, batch_.page_size);
    return pages / tile_pages * tile_pages;
  }

  /// Leading entries that request r and the one before it have in common, of `usable`; whole tiles.
  int32_t common_pages(size_t r, int32_t usable) const {
    const auto* row = batch_.page_table.data() + static_cast<int64_t>(r) * batch_.page_table_stride;
    const auto* before = row - batch_.page_table_stride;
    int32_t pages = 0;
    while (pages < usable && row[pages] == before[pages] && row[pages] >= 0) ++pages;
    const int32_t tile_pages = kTileTokens / std::gcd(kTileTokens, batch_.page_size);
    return pages / tile_pages * tile_pages;
  }

  /// Makes one run of the requests, or cuts them where they have least in common.
  void divide(size_t first, size_t last, std::vector<std::pair<size_t, size_t>>& open) {
    if (last - first < static_cast<size_t>(std::max(rules_.min_requests, 2))) return;
    size_t cut = first + 1;
    int64_t all = 0;
    for (size_t r = first + 1; r < last; ++r) {
      all += common_[r];
      if (common_[r] < common_[cut]) cut = r;
    }
    const int32_t pages = common_[cut];
    const auto count = static_cast<int64_t>(last - first);
    // Cut, the parts save at most what neighbours have in common.
    const bool whole = pages > 0 && (count - 1) * pages >= all - pages;
    if (!whole) {
      open.emplace_back(first, cut);
      open.emplace_back(cut, last);
      return;
    }
    if ((count - 1) * pages * batch_.page_size < rules_.min_saved_keys) return;
    const SharedRun run = {static_cast<int32_t>(first), static_cast<int32_t>(count), pages};
    std::fill(runs_.begin() + static_cast<int64_t>(first), runs_.begin() + static_cast<int64_t>(last), run);
    num_sharing_ += static_cast<int32_t>(count);
  }

  const SharedRunBatch& batch_;
  const SharedRunRules& rules_;
  std::span<SharedRun> runs_;
  std::vector<int32_t> common_;
  int32_t num_sharing_ = 0;
};

}  // namespace

Status find_shared_runs(const SharedRunBatch& batch, const SharedRunRules& rules, std::span<SharedRun> runs) {
  KVANT_RETURN_IF_ERROR(check(batch, runs));
  std::fill(runs.begin(), runs.end(), SharedRun{});
  runs[0].num_requests = Finder(batch, rules, runs).run();
  return {};
}

}  // namespace kvant::attn
