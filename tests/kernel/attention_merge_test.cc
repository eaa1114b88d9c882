#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "attn/reference/attention_reference.h"
#include "support/compare.h"
#include "support/random_problem.h"

namespace kvant::attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Part {
  std::vector<float> out;
  float lse;
};

struct Merged {
  std::vector<float> out;
  float lse = 0.0f;
};

Merged merge_parts_of_one_row(const std::vector<Part>& parts, const float* sink = nullptr) {
  std::vector<const float*> outs, lses;
  for (const Part& part : parts) {
    outs.push_back(part.out.data());
    lses.push_back(&part.lse);
  }
  Merged merged{.out = std::vector<float>(parts[0].out.size(), std::numeric_limits<float>::quiet_NaN())};
  MergeArgs args;
  args.outs = outs;
  args.lses = lses;
  args.sinks = sink;
  args.out = merged.out.data();
  args.lse = &merged.lse;
  args.num_tokens = args.num_q_heads = 1;
  args.head_dim_v = static_cast<int32_t>(merged.out.size());
  ThreadPool pool(1);
  EXPECT_TRUE(merge(args, Stream::on_cpu(pool)).ok());
  return merged;
}

TEST(Merge, KeepsEmptyPartsEmpty) {
  const float sink = 1.0f;
  for (const float* maybe_sink : {static_cast<const float*>(nullptr), &sink}) {
    const Merged merged = merge_parts_of_one_row({{{0.0f, 0.0f}, -kInf}, {{0.0f, 0.0f}, -kInf}}, maybe_sink);
    EXPECT_EQ(merged.out, (std::vector<float>{0.0f, 0.0f}));
    EXPECT_EQ(merged.lse, -kInf);
  }
}

TEST(Merge, KeepsTheBitsOfAPartBesideAnEmptyOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Merged merged = merge_parts_of_one_row({{{nan, nan}, -kInf}, {{0.1f, -3.7f}, 4.3f}});
  EXPECT_EQ(merged.out, (std::vector<float>{0.1f, -3.7f}));
  EXPECT_EQ(merged.lse, 4.3f);
}

TEST(Merge, TakesNaturalLogarithms) {
  const Merged merged = merge_parts_of_one_row({{{1.0f}, 0.0f}, {{0.0f}, std::log(3.0f)}});
  EXPECT_NEAR(merged.out[0], 0.25f, 1e-6f);
  EXPECT_NEAR(merged.lse, std::log(4.0f), 1e-6f);
}

TEST(Merge, CountsTheSinkOnce) {
  const float sink = std::log(2.0f);
  const Merged merged = merge_parts_of_one_row({{{1.0f}, 0.0f}, {{1.0f}, 0.0f}}, &sink);
  EXPECT_NEAR(merged.out[0], 0.5f, 1e-6f);
  EXPECT_NEAR(merged.lse, std::log(2.0f), 1e-6f);
}

TEST(Merge, SurvivesLargeLogarithms) {
  const Merged merged = merge_parts_of_one_row({{{2.0f}, 500.0f}, {{4.0f}, 500.0f}, {{9.0f}, -500.0f}});
  EXPECT_NEAR(merged.out[0], 3.0f, 1e-6f);
  EXPECT_NEAR(merged.lse, 500.0f + std::log(2.0f), 1e-4f);
}

TEST(Merge, RefusesUnequalParts) {
  const std::vector<float> out(4), lse(1);
  const float* outs[] = {out.data(), out.data()};
  const float* lses[] = {lse.data()};
  std::vector<float> merged(4);
  MergeArgs args;
  args.outs = outs;
  args.lses = lses;
  args.out = merged.data();
  args.num_tokens = args.num_q_heads = 1;
  args.head_dim_v = 4;
  ThreadPool pool(1);
  EXPECT_EQ(merge(args, Stream::on_cpu(pool)).code(), StatusCode::kInvalidArgument);
}

/// Ranks hold a share of the keys each; merged they are one device, with verify rows and a sink.
TEST(Merge, MakesContextParallelRanksOneDevice) {
  for (const int32_t interleave : {1, 4}) {
    for (const int32_t length : {5, 300}) {
      SCOPED_TRACE(fmt::format("interleave {} length {}", interleave, length));
      AttnDesc desc = simple_desc(6, 2, 64);
      desc.layout.k_format = desc.layout.v_format = KvFormat::kNvfp4;
      desc.sinks = true;
      ProblemSpec spec{.desc = desc, .q_lens = {4}, .kv_lens = {length}};
      Problem whole(spec);
      ASSERT_TRUE(whole.run().ok());

      spec.desc.sinks = false;
      std::vector<std::vector<float>> outs, lses;
      for (int32_t rank = 0; rank < 4; ++rank) {
        spec.desc.context_parallel = {.rank = rank, .size = 4, .interleave = interleave};
        Problem part(spec);
        part.q() = whole.q();
        const Status status = part.run();
        ASSERT_TRUE(status.ok()) << status.to_string();
        outs.push_back(part.out());
        lses.push_back(part.lse());
      }
      std::vector<const float*> out_pointers, lse_pointers;
      for (size_t rank = 0; rank < 4; ++rank) {
        out_pointers.push_back(outs[rank].data());
        lse_pointers.push_back(lses[rank].data());
      }
      std::vector<float> merged(outs[0].size()), merged_lse(lses[0].size());
      MergeArgs args;
      args.outs = out_pointers;
      args.lses = lse_pointers;
      args.sinks = whole.sinks().data();
      args.out = merged.data();
      args.lse = merged_lse.data();
      args.num_tokens = 4;
      args.num_q_heads = 6;
      args.head_dim_v = 64;
      ThreadPool pool(2);
      ASSERT_TRUE(merge(args, Stream::on_cpu(pool)).ok());
      const std::vector<float> out = whole.out(), lse = whole.lse();
      EXPECT_TRUE(close_to(merged, {out.begin(), out.end()}, kvant::test::attention_tolerance(DType::kF32)));
      EXPECT_TRUE(close_to(merged_lse, {lse.begin(), lse.end()}, kvant::test::lse_tolerance()));
    }
  }
}

}  // namespace
}  // namespace kvant::attn::test
