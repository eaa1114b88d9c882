// Arguments that would read or write out of bounds are refused before anything is written.

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "support/random_problem.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}

void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvant::attn::test {
namespace {

class AttentionArgs : public ::testing::Test {
 protected:
  AttentionArgs() : problem_({.desc = desc(), .q_lens = {2, 1}, .kv_lens = {40, 20}}) {
    args_ = problem_.args();
    workspace_.resize(*workspace_size(desc(), problem_.limits(), cpu_device(), 2));
    plan_ = *make_plan(desc(), problem_.limits(), cpu_device(), 2, {workspace_.data(), workspace_.size()});
  }

  static AttnDesc desc() {
    AttnDesc desc = simple_desc(6, 2, 64);
    desc.layout.k_format = desc.layout.v_format = KvFormat::kNvfp4;
    return desc;
  }

  void expect_refused(const char* what) {
    const Status status = run(plan_, args_, Stream::on_cpu(pool_));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what << ": " << status.to_string();
    for (const float value : problem_.out()) ASSERT_TRUE(std::isnan(value)) << what;
  }

  Problem problem_;
  AttnArgs args_;
  std::vector<std::byte> workspace_;
  AttnPlan plan_;
  ThreadPool pool_{2};
};

TEST_F(AttentionArgs, AreRefusedWhenCountsLeaveTheLimits) {
  args_.num_requests = 3;
  expect_refused("num_requests");
  args_ = problem_.args();
  args_.num_tokens = 4;
  expect_refused("num_tokens");
  args_ = problem_.args();
  args_.page_table_stride = 1;
  expect_refused("page_table_stride");
  args_ = problem_.args();
  const int32_t long_query[] = {0, 3, 3};
  args_.q_offsets = long_query;
  expect_refused("query length");
  args_ = problem_.args();
  const int32_t long_lens[] = {40, 2000};
  args_.kv_lens = long_lens;
  expect_refused("kv_len");
}

TEST_F(AttentionArgs, AreRefusedWhenOffsetsAndLengthsDisagree) {
  const int32_t decreasing[] = {0, 4, 3};
  args_.q_offsets = decreasing;
  expect_refused("decreasing offsets");
  const int32_t short_offsets[] = {0, 1, 2};
  args_.q_offsets = short_offsets;
  expect_refused("last offset");
  const int32_t shifted[] = {1, 2, 3};
  args_.q_offsets = shifted;
  expect_refused("first offset");
  args_ = problem_.args();
  const int32_t short_lens[] = {1, 20};
  args_.kv_lens = short_lens;
  expect_refused("kv_len below the query length");
  const int32_t negative_lens[] = {-1, 20};
  args_.kv_lens = negative_lens;
  expect_refused("negative kv_len");
}

TEST_F(AttentionArgs, AreRefusedWhenAPageThatIsReadIsNot) {
  const std::vector<int32_t> good = problem_.page_table();
  for (const int32_t bad : {kNoPage, 1000, kvant::test::kPoisonPage, 0 | kExactPageBit}) {
    problem_.page_table() = good;
    problem_.page_table()[1] = bad;
    expect_refused("page id");
  }
}

TEST_F(AttentionArgs, AreRefusedWhenPointersAreMissing) {
  for (const auto clear :
       {+[](AttnArgs& a) { a.q = nullptr; }, +[](AttnArgs& a) { a.out = nullptr; },
        +[](AttnArgs& a) { a.q_offsets = nullptr; }, +[](AttnArgs& a) { a.kv_lens = nullptr; },
        +[](AttnArgs& a) { a.page_table = nullptr; }, +[](AttnArgs& a) { a.cache.layout.page_size = 32; },
        +[](AttnArgs& a) { a.cache.scales.count = 5; }}) {
    args_ = problem_.args();
    clear(args_);
    expect_refused("pointer");
  }
}

TEST_F(AttentionArgs, AreRefusedOnALargerPool) {
  ThreadPool large(5);
  EXPECT_EQ(run(plan_, args_, Stream::on_cpu(large)).code(), StatusCode::kInvalidArgument);
}

TEST_F(AttentionArgs, MayBeEmpty) {
  args_.num_requests = args_.num_tokens = 0;
  EXPECT_TRUE(run(plan_, args_, Stream::on_cpu(pool_)).ok());
  for (const float value : problem_.out()) ASSERT_TRUE(std::isnan(value));
}

TEST_F(AttentionArgs, RunAllocatesNothing) {
  ASSERT_TRUE(run(plan_, args_, Stream::on_cpu(pool_)).ok());
  const int64_t before = num_allocations.load();
  const Status status = run(plan_, args_, Stream::on_cpu(pool_));
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace kvant::attn::test
