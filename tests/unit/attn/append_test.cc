#include "kvant/attn/append.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvant/attn/kernel_table.h"
#include "kvant/core/thread_pool.h"
#include "support/kv_test_cache.h"

namespace kvant::attn {
namespace {

using test::TestCache;
using ::testing::HasSubstr;

constexpr ScalePolicy kPolicies[] = {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch};
constexpr KeyConditioning kConditionings[] = {KeyConditioning::kNone, KeyConditioning::kMean, KeyConditioning::kFull};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

struct Case {
  KvLayout layout;
  ScalePolicy policy = ScalePolicy::kAmax;
  KeyConditioning conditioning = KeyConditioning::kNone;
  DType dtype = DType::kF32;
  int num_scales = 0;  ///< 0 = none.
  int64_t num_tokens = 13;
  uint32_t seed = 1;
};

std::string describe(const Case& c, const char* target) {
  return fmt::format("{} policy={} cond={} dtype={} scales={} seed={} on {}", c.layout.to_string(), to_string(c.policy),
                     to_string(c.conditioning), to_string(c.dtype), c.num_scales, c.seed, target);
}

void set_up(TestCache& cache, const Case& c) {
  cache.set_conditioner(c.conditioning, c.seed + 100);
  std::vector<float> k, v;
  for (int i = 0; i < c.num_scales; ++i) {
    k.push_back(0.01f * static_cast<float>(i + 1));
    v.push_back(0.037f / static_cast<float>(i + 1));
  }
  cache.set_scales(k, v);
}

/// Appends to base and exact pages, then compares every byte of both pools with the scalar codecs.
void check_append(const Case& c, ThreadPool& pool, const char* target) {
  SCOPED_TRACE(describe(c, target));
  const int64_t page = c.layout.page_size;
  const int64_t num_pages = 2 * c.num_tokens / page + 2;
  TestCache got(c.layout, num_pages, num_pages), want(c.layout, num_pages, num_pages);
  set_up(got, c);
  set_up(want, c);

  std::vector<int64_t> slots;
  for (int64_t token = 0; token < c.num_tokens; ++token) {
    const int64_t slot = (token * 7 + 3) % (num_pages * page);
    // Of two tokens with one slot, either may be written last.
    const bool free = std::none_of(slots.begin(), slots.end(),
                                   [slot](int64_t other) { return other >= 0 && (other & ~kExactSlotBit) == slot; });
    slots.push_back(token % 5 == 4 || !free ? kSkipSlot : token % 3 == 1 ? slot | kExactSlotBit : slot);
  }
  const int64_t heads = c.layout.num_kv_heads;
  // Arithmetic on NaN leaves payloads that only f32 and bf16 pages would keep.
  const bool specials = info(c.layout.k_format).quantised || c.conditioning == KeyConditioning::kNone;
  const auto k =
      test::to_dtype(test::random_values(c.num_tokens * heads * c.layout.head_dim_k, c.seed, specials), c.dtype);
  const auto v = test::to_dtype(test::random_values(c.num_tokens * heads * c.layout.head_dim_v, c.seed + 1), c.dtype);
  const AppendArgs args{.cache = got.view(),
                        .policy = c.policy,
                        .k = k.data(),
                        .v = v.data(),
                        .dtype = c.dtype,
                        .slots = slots.data(),
                        .num_tokens = c.num_tokens};
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  test::append_scalar(want.view(), c.policy, test::from_dtype(k, c.dtype), test::from_dtype(v, c.dtype), slots);
  const auto differs = [](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
    return std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  };
  ASSERT_EQ(differs(got.base, want.base), static_cast<int64_t>(want.base.size()));
  ASSERT_EQ(differs(got.exact, want.exact), static_cast<int64_t>(want.exact.size()));
}

TEST(Append, WritesTheBytesOfTheScalarCodecsForEveryFormatPolicyAndHeadSize) {
  ThreadPool pool(2);
  test::for_each_simd_target([&](const char* target) {
    uint32_t seed = 1;
    for (const KvFormatInfo& k_format : kKvFormats) {
      for (const int32_t head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 272, 512}) {
        Case c{.layout = {.k_format = k_format.format,
                          .v_format = k_format.format,
                          .head_dim_k = head_dim,
                          .head_dim_v = head_dim,
                          .num_kv_heads = 1 + static_cast<int32_t>(seed % 3),
                          .page_size = 4}};
        c.policy = kPolicies[seed % 3];
        c.conditioning = kConditionings[seed / 3 % 3];
        c.dtype = kDTypes[seed / 2 % 3];
        c.num_scales = seed % 2 == 0 ? 0 : seed % 4 == 1 ? 1 : c.layout.num_kv_heads;
        c.seed = seed++;
        check_append(c, pool, target);
      }
    }
  });
}

TEST(Append, WritesTheSameBytesForAllPoliciesConditioningsAndDtypesOfNvfp4) {
  ThreadPool pool(1);
  test::for_each_simd_target([&](const char* target) {
    uint32_t seed = 500;
    for (const ScalePolicy policy : kPolicies) {
      for (const KeyConditioning conditioning : kConditionings) {
        for (const DType dtype : kDTypes) {
          for (const CodeOrder order : {CodeOrder::kLinear, CodeOrder::kPacked}) {
            check_append({.layout = {.k_format = KvFormat::kNvfp4,
                                     .v_format = KvFormat::kNvfp4,
                                     .head_dim_k = 192,
                                     .head_dim_v = 128,
                                     .num_kv_heads = 2,
                                     .page_size = 8,
                                     .order = TokenHeadOrder::kHnd,
                                     .code_order = order,
                                     .scale_order = ScaleOrder::kSm10xV},
                          .policy = policy,
                          .conditioning = conditioning,
                          .dtype = dtype,
                          .num_scales = 2,
                          .seed = seed++},
                         pool, target);
          }
        }
      }
    }
  });
}

TEST(Append, WritesMixedFormatsPagesAndOrders) {
  ThreadPool pool(2);
  for (const int32_t page : {1, 2, 16, 32, 256}) {
    check_append({.layout = {.k_format = KvFormat::kE4m3,
                             .v_format = KvFormat::kNvfp4,
                             .head_dim_k = 96,
                             .head_dim_v = 64,
                             .num_kv_heads = 3,
                             .page_size = page},
                  .policy = ScalePolicy::kSearch,
                  .num_scales = 3,
                  .num_tokens = 61},
                 pool, "best");
    check_append({.layout = {.k_format = KvFormat::kBf16,
                             .v_format = KvFormat::kE5m2,
                             .head_dim_k = 64,
                             .head_dim_v = 80,
                             .num_kv_heads = 3,
                             .page_size = page,
                             .plane_order = PlaneOrder::kInterleaved},
                  .dtype = DType::kBf16,
                  .num_tokens = 61},
                 pool, "best");
  }
}

TEST(Append, WritesTheLaneScaleOrder) {
  ThreadPool pool(2);
  for (const KvFormat k_format : {KvFormat::kNvfp4, KvFormat::kE4m3}) {
    for (const int32_t head_dim : {64, 128}) {
      check_append({.layout = {.k_format = k_format,
                               .v_format = KvFormat::kNvfp4,
                               .head_dim_k = head_dim,
                               .head_dim_v = 128,
                               .num_kv_heads = 3,
                               .page_size = 32,
                               .code_order = CodeOrder::kPacked,
                               .scale_order = ScaleOrder::kLanes},
                    .policy = ScalePolicy::kSearch,
                    .num_scales = 3,
                    .num_tokens = 61},
                   pool, "best");
    }
  }
}

TEST(Append, ManyTokensOnManyThreadsGiveTheSameBytes) {
  ThreadPool pool(4);
  check_append({.layout = {.k_format = KvFormat::kNvfp4,
                           .v_format = KvFormat::kNvfp4,
                           .head_dim_k = 64,
                           .head_dim_v = 64,
                           .num_kv_heads = 3,
                           .page_size = 16},
                .policy = ScalePolicy::kSearch,
                .conditioning = KeyConditioning::kFull,
                .num_tokens = 777},
               pool, "best");
}

TEST(Append, ReadsStridedInputs) {
  ThreadPool pool(1);
  const KvLayout layout{.k_format = KvFormat::kE4m3,
                        .v_format = KvFormat::kE4m3,
                        .head_dim_k = 32,
                        .head_dim_v = 16,
                        .num_kv_heads = 2,
                        .page_size = 4};
  TestCache dense(layout, 2, 0), strided(layout, 2, 0);
  const std::vector<float> k = test::random_values(5 * 64, 1), v = test::random_values(5 * 32, 2);
  // One fused buffer: q (10 elements), k, v per token.
  std::vector<float> fused(5 * 106, 1e9f);
  for (size_t token = 0; token < 5; ++token) {
    std::copy_n(k.begin() + token * 64, 64, fused.begin() + token * 106 + 10);
    std::copy_n(v.begin() + token * 32, 32, fused.begin() + token * 106 + 74);
  }
  const std::vector<int64_t> slots = {0, 5, 2, 7, 1};
  const AppendArgs args{.cache = dense.view(), .k = k.data(), .v = v.data(), .slots = slots.data(), .num_tokens = 5};
  AppendArgs with_strides = args;
  with_strides.cache = strided.view();
  with_strides.k = fused.data() + 10;
  with_strides.v = fused.data() + 74;
  with_strides.k_token_stride = with_strides.v_token_stride = 106;
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  ASSERT_EQ(append(with_strides, Stream::on_cpu(pool)), Status());
  EXPECT_EQ(dense.base, strided.base);
}

TEST(Append, RefusesSlotsOutsideThePoolAndWritesNothing) {
  ThreadPool pool(1);
  const KvLayout layout{.k_format = KvFormat::kNvfp4,
                        .v_format = KvFormat::kNvfp4,
                        .head_dim_k = 16,
                        .head_dim_v = 16,
                        .num_kv_heads = 1,
                        .page_size = 4};
  TestCache cache(layout, 3, 1);
  const std::vector<float> x(4 * 16, 1.0f);
  for (const int64_t bad :
       {int64_t{12}, int64_t{4} | kExactSlotBit, int64_t{1} << 61, (int64_t{1} << 61) | kExactSlotBit}) {
    const std::vector<int64_t> slots = {0, 1, -1, bad};
    const AppendArgs args{.cache = cache.view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = 4};
    const Status status = append(args, Stream::on_cpu(pool));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("slots[3]"));
    EXPECT_THAT(status.message(), HasSubstr((bad & kExactSlotBit) != 0 ? "exact pool, which has 1 page"
                                                                       : "base pool, which has 3 pages"));
    EXPECT_EQ(std::count(cache.base.begin(), cache.base.end(), TestCache::kPoison), std::ssize(cache.base));
    EXPECT_EQ(std::count(cache.exact.begin(), cache.exact.end(), TestCache::kPoison), std::ssize(cache.exact));
  }
}

