#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kvant/attn/attention.h"
#include "kvant/core/thread_pool.h"
#include "support/kv_test_cache.h"
#include "support/poison.h"

namespace kvant::attn::test {

/// An attention call to be made up: what the layer is and how long the requests are.
struct ProblemSpec {
  AttnDesc desc;
  std::vector<int32_t> q_lens;
  std::vector<int32_t> kv_lens;
  bool tree_positions = false;  ///< With a packed mask: a row's position is its depth in the tree.
  ScalePolicy policy = ScalePolicy::kAmax;
  int32_t head_tokens = 16;  ///< With exact pages: tokens of the exact head and tail.
  int32_t tail_tokens = 32;
  float k_scale = 1.0f, v_scale = 1.0f;
  bool scale_per_head = false;
  /// Replaces random keys and values.
  using Element = std::function<float(int32_t request, int64_t key, int32_t head, int32_t index)>;
  Element key_element{}, value_element{};
  uint8_t fill_byte = kvant::test::kNanByte;  ///< What slots without a key hold.
  uint32_t seed = 1;
};

/// Everything one attention call points to, filled at random; unused slots, pages and table entries are poison.
class Problem {
 public:
  explicit Problem(const ProblemSpec& spec)
      : spec_(spec),
        desc_(spec.desc),
        random_(spec.seed),
        cache_(desc_.layout, num_base_pages(), num_exact_pages()),
        out_(static_cast<size_t>(total_tokens() * desc_.num_q_heads * desc_.layout.head_dim_v *
                                 dtype_bytes(desc_.out_dtype))),
        lse_(static_cast<size_t>(total_tokens() * desc_.num_q_heads) * sizeof(float)) {
    std::fill(cache_.base.begin(), cache_.base.end(), spec.fill_byte);
    std::fill(cache_.exact.begin(), cache_.exact.end(), spec.fill_byte);
    fill_scales();
    fill_batch();
    fill_pages();
    fill_keys_and_values();
    fill_mask();
    auto q = random_values(total_tokens() * desc_.num_q_heads * desc_.layout.head_dim_k, spec.seed + 7, false);
    // Logits of standard deviation 1.3: no key drowns the others.
    for (float& value : q) value *= 0.25f;
    q_ = to_dtype(q, desc_.q_dtype);
    for (int32_t h = 0; h < desc_.num_q_heads; ++h) sinks_.push_back(random_.uniform() * 3.0f);
  }

  const AttnDesc& desc() const { return desc_; }
  const ProblemSpec& spec() const { return spec_; }
  TestCache& cache() { return cache_; }
  std::vector<int32_t>& page_table() { return page_table_; }
  std::vector<std::byte>& q() { return q_; }
  std::vector<uint32_t>& mask() { return mask_; }
  int32_t mask_row_words() const { return mask_row_words_; }
  std::vector<float>& sinks() { return sinks_; }
  std::vector<SharedRun>& shared_runs() { return shared_runs_; }

  AttnLimits limits() const {
    AttnLimits limits;
    limits.max_requests = std::max<int32_t>(1, static_cast<int32_t>(spec_.q_lens.size()));
    limits.max_tokens = std::max(1, total_tokens());
    limits.max_query_len = 1;
    for (const int32_t n : spec_.q_lens) limits.max_query_len = std::max(limits.max_query_len, n);
    limits.max_pages_per_request = static_cast<int32_t>(table_stride());
    limits.shared_runs = !shared_runs_.empty();
    return limits;
  }

  AttnArgs args() {
    AttnArgs args;
    args.cache = cache_.view();
    args.q = q_.data();
    args.out = out_.data();
    args.lse = static_cast<float*>(lse_.data());
    args.q_offsets = q_offsets_.data();
    args.kv_lens = spec_.kv_lens.data();
    args.page_table = page_table_.data();
    args.page_table_stride = table_stride();
    args.num_requests = static_cast<int32_t>(spec_.q_lens.size());
    args.num_tokens = total_tokens();
    args.sinks = desc_.sinks ? sinks_.data() : nullptr;
    args.mask = mask_.empty() ? nullptr : mask_.data();
    args.mask_row_words = mask_row_words_;
    args.shared_runs = shared_runs_.empty() ? nullptr : shared_runs_.data();
    args.positions = positions_.empty() ? nullptr : positions_.data();
    return args;
  }

