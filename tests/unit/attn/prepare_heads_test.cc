#include "kvant/attn/head_preparation.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/append.h"
#include "kvant/core/thread_pool.h"
#include "support/prepared_heads.h"

namespace kvant::attn {
namespace {

using test::PreparationCase;
using test::PreparationInputs;
using test::TestCache;

constexpr float kEpsilon = 1e-6f;

KvLayout layout_of(KvFormat format, int32_t k_dim, int32_t v_dim) {
  return {.k_format = format,
          .v_format = format,
          .head_dim_k = k_dim,
          .head_dim_v = v_dim,
          .num_kv_heads = 2,
          .page_size = 16};
}

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

/// What an append with a preparation leaves.
struct Outcome {
  std::vector<std::byte> q, k, v;
  std::vector<uint8_t> base, exact;
  bool operator==(const Outcome&) const = default;
};

struct Projection {
  int64_t num_tokens;
  std::vector<float> values;  // [tokens, q, k and v of all heads]
  int64_t q_width, k_width, v_width;
  int64_t width() const { return q_width + k_width + v_width; }
};

Projection projection_of(const PreparationCase& c, const KvLayout& layout, int64_t num_tokens, uint32_t seed) {
  Projection p{.num_tokens = num_tokens,
               .values = {},
               .q_width = int64_t{c.num_q_heads} * layout.head_dim_k,
               .k_width = int64_t{layout.num_kv_heads} * layout.head_dim_k,
               .v_width = int64_t{layout.num_kv_heads} * layout.head_dim_v};
  p.values = test::random_values(num_tokens * p.width(), seed, false);
  return p;
}

/// Tokens go to both pools in turns, every fourth nowhere.
std::vector<int64_t> slots_of(int64_t num_tokens) {
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < num_tokens; ++i) slots.push_back(i % 4 == 3 ? kSkipSlot : i % 2 == 0 ? i : i | kExactSlotBit);
  return slots;
}

HeadPreparation preparation_of(const PreparationCase& c, const PreparationInputs& inputs) {
  return {.q_bias = data_or_null(inputs.q_bias),
          .k_bias = data_or_null(inputs.k_bias),
          .v_bias = data_or_null(inputs.v_bias),
          .q_norm = data_or_null(inputs.q_norm),
          .k_norm = data_or_null(inputs.k_norm),
          .norm_epsilon = kEpsilon,
          .num_pairs = c.num_pairs,
          .cosines = data_or_null(inputs.cosines),
          .sines = data_or_null(inputs.sines),
          .pairs = c.pairs,
          .num_q_heads = c.num_q_heads};
}

Outcome append_prepared(const PreparationCase& c, const PreparationInputs& inputs, const Projection& p,
                        const KvLayout& layout, DType dtype, ThreadPool& pool) {
  const int64_t num_pages = p.num_tokens / layout.page_size + 1;
  TestCache cache(layout, num_pages, num_pages);
  cache.set_conditioner(KeyConditioning::kFull, 3);
  const auto from = test::to_dtype(p.values, dtype);
  const int64_t bytes = dtype_bytes(dtype);
  // Keys and values are prepared in place.
  Outcome out{.q = std::vector<std::byte>(static_cast<size_t>(p.num_tokens * p.q_width * bytes)),
              .k = from,
              .v = {},
              .base = {},
              .exact = {}};
  std::byte* k = out.k.data() + p.q_width * bytes;
  std::byte* v = k + p.k_width * bytes;
  const std::vector<int64_t> slots = slots_of(p.num_tokens);
  AppendArgs args{.cache = cache.view(),
                  .policy = ScalePolicy::kSearch,
                  .k = k,
                  .v = v,
                  .dtype = dtype,
                  .k_token_stride = p.width(),
                  .v_token_stride = p.width(),
                  .slots = slots.data(),
                  .num_tokens = p.num_tokens,
                  .preparation = preparation_of(c, inputs)};
  args.preparation.q = from.data();
  args.preparation.q_token_stride = p.width();
  args.preparation.q_out = out.q.data();
  args.preparation.k_out = k;
  args.preparation.v_out = v;
  EXPECT_EQ(append(args, Stream::on_cpu(pool)), Status());
  out.base = cache.base;
  out.exact = cache.exact;
  return out;
}

void expect_heads(const std::vector<float>& got, int64_t got_stride, int64_t got_first, const Projection& p,
                  int64_t first, int32_t num_heads, int32_t head_dim, const PreparationCase& c, const float* bias,
                  const float* norm, const PreparationInputs* angles, double tolerance) {
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    for (int32_t head = 0; head < num_heads; ++head) {
      const float* x = p.values.data() + token * p.width() + first + int64_t{head} * head_dim;
      const std::vector<double> want =
          test::prepared_head(c, x, head_dim, bias == nullptr ? nullptr : bias + int64_t{head} * head_dim, norm,
                              kEpsilon, angles == nullptr ? nullptr : angles->cosines.data() + token * c.num_pairs,
                              angles == nullptr ? nullptr : angles->sines.data() + token * c.num_pairs);
      for (int32_t i = 0; i < head_dim; ++i) {
        const double value = got[static_cast<size_t>(token * got_stride + got_first + int64_t{head} * head_dim + i)];
        const double expected = want[static_cast<size_t>(i)];
        ASSERT_NEAR(value, expected, tolerance * (1.0 + std::abs(expected)))
            << "token " << token << ", head " << head << ", channel " << i;
      }
    }
  }
}