TEST(Append, RefusesBadDescriptorsByName) {
  ThreadPool pool(1);
  const Stream stream = Stream::on_cpu(pool);
  const KvLayout layout{.k_format = KvFormat::kNvfp4,
                        .v_format = KvFormat::kNvfp4,
                        .head_dim_k = 16,
                        .head_dim_v = 16,
                        .num_kv_heads = 2,
                        .page_size = 4};
  TestCache cache(layout, 1, 0);
  const std::vector<float> x(32, 1.0f);
  const std::vector<int64_t> slots = {0};
  const AppendArgs good{.cache = cache.view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = 1};
  const auto refuses = [&](auto change, const char* text, StatusCode code = StatusCode::kInvalidArgument) {
    AppendArgs args = good;
    change(args);
    const Status status = append(args, stream);
    EXPECT_EQ(status.code(), code) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  const float scales[] = {0.5f, -1.0f};
  refuses([](AppendArgs& a) { a.cache.layout.head_dim_k = 24; }, "head_dim_k 24");
  refuses([](AppendArgs& a) { a.cache.base.data = nullptr; }, "base pool has 1 pages but no data");
  refuses([](AppendArgs& a) { a.cache.base.page_stride -= 25; }, "page stride");
  refuses([&](AppendArgs& a) { a.cache.scales = {scales, scales, 2}; }, "k_scale[1] is -1");
  refuses([&](AppendArgs& a) { a.cache.scales = {scales, scales, 3}; }, "3 global scales for 2 KV heads");
  refuses(
      [](AppendArgs& a) {
        a.cache.conditioner = {KeyConditioning::kFull, a.cache.scales.k, nullptr, nullptr};
      },
      "lacks its mean");
  refuses(
      [](AppendArgs& a) {
        a.cache.conditioner = {KeyConditioning::kFull, static_cast<const float*>(a.k), nullptr, nullptr};
      },
      "lacks its balance");
  refuses([](AppendArgs& a) { a.v = nullptr; }, "at least one is null");
  refuses([](AppendArgs& a) { a.num_tokens = -1; }, "num_tokens -1");
  refuses([](AppendArgs& a) { a.k_token_stride = 31; }, "k_token_stride 31");
  EXPECT_EQ(append(good, Stream{}).code(), StatusCode::kInvalidArgument);
  int not_a_stream = 0;
  const Status cuda = append(good, Stream::on_cuda(&not_a_stream));
  EXPECT_EQ(cuda.code(), StatusCode::kUnsupported);
  EXPECT_THAT(cuda.message(), HasSubstr(kernel_table().has_cuda ? "head_dim_k 16 on CUDA" : "build with CUDA"));
  EXPECT_EQ(append(good, stream), Status());
}

TEST(Append, IgnoresScalesOfA16BitCache) {
  ThreadPool pool(1);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16}) {
    const KvLayout layout{
        .k_format = format, .v_format = format, .head_dim_k = 32, .head_dim_v = 32, .num_kv_heads = 1, .page_size = 1};
    TestCache plain(layout, 1, 0), scaled(layout, 1, 0);
    scaled.set_scales({0.06f}, {-1.0f});  // Not even looked at.
    const std::vector<float> x = test::random_values(32, 9, false);
    const std::vector<int64_t> slots = {0};
    for (TestCache* cache : {&plain, &scaled}) {
      const AppendArgs args{
          .cache = cache->view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = 1};
      ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
    }
    EXPECT_EQ(plain.base, scaled.base);
    std::vector<float> k(32), v(32), k_scaled(32), v_scaled(32);
    ASSERT_EQ(dequantise(plain.view(), slots, k.data(), v.data(), Stream::on_cpu(pool)), Status());
    ASSERT_EQ(dequantise(scaled.view(), slots, k_scaled.data(), v_scaled.data(), Stream::on_cpu(pool)), Status());
    EXPECT_EQ(k, k_scaled);
    EXPECT_EQ(v, v_scaled);
  }
}

