#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "kvant/core/thread_pool.h"
#include "support/kv_test_cache.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

// Counts what this test program allocates. Not inlined, or gcc takes malloc and free for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  num_allocations.fetch_add(1);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvant::attn {
namespace {

TEST(Append, AndAgeingAllocateNothing) {
  ThreadPool pool(2);
  const Stream stream = Stream::on_cpu(pool);
  for (const KvFormat format : {KvFormat::kE4m3, KvFormat::kNvfp4}) {
    const KvLayout layout{
        .k_format = format, .v_format = format, .head_dim_k = 64, .head_dim_v = 64, .num_kv_heads = 3, .page_size = 16};
    test::TestCache cache(layout, 16, 16);
    cache.set_conditioner(KeyConditioning::kFull, 1);
    const std::vector<float> x = test::random_values(256 * 3 * 64, 1);
    std::vector<int64_t> slots(256);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i) | (i % 2 == 0 ? kExactSlotBit : 0);
    const std::vector<PageAge> ages = {{0, 1}, {2, 3}};
    const AppendArgs append_args{.cache = cache.view(),
                                 .policy = ScalePolicy::kSearch,
                                 .k = x.data(),
                                 .v = x.data(),
                                 .slots = slots.data(),
                                 .num_tokens = 256};
    const AgeArgs age_args{.cache = cache.view(), .ages = ages.data(), .num_ages = 2};
    ASSERT_EQ(append(append_args, stream), Status());  // The first call may set up its instruction set.
    const int64_t before = num_allocations.load();
    const Status appended = append(append_args, stream);
    const Status aged = age_pages(age_args, stream);
    EXPECT_EQ(num_allocations.load(), before);
    EXPECT_EQ(appended, Status());
    EXPECT_EQ(aged, Status());
  }
}

}  // namespace
}  // namespace kvant::attn