constexpr PreparationCase kCases[] = {{.num_pairs = 8},
                                      {.num_q_heads = 1, .num_pairs = 5, .norm = true},
                                      {.num_pairs = 8, .pairs = RopePairs::kInterleaved, .bias = true},
                                      {.num_q_heads = 9, .bias = true, .norm = true},
                                      {.num_pairs = 7, .pairs = RopePairs::kInterleaved, .norm = true},
                                      {.num_q_heads = 3, .num_pairs = 6, .bias = true, .norm = true}};

TEST(PrepareHeads, GivesBiasNormAndRopeOfEveryHeadSize) {
  ThreadPool pool(2);
  uint32_t seed = 1;
  for (const int32_t head_dim : {16, 48, 64, 80, 96, 128, 192, 256, 512}) {
    for (PreparationCase c : kCases) {
      SCOPED_TRACE(fmt::format("head_dim={} {}", head_dim, describe(c)));
      if (c.num_pairs == 8) c.num_pairs = head_dim / 2;
      const KvLayout layout = layout_of(KvFormat::kF32, head_dim, 32);
      const PreparationInputs inputs(c, layout, 5, seed);
      const Projection p = projection_of(c, layout, 5, seed += 10);
      const Outcome got = append_prepared(c, inputs, p, layout, DType::kF32, pool);
      const std::vector<float> q = test::from_dtype(got.q, DType::kF32), kv = test::from_dtype(got.k, DType::kF32);
      const PreparationInputs* angles = c.num_pairs > 0 ? &inputs : nullptr;
      expect_heads(q, p.q_width, 0, p, 0, c.num_q_heads, head_dim, c, data_or_null(inputs.q_bias),
                   data_or_null(inputs.q_norm), angles, 3e-6);
      expect_heads(kv, p.width(), p.q_width, p, p.q_width, 2, head_dim, c, data_or_null(inputs.k_bias),
                   data_or_null(inputs.k_norm), angles, 3e-6);
      expect_heads(kv, p.width(), p.q_width + p.k_width, p, p.q_width + p.k_width, 2, 32, c,
                   data_or_null(inputs.v_bias), nullptr, nullptr, 3e-6);
    }
  }
}