/// The block pattern that shows swizzled or shifted scales: block b holds 6 (b + 1).
TEST(Append, KAndVScalesHaveTheKnownPatternForManyHeadsAndPages) {
  ThreadPool pool(1);
  const uint8_t scales[] = {0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50,
                            0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58};
  for (const int32_t heads : {1, 2, 4, 8}) {
    for (const int32_t page_size : {16, 32}) {
      const KvLayout layout{.k_format = KvFormat::kNvfp4,
                            .v_format = KvFormat::kNvfp4,
                            .head_dim_k = 256,
                            .head_dim_v = 256,
                            .num_kv_heads = heads,
                            .page_size = page_size};
      TestCache cache(layout, 1, 0, 0);
      std::vector<float> x(static_cast<size_t>(page_size * heads * 256));
      for (size_t i = 0; i < x.size(); ++i) x[i] = 6.0f * static_cast<float>(i % 256 / 16 + 1);
      std::vector<int64_t> slots(static_cast<size_t>(page_size));
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
      const AppendArgs args{
          .cache = cache.view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = page_size};
      ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
      const int64_t plane = int64_t{heads} * page_size * 128;
      const int64_t side = int64_t{heads} * page_size * 144;
      for (const int64_t first : {int64_t{0}, side}) {
        for (int64_t i = 0; i < plane; ++i) ASSERT_EQ(cache.base[static_cast<size_t>(first + i)], 0x77);
        for (int64_t i = 0; i < side - plane; ++i)
          ASSERT_EQ(cache.base[static_cast<size_t>(first + plane + i)], scales[i % 16]);
      }
    }
  }
}

