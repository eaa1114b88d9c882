// What must not change a result: other requests, threads, chunks, unused memory.

#include <bit>

#include <gtest/gtest.h>

#include "attn/reference/attention_reference.h"
#include "support/compare.h"
#include "support/random_problem.h"

namespace kvant::attn::test {
namespace {

constexpr KvFormat kAllFormats[] = {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
                                    KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};

AttnDesc nvfp4_desc(int32_t num_q_heads, int32_t num_kv_heads) {
  AttnDesc desc = simple_desc(num_q_heads, num_kv_heads, 64);
  desc.layout.k_format = desc.layout.v_format = KvFormat::kNvfp4;
  return desc;
}

/// Query rows [first, first + count) of another problem, byte for byte.
void take_queries(Problem& to, Problem& from, int32_t first, int32_t count) {
  const auto row = static_cast<ptrdiff_t>(from.q().size()) / from.total_tokens();
  to.q().assign(from.q().begin() + first * row, from.q().begin() + (first + count) * row);
}

std::vector<float> rows_of(const std::vector<float>& out, const Problem& problem, int32_t first, int32_t count) {
  const auto row = static_cast<ptrdiff_t>(out.size()) / problem.total_tokens();
  return {out.begin() + first * row, out.begin() + (first + count) * row};
}

int32_t bf16_ulps(float a, float b) {
  const auto order = [](float x) {
    const auto bits = static_cast<int32_t>(float_to_bf16(x));
    return bits >= 0x8000 ? 0x8000 - bits : bits;
  };
  return std::abs(order(a) - order(b));
}

TEST(AttentionInvariance, GivesVerifyRowsTheResultOfSingleRows) {
  AttnDesc desc = nvfp4_desc(9, 3);
  desc.q_dtype = desc.out_dtype = DType::kBf16;
  for (const int32_t context : {1, 31, 32, 33, 4095}) {
    SCOPED_TRACE(fmt::format("context {}", context));
    Problem verify({.desc = desc, .q_lens = {4}, .kv_lens = {context + 4}});
    ASSERT_TRUE(verify.run(2).ok());
    const std::vector<float> all = verify.out();
    for (int32_t j = 0; j < 4; ++j) {
      Problem single({.desc = desc, .q_lens = {1}, .kv_lens = {context + j + 1}});
      take_queries(single, verify, j, 1);
      ASSERT_TRUE(single.run(2).ok());
      const std::vector<float> expected = single.out();
      const std::vector<float> actual = rows_of(all, verify, j, 1);
      int32_t worst = 0;
      for (size_t i = 0; i < actual.size(); ++i)
        if (std::abs(actual[i] - expected[i]) > 1e-4f) worst = std::max(worst, bf16_ulps(actual[i], expected[i]));
      EXPECT_LE(worst, 2) << "row " << j;
    }
    for (int repeat = 0; repeat < 20; ++repeat) {
      ASSERT_TRUE(verify.run(2).ok());
      ASSERT_EQ(verify.out(), all) << "repeat " << repeat;
    }
  }
}

/// Values grow and shrink along the sequence, so that a wrong merge cannot average out. Of requests that are all alike,
/// two threads take the first ones whole and the last ones in splits.
TEST(AttentionInvariance, DoesNotDependOnTheNumberOfThreads) {
  for (const bool batch_invariant : {false, true}) {
    AttnDesc desc = nvfp4_desc(6, 2);
    desc.batch_invariant = batch_invariant;
    const ProblemSpec mixed{.desc = desc, .q_lens = {1, 3, 1, 50}, .kv_lens = {5000, 2048, 300, 1100}};
    const ProblemSpec alike{.desc = desc, .q_lens = std::vector(8, 1), .kv_lens = std::vector(8, 1024)};
    for (ProblemSpec spec : {mixed, alike}) {
      spec.value_element = [](int32_t, int64_t key, int32_t, int32_t i) {
        return std::ldexp(static_cast<float>((key * 13 + i * 7) % 31) / 31.0f, static_cast<int>(key / 100 % 5) - 2);
      };
      Problem problem(spec);
      ASSERT_TRUE(problem.run(1).ok());
      const std::vector<float> alone = problem.out();
      const auto expected = reference::attention(problem.desc(), problem.args());
      EXPECT_TRUE(close_to(alone, expected.out, kvant::test::attention_tolerance(DType::kF32)));
      for (const int num_threads : {2, 3, 7, 16}) {
        ASSERT_TRUE(problem.run(num_threads).ok());
        ASSERT_EQ(problem.out(), alone) << num_threads << " threads";
      }
    }
  }
}

TEST(AttentionInvariance, DoesNotDependOnOtherRequests) {
  AttnDesc desc = nvfp4_desc(9, 3);
  desc.batch_invariant = true;
  Problem alone({.desc = desc, .q_lens = {1}, .kv_lens = {700}});
  ASSERT_TRUE(alone.run(2).ok());
  for (const int32_t size : {2, 3, 8, 32}) {
    ProblemSpec spec{.desc = desc, .q_lens = {1}, .kv_lens = {700}};
    for (int32_t r = 1; r < size; ++r) {
      spec.q_lens.push_back(r % 4 == 3 ? 40 : r % 3);
      spec.kv_lens.push_back(60 + 97 * r % 900);
    }
    Problem batch(spec);
    const auto row = static_cast<ptrdiff_t>(alone.q().size());
    std::copy(alone.q().begin(), alone.q().end(), batch.q().begin());
    ASSERT_TRUE(batch.run(2).ok());
    ASSERT_EQ(rows_of(batch.out(), batch, 0, 1), alone.out()) << size << " requests, row of " << row << " bytes";
  }
}

/// A window layer whose prompt comes in chunks; in batch-invariant mode to the bit.
TEST(AttentionInvariance, DoesNotDependOnThePromptsChunks) {
  for (const bool batch_invariant : {false, true}) {
    AttnDesc desc = nvfp4_desc(6, 2);
    desc.window = 64;
    desc.batch_invariant = batch_invariant;
    constexpr int32_t kPrompt = 300;
    Problem whole({.desc = desc, .q_lens = {kPrompt}, .kv_lens = {kPrompt}});
    ASSERT_TRUE(whole.run(2).ok());
    const std::vector<float> expected = whole.out();
    for (const int32_t chunk : {1, 17, 64, 100, 128}) {
      for (int32_t first = 0; first < kPrompt; first += chunk) {
        if (chunk == 1 && first % 13 != 0) continue;
        const int32_t count = std::min(chunk, kPrompt - first);
        Problem part({.desc = desc, .q_lens = {count}, .kv_lens = {first + count}});
        take_queries(part, whole, first, count);
        ASSERT_TRUE(part.run(2).ok());
        const std::vector<float> rows = rows_of(expected, whole, first, count);
        if (batch_invariant) {
          ASSERT_EQ(part.out(), rows) << "chunk " << chunk << " at " << first;
        } else {
          ASSERT_TRUE(close_to(part.out(), {rows.begin(), rows.end()}, kvant::test::attention_tolerance(DType::kF32)))
              << "chunk " << chunk << " at " << first;
        }
      }
    }
  }
}

class UnusedMemory : public ::testing::TestWithParam<KvFormat> {};

TEST_P(UnusedMemory, DoesNotChangeABit) {
  AttnDesc desc = simple_desc(6, 2, 64);
  desc.layout.k_format = desc.layout.v_format = GetParam();
  const int32_t page = desc.layout.page_size;
  for (const int32_t q_len : {1, 20}) {
    ProblemSpec spec{.desc = desc, .q_lens = {}, .kv_lens = {}};
    for (const int32_t length : {1, 13, page - 1, page, page + 1, 150}) {
      spec.q_lens.push_back(std::min(q_len, length));
      spec.kv_lens.push_back(length);
    }
    Problem nan(spec);
    spec.fill_byte = 0;
    Problem zero(spec);
    spec.fill_byte = 0x35;  // Plausible numbers in every format.
    Problem plausible(spec);
    for_each_simd_target([&](const char* target) {
      ASSERT_TRUE(nan.run().ok());
      ASSERT_TRUE(zero.run().ok());
      ASSERT_TRUE(plausible.run().ok());
      ASSERT_EQ(nan.out(), zero.out()) << target;
      ASSERT_EQ(plausible.out(), zero.out()) << target;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, UnusedMemory, ::testing::ValuesIn(kAllFormats),
                         [](const auto& test) { return std::string(to_string(test.param)); });

/// A key that a row does not see must not reach it, whatever it holds; a row that sees it must show it.
TEST(AttentionInvariance, KeepsNanOfHiddenKeysFromRows) {
  for (const int32_t num_q_heads : {1, 3, 16}) {
    AttnDesc desc = simple_desc(num_q_heads, 1, 32);
    ProblemSpec spec{.desc = desc, .q_lens = {3}, .kv_lens = {70}};
    spec.value_element = [](int32_t, int64_t key, int32_t, int32_t i) {
      return key == 69 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>((key * 5 + i) % 7);
    };
    spec.key_element = [](int32_t, int64_t key, int32_t, int32_t i) {
      return key == 69 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>((key + i) % 3) - 1.0f;
    };
    Problem problem(spec);
    const auto expected = reference::attention(problem.desc(), problem.args());
    for_each_simd_target([&](const char* target) {
      ASSERT_TRUE(problem.run().ok());
      EXPECT_TRUE(close_to(problem.out(), expected.out, kvant::test::attention_tolerance(DType::kF32))) << target;
    });
  }
}

}  // namespace
}  // namespace kvant::attn::test