TEST(PrepareHeads, StoresWhatAnAppendOfThePreparedHeadsStores) {
  ThreadPool pool(2);
  uint32_t seed = 500;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const PreparationCase& c : kCases) {
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(format), to_string(dtype), describe(c)));
        const KvLayout layout = layout_of(format, 64, 96);
        const PreparationInputs inputs(c, layout, 37, seed);
        const Projection p = projection_of(c, layout, 37, seed += 10);
        const Outcome got = append_prepared(c, inputs, p, layout, dtype, pool);
        TestCache want(layout, 3, 3);
        want.set_conditioner(KeyConditioning::kFull, 3);
        const std::vector<int64_t> slots = slots_of(37);
        const std::byte* k = got.k.data() + p.q_width * dtype_bytes(dtype);
        const AppendArgs args{.cache = want.view(),
                              .policy = ScalePolicy::kSearch,
                              .k = k,
                              .v = k + p.k_width * dtype_bytes(dtype),
                              .dtype = dtype,
                              .k_token_stride = p.width(),
                              .v_token_stride = p.width(),
                              .slots = slots.data(),
                              .num_tokens = 37};
        ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
        EXPECT_EQ(got.base, want.base);
        EXPECT_EQ(got.exact, want.exact);
      }
    }
  }
}

TEST(PrepareHeads, GivesTheSameBitsOnEveryInstructionSetAndNumberOfThreads) {
  ThreadPool one(1), three(3);
  for (const PreparationCase& c : kCases) {
    const KvLayout layout = layout_of(KvFormat::kNvfp4, 80, 64);
    const PreparationInputs inputs(c, layout, 50, 7);
    const Projection p = projection_of(c, layout, 50, 8);
    const Outcome want = append_prepared(c, inputs, p, layout, DType::kBf16, one);
    test::for_each_simd_target([&](const char* target) {
      EXPECT_EQ(append_prepared(c, inputs, p, layout, DType::kBf16, three), want) << describe(c) << " on " << target;
    });
  }
}

TEST(PrepareHeads, LeavesQueriesOutWhereNoneAreGiven) {
  ThreadPool pool(1);
  const KvLayout layout = layout_of(KvFormat::kF32, 16, 16);
  TestCache cache(layout, 1, 1), want(layout, 1, 1);
  const std::vector<float> k = test::random_values(32, 1, false), v = test::random_values(32, 2, false);
  std::vector<float> biased = k;
  const std::vector<float> bias = test::random_values(32, 3, false);
  for (size_t i = 0; i < biased.size(); ++i) biased[i] += bias[i];
  const std::vector<int64_t> slots = {0};
  AppendArgs args{.cache = cache.view(), .k = k.data(), .v = v.data(), .slots = slots.data(), .num_tokens = 1};
  args.preparation.k_bias = bias.data();
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  args = {.cache = want.view(), .k = biased.data(), .v = v.data(), .slots = slots.data(), .num_tokens = 1};
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  EXPECT_EQ(cache.base, want.base);
}

TEST(PrepareHeads, RefusesWhatItCannotDoByName) {
  ThreadPool pool(1);
  const KvLayout layout = layout_of(KvFormat::kF32, 16, 16);
  TestCache cache(layout, 1, 1);
  std::vector<float> x(64);
  const std::vector<int64_t> slots = {0};
  const auto refuses = [&](auto change, const char* text) {
    AppendArgs args{.cache = cache.view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = 1};
    args.preparation = {
        .num_pairs = 8, .cosines = x.data(), .sines = x.data(), .q = x.data(), .num_q_heads = 2, .q_out = x.data()};
    ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
    change(args.preparation);
    const Status status = append(args, Stream::on_cpu(pool));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr(text));
  };
  refuses([](HeadPreparation& p) { p.num_pairs = 9; }, "RoPE of 9 pairs: a head of 16 channels has 0 to 8");
  refuses([](HeadPreparation& p) { p.num_pairs = -1; }, "RoPE of -1 pairs");
  refuses([](HeadPreparation& p) { p.cosines = nullptr; }, "cosines is null");
  refuses([](HeadPreparation& p) { p.sines = nullptr; }, "sines is null");
  refuses([](HeadPreparation& p) { p.q_out = nullptr; }, "q_out is null");
  refuses([](HeadPreparation& p) { p.num_q_heads = 0; }, "0 query heads");
  refuses([](HeadPreparation& p) { p.q_token_stride = 31; }, "q_token_stride 31");
  refuses([](HeadPreparation& p) { p.norm_epsilon = -1.0f; }, "norm_epsilon -1");
  refuses([](HeadPreparation& p) { p.norm_epsilon = std::nanf(""); }, "norm_epsilon nan");
}

}  // namespace
}  // namespace kvant::attn