  /// Runs on a pool of `num_threads`; out() and lse() hold the result.
  Status run(int num_threads = 1) {
    const DeviceInfo device = cpu_device();
    KVANT_ASSIGN_OR_RETURN(const size_t bytes, workspace_size(desc_, limits(), device, num_threads));
    kvant::test::GuardedBytes workspace(bytes);
    KVANT_ASSIGN_OR_RETURN(const AttnPlan plan, make_plan(desc_, limits(), device, num_threads,
                                                          Workspace{workspace.data(), workspace.size()}));
    ThreadPool pool(num_threads);
    const Status status = attn::run(plan, args(), Stream::on_cpu(pool));
    EXPECT_TRUE(workspace.guards_intact());
    EXPECT_TRUE(out_.guards_intact());
    EXPECT_TRUE(lse_.guards_intact());
    return status;
  }

  std::vector<float> out() {
    std::vector<std::byte> bytes(out_.size());
    std::memcpy(bytes.data(), out_.data(), bytes.size());
    return from_dtype(bytes, desc_.out_dtype);
  }
  std::vector<float> lse() {
    const auto* first = static_cast<const float*>(lse_.data());
    return {first, first + lse_.size() / sizeof(float)};
  }

  int32_t total_tokens() const {
    int32_t total = 0;
    for (const int32_t n : spec_.q_lens) total += n;
    return total;
  }

 private:
  int64_t local_keys(int32_t kv_len) const {
    int64_t count = 0;
    for (int64_t key = 0; key < kv_len; ++key) count += owns(key) ? 1 : 0;
    return count;
  }
  bool owns(int64_t key) const {
    const ContextParallel& cp = desc_.context_parallel;
    return key / cp.interleave % cp.size == cp.rank;
  }
  int32_t pages_of(int32_t kv_len) const {
    return static_cast<int32_t>((local_keys(kv_len) + desc_.layout.page_size - 1) / desc_.layout.page_size);
  }
  int64_t num_base_pages() const {
    int64_t pages = 3;
    for (const int32_t length : spec_.kv_lens) pages += pages_of(length);
    return pages;
  }
  int64_t num_exact_pages() const { return desc_.exact_pages ? num_base_pages() : 0; }
  int64_t table_stride() const {
    int64_t stride = 2;
    for (const int32_t length : spec_.kv_lens) stride = std::max<int64_t>(stride, pages_of(length) + 2);
    return stride;
  }

  void fill_scales() {
    const int32_t count = spec_.scale_per_head ? desc_.layout.num_kv_heads : 1;
    std::vector<float> k, v;
    for (int32_t h = 0; h < count; ++h) {
      k.push_back(spec_.k_scale * (1.0f + 0.25f * static_cast<float>(h)));
      v.push_back(spec_.v_scale * (1.0f - 0.125f * static_cast<float>(h)));
    }
    cache_.set_scales(k, v);
    cache_.set_conditioner(desc_.conditioning, spec_.seed + 3);
  }

  void fill_batch() {
    q_offsets_.push_back(0);
    for (const int32_t n : spec_.q_lens) q_offsets_.push_back(q_offsets_.back() + n);
  }

  bool is_exact(int32_t page, int32_t num_pages) const {
    if (!desc_.exact_pages) return false;
    const int32_t size = desc_.layout.page_size;
    return page * size < spec_.head_tokens || (num_pages - 1 - page) * size < spec_.tail_tokens;
  }

  void fill_pages() {
    std::vector<int32_t> ids(num_base_pages());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[random_.below(static_cast<int32_t>(i + 1))]);
    page_table_.assign(spec_.kv_lens.size() * static_cast<size_t>(table_stride()), kvant::test::kPoisonPage);
    size_t next = 0;
    for (size_t r = 0; r < spec_.kv_lens.size(); ++r) {
      const int32_t num_pages = pages_of(spec_.kv_lens[r]);
      for (int32_t page = 0; page < num_pages; ++page) {
        const int32_t id = ids[next++];
        page_table_[r * static_cast<size_t>(table_stride()) + static_cast<size_t>(page)] =
            is_exact(page, num_pages) ? id | kExactPageBit : id;
      }
    }
  }