TEST(Append, HeadsAreIndependent) {
  ThreadPool pool(1);
  for (const KvFormatInfo& format : kKvFormats) {
    for (const TokenHeadOrder order : {TokenHeadOrder::kNhd, TokenHeadOrder::kHnd}) {
      const KvLayout layout{.k_format = format.format,
                            .v_format = format.format,
                            .head_dim_k = 64,
                            .head_dim_v = 64,
                            .num_kv_heads = 5,
                            .page_size = 4,
                            .order = order};
      TestCache cache(layout, 1, 0);
      std::vector<float> x(4 * 5 * 64);
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i / 64 % 5 + 1);
      const std::vector<int64_t> slots = {0, 1, 2, 3};
      const AppendArgs args{
          .cache = cache.view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = 4};
      ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
      std::vector<float> k(x.size()), v(x.size());
      ASSERT_EQ(dequantise(cache.view(), slots, k.data(), v.data(), Stream::on_cpu(pool)), Status());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(k[i], x[i], 0.07 * x[i]) << i;
        ASSERT_EQ(k[i], k[i / 64 * 64]);
        ASSERT_EQ(v[i], k[i]);
      }
    }
  }
}

TEST(Append, ValuesTimes1000WithScalesTimes1000GiveTheSameBytes) {
  ThreadPool pool(1);
  const KvLayout layout{.k_format = KvFormat::kNvfp4,
                        .v_format = KvFormat::kNvfp4,
                        .head_dim_k = 64,
                        .head_dim_v = 64,
                        .num_kv_heads = 2,
                        .page_size = 4};
  std::vector<float> x = test::random_values(4 * 2 * 64, 3, false), large;
  for (float& value : x) {
    value = bf16_to_float(float_to_bf16(value));
    large.push_back(value * 1000.0f);
  }
  TestCache small(layout, 1, 0), big(layout, 1, 0);
  small.set_scales({0.5f}, {0.25f});
  big.set_scales({500.0f}, {250.0f});
  const std::vector<int64_t> slots = {0, 1, 2, 3};
  AppendArgs args{.cache = small.view(), .k = x.data(), .v = x.data(), .slots = slots.data(), .num_tokens = 4};
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  args.cache = big.view();
  args.k = args.v = large.data();
  ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
  EXPECT_EQ(small.base, big.base);
  std::vector<float> k(x.size()), v(x.size()), k_big(x.size()), v_big(x.size());
  ASSERT_EQ(dequantise(small.view(), slots, k.data(), v.data(), Stream::on_cpu(pool)), Status());
  ASSERT_EQ(dequantise(big.view(), slots, k_big.data(), v_big.data(), Stream::on_cpu(pool)), Status());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(k_big[i], 1000.0f * k[i]);
}

