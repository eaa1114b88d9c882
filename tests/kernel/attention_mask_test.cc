// Queries of zero give every visible key the same weight: outputs are means, which shows each mask bit.

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/random_problem.h"

namespace kvant::attn::test {
namespace {

constexpr KvFormat kAllFormats[] = {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
                                    KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4};

/// Values that every format holds exactly: each block of 16 has a 6, so that NVFP4's block scale is 1.
float exact_value(int32_t, int64_t key, int32_t head, int32_t index) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  if (index % 16 == 0) return 6.0f;
  const auto pick = static_cast<uint32_t>(key * 7 + head * 5 + index * 3 + key / 8);
  return (pick % 16 < 8 ? 1.0f : -1.0f) * kValues[pick % 8];
}

using Sees = std::function<bool(int32_t request, int32_t row, int64_t key)>;

void expect_means(Problem& problem, const Sees& sees) {
  std::fill(problem.q().begin(), problem.q().end(), std::byte{0});
  const ProblemSpec& spec = problem.spec();
  const int32_t dim = problem.desc().layout.head_dim_v;
  const int32_t group = problem.desc().num_q_heads / problem.desc().layout.num_kv_heads;
  std::vector<double> expected;
  for (size_t r = 0; r < spec.q_lens.size(); ++r) {
    for (int32_t i = 0; i < spec.q_lens[r]; ++i) {
      for (int32_t h = 0; h < problem.desc().num_q_heads; ++h) {
        std::vector<double> sum(dim, 0.0);
        double count = 0.0;
        for (int64_t key = 0; key < spec.kv_lens[r]; ++key) {
          if (!sees(static_cast<int32_t>(r), i, key)) continue;
          count += 1.0;
          for (int32_t d = 0; d < dim; ++d) sum[d] += static_cast<double>(exact_value(0, key, h / group, d));
        }
        for (const double value : sum) expected.push_back(count == 0.0 ? 0.0 : value / count);
      }
    }
  }
  for_each_simd_target([&](const char* target) {
    const Status status = problem.run(2);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(close_to(problem.out(), expected, kvant::test::attention_tolerance(DType::kF32))) << target;
  });
}

ProblemSpec mean_spec(KvFormat format, int32_t group, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens) {
  AttnDesc desc = simple_desc(group, 1, 32);
  desc.layout.k_format = desc.layout.v_format = format;
  ProblemSpec spec{.desc = desc, .q_lens = std::move(q_lens), .kv_lens = std::move(kv_lens)};
  spec.value_element = exact_value;
  return spec;
}

class AttentionMask : public ::testing::TestWithParam<KvFormat> {};

TEST_P(AttentionMask, GivesEachRowTheMeanOfWhatItSees) {
  for (const int32_t group : {8, 9}) {
    for (const int32_t context : {0, 1, 63, 64, 65}) {
      SCOPED_TRACE(fmt::format("group {} context {}", group, context));
      ProblemSpec spec = mean_spec(GetParam(), group, {4}, {context + 4});
      Problem causal(spec);
      expect_means(causal, [&](int32_t, int32_t row, int64_t key) { return key <= context + row; });
      spec.desc.draft_mask = DraftMask::kFull;
      Problem full(spec);
      expect_means(full, [](int32_t, int32_t, int64_t) { return true; });

      // Row 2 hangs on row 0 and row 3 on row 1: siblings do not see each other.
      constexpr uint32_t kTree[4] = {0b0001, 0b0011, 0b0101, 0b1011};
      spec.desc.draft_mask = DraftMask::kPacked;
      Problem tree(spec);
      for (int32_t i = 0; i < 4; ++i) tree.mask()[static_cast<size_t>(i * tree.mask_row_words())] = kTree[i];
      expect_means(tree, [&](int32_t, int32_t row, int64_t key) {
        return key < context || (kTree[row] >> (key - context) & 1u) != 0;
      });
    }
  }
}

TEST_P(AttentionMask, TakesTheWindowFromEachRowsOwnPosition) {
  ProblemSpec spec = mean_spec(GetParam(), 3, {5}, {45});
  spec.desc.window = 16;
  Problem one(spec);
  expect_means(one, [](int32_t, int32_t row, int64_t key) { return key <= 40 + row && key >= 40 + row - 15; });

  spec.q_lens = {5, 1, 0, 3};
  spec.kv_lens = {45, 41, 40, 43};
  Problem ragged(spec);
  expect_means(ragged, [](int32_t, int32_t row, int64_t key) { return key <= 40 + row && key >= 40 + row - 15; });
}

INSTANTIATE_TEST_SUITE_P(Formats, AttentionMask, ::testing::ValuesIn(kAllFormats),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace kvant::attn::test
