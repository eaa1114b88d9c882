#include "engine/calibration/calibrate.h"
#include "support/engine_models.h"
#include "support/family_golden.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include <gtest/gtest.h>

namespace {

std::atomic<int64_t> num_allocations{0};

}  // namespace

// A sanitizer's own operators stay: they know more.
#ifndef KVANT_SANITIZED
namespace {

constexpr bool kCounts = true;

void* counted_allocation(std::size_t bytes, std::size_t alignment) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined: the compiler would take free() in one for a mistake where it sees operator new in the other.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted_allocation(bytes, alignof(std::max_align_t)); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return counted_allocation(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t align) {
  return counted_allocation(bytes, static_cast<std::size_t>(align));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t align) {
  return counted_allocation(bytes, static_cast<std::size_t>(align));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#else
constexpr bool kCounts = false;
#endif

namespace kvant::engine {
namespace {

class Allocation : public ::testing::TestWithParam<const char*> {};

TEST_P(Allocation, IsNotNeededPerTokenOnceWarm) {
  if (!kCounts) GTEST_SKIP() << "a sanitizer has its own operator new";
  testing::TinyModel model({}, 2);
  const std::vector<int32_t> text = testing::random_tokens(300, model.vocabulary(), 9);
  const auto profile =
      std::make_shared<const KvProfile>(calibrate(model.runner(), text, kCalibrationContext, model.hash(), {}).value());
  const auto cache = model.cache(GetParam(), profile);
  const SequenceId sequence = cache->add_sequence().value();
  std::vector<float> logits(static_cast<size_t>(model.vocabulary()));
  const int32_t token = 5;
  const auto step = [&](std::span<const int32_t> tokens, RowPhase phase) {
    const BatchRow row{.cache = cache.get(), .sequence = sequence, .tokens = tokens, .phase = phase};
    return model.runner().forward({&row, 1}, logits.data()).ok();
  };
  ASSERT_TRUE(step(text, RowPhase::kPrefill));
  ASSERT_TRUE(step({&token, 1}, RowPhase::kDecode));
  const int64_t before = num_allocations.load();
  // Long enough to cross pages and to age some.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(step({&token, 1}, RowPhase::kDecode));
  EXPECT_EQ(num_allocations.load() - before, 0);
}

TEST(FamilyAllocation, IsNotNeededPerTokenInAnyFamily) {
  if (!kCounts) GTEST_SKIP() << "a sanitizer has its own operator new";
  ThreadPool pool(1);
  for (const std::filesystem::path& file : testing::family_golden_files()) {
    const testing::FamilyGolden golden(file);
    const testing::CheckpointDir dir;
    golden.write_folder(dir);
    const auto runner =
        Runner::create(golden.open_folder(dir), {.weights = WeightFormat::kInt8, .progress = {}}, pool).value();
    const auto cache = runner->create_cache({.spec = testing::spec("bf16"), .max_tokens = 64, .profile = {}}).value();
    const SequenceId sequence = cache->add_sequence().value();
    const std::vector<int32_t> tokens = golden.tokens();
    std::vector<float> logits(static_cast<size_t>(golden.vocabulary()));
    const auto step = [&](size_t first, size_t count, RowPhase phase) {
      const BatchRow row{.cache = cache.get(),
                         .sequence = sequence,
                         .tokens = std::span(tokens).subspan(first, count),
                         .phase = phase};
      return runner->forward({&row, 1}, logits.data()).ok();
    };
    ASSERT_TRUE(step(0, 20, RowPhase::kPrefill));
    ASSERT_TRUE(step(20, 1, RowPhase::kDecode));
    const int64_t before = num_allocations.load();
    for (size_t i = 21; i < tokens.size(); ++i) ASSERT_TRUE(step(i, 1, RowPhase::kDecode));
    EXPECT_EQ(num_allocations.load() - before, 0) << golden.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Allocation, ::testing::Values("bf16", "e4m3", "nvfp4", "nvfp4-plain"));

}  // namespace
}  // namespace kvant::engine