/// What a bad element leaves behind stays finite, and its neighbours stay what they were.
TEST(Append, NoScaleByteIsNanAndEverythingReadBackIsFinite) {
  ThreadPool pool(1);
  for (const KvFormat format : {KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4}) {
    const KvLayout layout{.k_format = format,
                          .v_format = format,
                          .head_dim_k = 128,
                          .head_dim_v = 128,
                          .num_kv_heads = 2,
                          .page_size = 16};
    TestCache cache(layout, 4, 0);
    const std::vector<float> x = test::random_values(64 * 2 * 128, 77);
    std::vector<int64_t> slots(64);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
    const AppendArgs args{.cache = cache.view(),
                          .policy = ScalePolicy::kSearch,
                          .k = x.data(),
                          .v = x.data(),
                          .slots = slots.data(),
                          .num_tokens = 64};
    ASSERT_EQ(append(args, Stream::on_cpu(pool)), Status());
    std::vector<float> k(x.size()), v(x.size());
    ASSERT_EQ(dequantise(cache.view(), slots, k.data(), v.data(), Stream::on_cpu(pool)), Status());
    for (const float value : k) ASSERT_TRUE(std::isfinite(value));
    for (int64_t page = 0; format == KvFormat::kNvfp4 && page < 4; ++page) {
      const uint8_t* bytes = cache.base.data() + page * (layout.page_bytes() + 24);
      for (int64_t i = layout.k_scale_plane(); i < layout.v_plane(); ++i) ASSERT_LT(bytes[i], 0x7f);
      for (int64_t i = layout.v_scale_plane(); i < layout.page_bytes(); ++i) ASSERT_LT(bytes[i], 0x7f);
    }
  }
}

