// Cases whose answer is known by hand.

#include <sys/mman.h>

#include <numbers>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/random_problem.h"

namespace kvant::attn::test {
namespace {

constexpr KvFormat kAllFormats[] = {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
                                    KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};
const float kLn3 = std::log(3.0f);

float zero(int32_t, int64_t, int32_t, int32_t) { return 0.0f; }
float one(int32_t, int64_t, int32_t, int32_t) { return 1.0f; }

void set_query(Problem& problem, float first) {
  std::vector<float> q(problem.q().size() / 4, 0.0f);
  for (size_t i = 0; i < q.size(); i += static_cast<size_t>(problem.desc().layout.head_dim_k)) q[i] = first;
  problem.q() = to_dtype(q, DType::kF32);
}

/// Keys with scores 4, 0 and (hidden by the length) 50; values 1 and 0.
Problem soft_cap_problem() {
  AttnDesc desc = simple_desc(1, 1, 16);
  desc.softmax_scale = 1.0f;
  desc.soft_cap = 2.0f;
  ProblemSpec spec{.desc = desc, .q_lens = {1}, .kv_lens = {2}};
  spec.key_element = [](int32_t, int64_t key, int32_t, int32_t i) { return i == 0 && key == 0 ? 4.0f : 0.0f; };
  spec.value_element = [](int32_t, int64_t key, int32_t, int32_t) { return key == 0 ? 1.0f : 0.0f; };
  return Problem(spec);
}

TEST(AttentionNumbers, CapsScoresBeforeTheMask) {
  Problem problem = soft_cap_problem();
  set_query(problem, 1.0f);
  for_each_simd_target([&](const char* target) {
    ASSERT_TRUE(problem.run().ok());
    EXPECT_NEAR(problem.out()[0], 0.8730f, 5e-5f) << target;
  });
}

TEST(AttentionNumbers, CountsASinkInTheDenominatorOnly) {
  for (const KvFormat format : kAllFormats) {
    for (const int32_t q_len : {1, 4}) {
      for (const int32_t context : {0, 300, 2000}) {
        AttnDesc desc = simple_desc(2, 1, 64);
        desc.layout.k_format = desc.layout.v_format = format;
        desc.sinks = true;
        desc.window = 1;  // Each row sees its own key alone, in splits 0, 1 and 7.
        ProblemSpec spec{.desc = desc, .q_lens = {q_len}, .kv_lens = {context + q_len}};
        spec.policy = ScalePolicy::kFourOverSix;  // Holds a block of ones exactly.
        spec.key_element = zero;
        spec.value_element = one;
        Problem problem(spec);
        std::fill(problem.sinks().begin(), problem.sinks().end(), kLn3);
        ASSERT_TRUE(problem.run(2).ok());
        for (const float value : problem.out()) EXPECT_NEAR(value, 0.25f, 1e-6f) << to_string(format);
        for (const float value : problem.lse()) EXPECT_NEAR(value, 0.0f, 1e-6f) << to_string(format);
      }
    }
  }
}

TEST(AttentionNumbers, TakesSinksOfEveryModelDtype) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    AttnDesc desc = simple_desc(2, 1, 64);
    desc.sinks = true;
    desc.q_dtype = desc.out_dtype = dtype;
    ProblemSpec spec{.desc = desc, .q_lens = {1}, .kv_lens = {1}};
    spec.key_element = zero;
    spec.value_element = one;
    Problem problem(spec);
    for (float& sink : problem.sinks()) sink = from_dtype(to_dtype({kLn3}, dtype), dtype)[0];
    ASSERT_TRUE(problem.run().ok());
    for (const float value : problem.out()) EXPECT_NEAR(value, 0.25f, 1e-3f) << to_string(dtype);
  }
}

TEST(AttentionNumbers, WritesZeroAndMinusInfinityForRowsWithoutKeys) {
  AttnDesc desc = simple_desc(6, 2, 64);
  desc.sinks = true;
  // One real row and seven that a padded batch owns.
  Problem problem({.desc = desc, .q_lens = {1, 1, 1, 1, 1, 1, 1, 1}, .kv_lens = {20, 0, 0, 0, 0, 0, 0, 0}});
  for_each_simd_target([&](const char* target) {
    ASSERT_TRUE(problem.run(2).ok());
    const std::vector<float> out = problem.out();
    const std::vector<float> lse = problem.lse();
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(std::isfinite(out[i])) << target;
      if (i >= 6 * 64) {
        ASSERT_EQ(out[i], 0.0f) << target;
      }
    }
    for (size_t i = 6; i < lse.size(); ++i) ASSERT_EQ(lse[i], -std::numeric_limits<float>::infinity()) << target;
  });
}

/// 4 GiB and more of address space, of which few pages are touched.
class SparseMemory {
 public:
  explicit SparseMemory(size_t size) : size_(size) {
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t size_;
  std::byte* data_ = nullptr;
};

TEST(AttentionNumbers, ReadsPagesBeyondFourGibibytes) {
  AttnDesc desc = simple_desc(16, 8, 128);
  desc.layout.k_format = desc.layout.v_format = KvFormat::kBf16;
  desc.layout.plane_order = PlaneOrder::kInterleaved;
  ASSERT_EQ(desc.layout.page_bytes(), 65536);
  Problem problem({.desc = desc, .q_lens = {3}, .kv_lens = {250}});
  ASSERT_TRUE(problem.run().ok());
  const std::vector<float> near = problem.out();

  // The same pages at ids 65 530 to 65 545: offsets around 2^32.
  const AttnArgs args = problem.args();
  const SparseMemory memory(size_t{65546} * 65536);
  if (memory.data() == nullptr) GTEST_SKIP() << "no 4.3 GB of address space";
  std::vector<int32_t> pages;
  for (int32_t page = 0; page < 16; ++page) {
    pages.push_back(65530 + page);
    std::memcpy(memory.data() + int64_t{65530 + page} * 65536,
                args.cache.base.data + args.page_table[page] * args.cache.base.page_stride, 65536);
  }
  std::vector<float> far(near.size());
  AttnArgs far_args = args;
  far_args.cache.base = {.data = memory.data(), .num_pages = 65546, .page_stride = 65536};
  far_args.page_table = pages.data();
  far_args.out = far.data();
  std::vector<std::byte> workspace(*workspace_size(desc, problem.limits(), cpu_device(), 1));
  const auto plan = make_plan(desc, problem.limits(), cpu_device(), 1, {workspace.data(), workspace.size()});
  ASSERT_TRUE(plan.has_value());
  ThreadPool pool(1);
  const Status status = attn::run(*plan, far_args, Stream::on_cpu(pool));
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(near, far);
}

}  // namespace
}  // namespace kvant::attn::test