  void fill_keys_and_values() {
    const KvLayout& layout = desc_.layout;
    for (size_t r = 0; r < spec_.kv_lens.size(); ++r) {
      const int32_t length = spec_.kv_lens[r];
      const auto seed = spec_.seed + 100 + 10 * static_cast<uint32_t>(r);
      auto k = random_values(int64_t{length} * layout.num_kv_heads * layout.head_dim_k, seed, false);
      auto v = random_values(int64_t{length} * layout.num_kv_heads * layout.head_dim_v, seed + 1, false);
      replace(k, spec_.key_element, static_cast<int32_t>(r), layout.head_dim_k);
      replace(v, spec_.value_element, static_cast<int32_t>(r), layout.head_dim_v);
      std::vector<int64_t> slots;
      int64_t local = 0;
      for (int64_t key = 0; key < length; ++key) {
        slots.push_back(kSkipSlot);
        if (!owns(key)) continue;
        const int32_t entry =
            page_table_[r * static_cast<size_t>(table_stride()) + static_cast<size_t>(local / layout.page_size)];
        slots.back() = slot_of(entry, layout.page_size, static_cast<int32_t>(local % layout.page_size));
        ++local;
      }
      append_scalar(cache_.view(), spec_.policy, k, v, slots);
      hide_pages_below_window(r);
    }
  }

  void replace(std::vector<float>& rows, const ProblemSpec::Element& element, int32_t request, int32_t dim) const {
    if (!element) return;
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / dim;
      const auto head = static_cast<int32_t>(row % desc_.layout.num_kv_heads);
      rows[i] = element(request, row / desc_.layout.num_kv_heads, head, static_cast<int32_t>(i) % dim);
    }
  }

  /// Entries that no row of the request may read.
  void hide_pages_below_window(size_t r) {
    if (desc_.window == 0 || desc_.context_parallel.size > 1 || spec_.tree_positions) return;
    const int32_t first_key = std::max(0, spec_.kv_lens[r] - spec_.q_lens[r] - desc_.window + 1);
    for (int32_t page = 0; page < first_key / desc_.layout.page_size; ++page)
      page_table_[r * static_cast<size_t>(table_stride()) + static_cast<size_t>(page)] = kvant::test::kPoisonPage;
  }

  /// Random trees, branching: each row follows the context or any earlier row. One spare word per row.
  void fill_mask() {
    if (desc_.draft_mask != DraftMask::kPacked) return;
    mask_row_words_ = (limits().max_query_len + 31) / 32 + 1;
    mask_.assign(static_cast<size_t>(total_tokens()) * static_cast<size_t>(mask_row_words_), 0);
    for (size_t r = 0; r < spec_.q_lens.size(); ++r) {
      for (int32_t i = 0; i < spec_.q_lens[r]; ++i) {
        uint32_t* row = mask_.data() + static_cast<size_t>(q_offsets_[r] + i) * static_cast<size_t>(mask_row_words_);
        const int32_t parent = random_.below(i + 1) - 1;
        if (parent >= 0) std::memcpy(row, row - (i - parent) * mask_row_words_, sizeof(uint32_t) * mask_row_words_);
        row[i / 32] |= 1u << (i % 32);
        int32_t depth = -1;
        for (int32_t w = 0; w < mask_row_words_; ++w) depth += __builtin_popcount(row[w]);
        if (spec_.tree_positions) positions_.push_back(spec_.kv_lens[r] - spec_.q_lens[r] + depth);
      }
    }
  }

  ProblemSpec spec_;
  AttnDesc desc_;
  Random random_;
  TestCache cache_;
  kvant::test::GuardedBytes out_, lse_;
  std::vector<int32_t> q_offsets_, page_table_, positions_;
  std::vector<uint32_t> mask_;
  int32_t mask_row_words_ = 0;
  std::vector<std::byte> q_;
  std::vector<float> sinks_;
  std::vector<SharedRun> shared_runs_;
};

/// A layer of one KV head in f32, to be changed by tests.
inline AttnDesc simple_desc(int32_t num_q_heads = 3, int32_t num_kv_heads = 1, int32_t head_dim = 64) {
  AttnDesc desc;
  desc.num_q_heads = num_q_heads;
  desc.layout.k_format = desc.layout.v_format = KvFormat::kF32;
  desc.layout.head_dim_k = desc.layout.head_dim_v = head_dim;
  desc.layout.num_kv_heads = num_kv_heads;
  desc.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return desc;
}

}  // namespace kvant::attn::test