/// Any bit pattern may lie in an exact page: NaN and inf too.
void fill_random(std::vector<uint8_t>& bytes, uint32_t seed) {
  test::Random random(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
}

TEST(AgePages, GiveTheBytesOfTheScalarCodecsOnEveryTarget) {
  ThreadPool pool(2);
  test::for_each_simd_target([&](const char* target) {
    uint32_t seed = 900;
    for (const KvFormat format : {KvFormat::kE4m3, KvFormat::kE5m2, KvFormat::kNvfp4}) {
      for (const ScalePolicy policy : kPolicies) {
        const KvLayout layout{.k_format = format,
                              .v_format = format,
                              .head_dim_k = 80,
                              .head_dim_v = 64,
                              .num_kv_heads = 3,
                              .page_size = 16,
                              .code_order = CodeOrder::kPacked};
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(format), to_string(policy), target));
        TestCache got(layout, 4, 3), want(layout, 4, 3);
        for (TestCache* cache : {&got, &want}) {
          cache->set_conditioner(KeyConditioning::kFull, 5);
          cache->set_scales({0.02f, 0.03f, 0.04f}, {0.01f, 0.02f, 0.5f});
          fill_random(cache->exact, seed);
        }
        const std::vector<PageAge> ages = {{2, 0}, {0, 3}};
        const AgeArgs args{.cache = got.view(), .policy = policy, .ages = ages.data(), .num_ages = 2};
        ASSERT_EQ(age_pages(args, Stream::on_cpu(pool)), Status());

        const KvCacheView view = want.view();
        std::vector<float> row(80);
        for (const PageAge& age : ages) {
          const auto* from =
              reinterpret_cast<const uint8_t*>(view.exact.data) + age.exact_page * view.exact.page_stride;
          auto* to = reinterpret_cast<uint8_t*>(view.base.data) + age.base_page * view.base.page_stride;
          for (int32_t head = 0; head < 3; ++head) {
            for (int32_t token = 0; token < 16; ++token) {
              decode_k_row(layout.exact(), from, head, token, 1.0f, row.data());
              encode_k_row(layout, to, head, token, view.scales.k_scale(head), policy, row.data());
              decode_v_row(layout.exact(), from, head, token, 1.0f, row.data());
              encode_v_row(layout, to, head, token, view.scales.v_scale(head), policy, row.data());
            }
          }
        }
        ASSERT_EQ(got.base, want.base);
        ASSERT_EQ(got.exact, want.exact);
        ++seed;
      }
    }
  });
}

TEST(AgePages, RefusesPagesOutsideTheirPools) {
  ThreadPool pool(1);
  const KvLayout layout{.k_format = KvFormat::kE4m3,
                        .v_format = KvFormat::kE4m3,
                        .head_dim_k = 16,
                        .head_dim_v = 16,
                        .num_kv_heads = 1,
                        .page_size = 4};
  TestCache cache(layout, 2, 2);
  for (const PageAge bad : {PageAge{2, 0}, PageAge{0, 2}, PageAge{-1, 0}, PageAge{0, -1}}) {
    const std::vector<PageAge> ages = {{0, 0}, bad};
    const Status status = age_pages({.cache = cache.view(), .ages = ages.data(), .num_ages = 2}, Stream::on_cpu(pool));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("ages[1]"));
  }
  EXPECT_EQ(std::count(cache.base.begin(), cache.base.end(), TestCache::kPoison), std::ssize(cache.base));
}

TEST(Dequantise, SkipsNegativeSlotsAndRefusesOthersOutsideThePool) {
  ThreadPool pool(1);
  const KvLayout layout{.k_format = KvFormat::kF16,
                        .v_format = KvFormat::kF16,
                        .head_dim_k = 16,
                        .head_dim_v = 16,
                        .num_kv_heads = 1,
                        .page_size = 4};
  TestCache cache(layout, 1, 0);
  std::vector<float> k(32, 5.0f), v(32, 5.0f);
  const std::vector<int64_t> good = {-1, 2}, bad = {4};
  EXPECT_EQ(dequantise(cache.view(), good, k.data(), v.data(), Stream::on_cpu(pool)), Status());
  EXPECT_EQ(k[0], 0.0f);
  EXPECT_EQ(k[16], f16_to_float(0xa5a5));
  EXPECT_EQ(dequantise(cache.view(), bad, k.data(), v.data(), Stream::on_cpu(pool)).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::attn
