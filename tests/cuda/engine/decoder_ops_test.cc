#include "ops/decoder_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "core/float_bits.h"
#include "kvant/core/thread_pool.h"
#include "ops/rope.h"
#include "ops/sampling.h"
#include "support/cuda_stream_test.h"
#include "support/tolerance.h"
#include "unit/ops/test_inputs.h"

namespace kvant::ops {
namespace {

using test::bits;
using test::random_values;
using test::rounded;

void expect_near(float got, double want, kvant::test::Tolerance tolerance, size_t index) {
  ASSERT_LE(std::abs(got - want), tolerance.absolute + tolerance.relative * std::abs(want))
      << "element " << index << ": " << got << " instead of " << want;
}

/// Decoder steps on CUDA against the CPU's, on inputs that bf16 holds exactly.
class CudaDecoderOps : public kvant::testing::CudaStreamTest {
 protected:
  std::vector<float> read_bf16(const DeviceBuffer& buffer) {
    std::vector<float> out;
    for (const uint16_t value : read<uint16_t>(buffer)) out.push_back(bf16_to_float(value));
    return out;
  }

  /// A token for every row of logits, one draw each.
  std::vector<int32_t> draw(const DeviceSampler& sampler, const DeviceBuffer& logits, int32_t vocabulary,
                            const std::vector<Draw>& draws) {
    const DeviceBuffer how = send(draws), out = send(std::vector<int32_t>(draws.size(), -1));
    const Status status = sampler.run({.logits = logits.as<float>(),
                                       .num_rows = std::ssize(draws),
                                       .vocabulary = vocabulary,
                                       .draws = how.as<Draw>(),
                                       .out = out.as<int32_t>()},
                                      stream());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return read<int32_t>(out);
  }

  ThreadPool pool_{2};
  Stream cpu_ = Stream::on_cpu(pool_);
};

TEST_F(CudaDecoderOps, MultiplyLikeADoublePrecisionProduct) {
  auto context = LinearContext::create(stream(), pool_);
  ASSERT_TRUE(context) << context.error().to_string();
  struct Size {
    int out, in;
  };
  for (const Size& size : {Size{64, 64}, Size{576, 1536}, Size{3072, 576}, Size{1001, 8}, Size{5, 4136}}) {
    const int out = size.out, in = size.in;
    const std::vector<float> weight = rounded(random_values(out * in, 1));
    auto linear = Linear::create(
        LinearFormat::kBf16, out, in,
        [&](int64_t begin, int64_t end, float* to) {
          std::copy(weight.begin() + begin * in, weight.begin() + end * in, to);
        },
        512, stream(), context->get());
    ASSERT_TRUE(linear) << linear.error().to_string();
    for (const int rows : {1, 2, 3, 4, 7, 64, 130}) {
      const std::vector<float> x = rounded(random_values(rows * in, 2));
      const std::vector<float> before = random_values(rows * out, 3);
      const DeviceBuffer device_x = send(bits(x));
      for (const LinearOutput output : {LinearOutput::kActivations, LinearOutput::kF32, LinearOutput::kAddF32}) {
        const bool narrow = output == LinearOutput::kActivations;
        const DeviceBuffer y = narrow ? send(std::vector<uint16_t>(before.size(), 0x7fff)) : send(before);
        const Status status =
            (*linear)->run({.x = device_x.data(), .num_rows = rows, .y = y.data(), .output = output}, stream());
        ASSERT_TRUE(status.ok()) << status.to_string();
        const std::vector<float> got = narrow ? read_bf16(y) : read<float>(y);
        for (int row = 0; row < rows; row += std::max(1, rows / 4)) {
          for (int o = 0; o < out; ++o) {
            double sum = 0, magnitude = 0;
            for (int i = 0; i < in; ++i) {
              const double term =
                  double{x[static_cast<size_t>(row * in + i)]} * weight[static_cast<size_t>(o * in + i)];
              sum += term;
              magnitude += std::abs(term);
            }
            const auto index = static_cast<size_t>(row * out + o);
            if (output == LinearOutput::kAddF32) sum += before[index];
            expect_near(got[index], sum,
                        narrow ? kvant::test::bf16_activation_tolerance(magnitude)
                               : kvant::test::f32_activation_tolerance(magnitude),
                        index);
          }
        }
      }
    }
  }
}

TEST_F(CudaDecoderOps, RefuseOtherWeightFormats) {
  auto context = LinearContext::create(stream(), pool_);
  ASSERT_TRUE(context) << context.error().to_string();
  const auto linear = Linear::create(
      LinearFormat::kInt8, 8, 8, [](int64_t, int64_t, float*) {}, 1, stream(), context->get());
  ASSERT_FALSE(linear);
  EXPECT_EQ(linear.error().code(), StatusCode::kUnsupported);
}

TEST_F(CudaDecoderOps, NormaliseLikeTheCpu) {
  for (const int dim : {64, 576, 4096, 5120}) {
    const std::vector<float> x = random_values(9 * dim, 4, true), weight = random_values(dim, 5);
    const std::vector<int32_t> indices = {8, 0, 3, 3};
    const DeviceBuffer device_x = send(x), device_weight = send(weight), device_indices = send(indices);
    for (const bool gathered : {false, true}) {
      const auto rows = gathered ? std::ssize(indices) : 9;
      std::vector<float> want(static_cast<size_t>(rows * dim));
      NormArgs args{.x = x.data(),
                    .row_indices = gathered ? indices.data() : nullptr,
                    .num_rows = rows,
                    .dim = dim,
                    .weight = weight.data(),
                    .epsilon = 1e-6f,
                    .out = want.data()};
      ASSERT_TRUE(normalise(args, cpu_).ok());
      const DeviceBuffer out = send(std::vector<uint16_t>(want.size(), 0x7fff));
      args.x = device_x.as<float>();
      args.weight = device_weight.as<float>();
      args.row_indices = gathered ? device_indices.as<int32_t>() : nullptr;
      args.out = out.data();
      ASSERT_TRUE(normalise(args, stream()).ok());
      const std::vector<float> got = read_bf16(out);
      for (size_t i = 0; i < want.size(); ++i)
        expect_near(got[i], want[i], kvant::test::bf16_activation_tolerance(std::abs(want[i])), i);
    }
  }
}

TEST_F(CudaDecoderOps, TabulateAnglesLikeTheCpu) {
  const std::vector<int32_t> positions = {0, 1, 4095, 131071, 17};
  const DeviceBuffer device_positions = send(positions);
  for (const int32_t dim : {20, 64, 128}) {
    const RopeParams params{.dim = dim, .theta = 500000.0, .scale = 1.25};
    Rope want(params);
    want.set_positions(positions);
    auto rope = Rope::create(params, 8, stream());
    ASSERT_TRUE(rope) << rope.error().to_string();
    ASSERT_TRUE(rope->set_positions(device_positions.as<int32_t>(), std::ssize(positions), stream()).ok());
    const auto count = static_cast<int64_t>(positions.size()) * rope->num_pairs();
    std::vector<float> cosines(static_cast<size_t>(count)), sines(cosines.size());
    const int64_t size = count * int64_t{sizeof(float)};
    ASSERT_TRUE(copy_bytes(cosines.data(), rope->cosines(), size, stream()).ok());
    ASSERT_TRUE(copy_bytes(sines.data(), rope->sines(), size, stream()).ok());
    ASSERT_TRUE(synchronise(stream()).ok());
    for (size_t i = 0; i < cosines.size(); ++i) {
      ASSERT_NEAR(cosines[i], want.cosines()[i], 1e-6f) << i;
      ASSERT_NEAR(sines[i], want.sines()[i], 1e-6f) << i;
    }
  }
}

TEST_F(CudaDecoderOps, GateLikeTheCpu) {
  for (const int size : {8, 1536}) {
    std::vector<float> gate_up = rounded(random_values(5 * 2 * size, 10));
    gate_up[0] = -60.0f;
    gate_up[1] = 100.0f;
    std::vector<float> want(static_cast<size_t>(5 * size));
    for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kClampedSwish}) {
      GateArgs args{.gate = {.kind = kind, .limit = 3.0f}, .num_rows = 5, .size = size};
      args.gate_up = gate_up.data();
      args.out = want.data();
      ASSERT_TRUE(apply_gate(args, cpu_).ok());
      const DeviceBuffer in = send(bits(gate_up)), out = send(std::vector<uint16_t>(want.size(), 0x7fff));
      args.gate_up = in.data();
      args.out = out.data();
      ASSERT_TRUE(apply_gate(args, stream()).ok());
      const std::vector<float> got = read_bf16(out);
      for (size_t i = 0; i < want.size(); ++i) {
        kvant::test::Tolerance tolerance = kvant::test::bf16_activation_tolerance(std::abs(want[i]));
        tolerance.absolute += 1e-30;  // The CPU's exp ends above zero.
        expect_near(got[i], want[i], tolerance, i);
      }
    }
  }
}

TEST_F(CudaDecoderOps, FinishBlocksLikeTheCpu) {
  constexpr int kRows = 5, kWidth = 72;
  std::vector<float> x = random_values(kRows * kWidth, 21), sum = random_values(kRows * kWidth, 22);
  const std::vector<float> weight = random_values(kWidth, 23), bias = random_values(kWidth, 24);
  const DeviceBuffer device_x = send(x), device_sum = send(sum), device_weight = send(weight), device_bias = send(bias);
  ASSERT_TRUE(add_bias(x.data(), kRows, kWidth, bias.data(), cpu_).ok());
  ASSERT_TRUE(add_bias(device_x.as<float>(), kRows, kWidth, device_bias.as<float>(), stream()).ok());
  NormAddArgs args{.num_rows = kRows, .dim = kWidth, .epsilon = 1e-6f};
  args.x = x.data();
  args.weight = weight.data();
  args.sum = sum.data();
  ASSERT_TRUE(normalise_add(args, cpu_).ok());
  args.x = device_x.as<float>();
  args.weight = device_weight.as<float>();
  args.sum = device_sum.as<float>();
  ASSERT_TRUE(normalise_add(args, stream()).ok());
  ASSERT_TRUE(soft_cap(sum.data(), kRows, kWidth, 2.0f, cpu_).ok());
  ASSERT_TRUE(soft_cap(device_sum.as<float>(), kRows, kWidth, 2.0f, stream()).ok());
  const std::vector<float> got = read<float>(device_sum);
  for (size_t i = 0; i < sum.size(); ++i)
    expect_near(got[i], sum[i], kvant::test::f32_activation_tolerance(1.0 + std::abs(sum[i])), i);
}

TEST_F(CudaDecoderOps, EmbedRowsOfTheTable) {
  auto context = LinearContext::create(stream(), pool_);
  ASSERT_TRUE(context) << context.error().to_string();
  constexpr int kVocabulary = 50, kWidth = 64;
  const std::vector<float> table = rounded(random_values(kVocabulary * kWidth, 11));
  const auto embedding = Embedding::create(
      kVocabulary, kWidth,
      [&](int64_t begin, int64_t end, float* to) {
        std::copy(table.begin() + begin * kWidth, table.begin() + end * kWidth, to);
      },
      nullptr, stream(), context->get());
  ASSERT_TRUE(embedding) << embedding.error().to_string();
  const std::vector<int32_t> tokens = {49, 0, 7, 7};
  const DeviceBuffer ids = send(tokens), out = send(std::vector<float>(tokens.size() * kWidth, NAN));
  ASSERT_TRUE(embedding->run(ids.as<int32_t>(), std::ssize(tokens), 2.0f, out.as<float>(), stream()).ok());
  const std::vector<float> got = read<float>(out);
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], 2.0f * table[static_cast<size_t>(tokens[i / kWidth]) * kWidth + i % kWidth]) << i;
}

TEST_F(CudaDecoderOps, DrawTheMostLikelyTokenLikeTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int vocabulary : {1, 31, 50257}) {
    constexpr int kRows = 6;
    std::vector<float> logits = random_values(kRows * vocabulary, 12);
    const auto row = [&](int r) { return logits.begin() + r * vocabulary; };
    std::fill(row(1), row(2), 1.0f);
    std::fill(row(2), row(3), -kInf);
    std::fill(row(3), row(4), NAN);
    *row(4) = NAN;
    *(row(5) - 1) = kInf;
    const DeviceBuffer device = send(logits);
    auto sampler = DeviceSampler::create(8, stream());
    ASSERT_TRUE(sampler) << sampler.error().to_string();
    // Twice: the second call finds what the first left behind.
    for (int repeat = 0; repeat < 2; ++repeat) {
      const std::vector<int32_t> got = draw(*sampler, device, vocabulary, std::vector<Draw>(kRows));
      for (int r = 0; r < kRows; ++r)
        EXPECT_EQ(got[static_cast<size_t>(r)], ops::argmax({&*row(r), static_cast<size_t>(vocabulary)}))
            << "row " << r << " of " << vocabulary;
    }
  }
}

/// How tokens are drawn, for what the CPU says of it.
struct DrawCase {
  const char* name;
  int32_t vocabulary;
  SamplingParams params;
};

class CudaDraw : public CudaDecoderOps, public ::testing::WithParamInterface<DrawCase> {};

TEST_P(CudaDraw, HasTheDistributionOfTheCpu) {
  if (IsSkipped()) return;
  constexpr int kRows = 256, kRounds = 16, kDraws = kRows * kRounds;
  const int32_t vocabulary = GetParam().vocabulary;
  std::vector<float> row = random_values(vocabulary, 31);
  for (float& logit : row) logit *= 6.0f;
  row[static_cast<size_t>(vocabulary) / 2] = NAN;
  row[static_cast<size_t>(vocabulary) / 3] = -std::numeric_limits<float>::infinity();

  std::vector<float> adjusted = row;
  Sampler cpu(GetParam().params);
  std::vector<double> probability(static_cast<size_t>(vocabulary), 0.0);
  double sum = 0.0;
  const auto candidates = cpu.distribution(adjusted, {});
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  for (const Candidate& candidate : candidates)
    probability[static_cast<size_t>(candidate.token)] = candidate.weight / sum;

  std::vector<float> logits;
  for (int r = 0; r < kRows; ++r) logits.insert(logits.end(), row.begin(), row.end());
  const DeviceBuffer device = send(logits);
  auto sampler = DeviceSampler::create(kRows, stream());
  ASSERT_TRUE(sampler) << sampler.error().to_string();
  std::vector<int64_t> counts(static_cast<size_t>(vocabulary), 0);
  std::vector<int32_t> first;
  for (int round = 0; round <= kRounds; ++round) {
    std::vector<Draw> draws(kRows);
    for (int r = 0; r < kRows; ++r)
      draws[static_cast<size_t>(r)] = {.seed = 7 + static_cast<uint64_t>(r),
                                       .step = static_cast<uint64_t>(round % kRounds),
                                       .temperature = GetParam().params.temperature,
                                       .top_k = GetParam().params.top_k,
                                       .top_p = GetParam().params.top_p,
                                       .min_p = GetParam().params.min_p};
    const std::vector<int32_t> got = draw(*sampler, device, vocabulary, draws);
    if (round == 0) first = got;
    // The last round repeats the first: the same seeds and steps give the same tokens.
    if (round == kRounds) {
      EXPECT_EQ(got, first);
      break;
    }
    for (const int32_t token : got) {
      ASSERT_TRUE(token >= 0 && token < vocabulary) << token;
      ASSERT_GT(probability[static_cast<size_t>(token)], 0.0) << "token " << token << " cannot be drawn";
      ++counts[static_cast<size_t>(token)];
    }
  }
  // Tokens that are expected five times and more, the rest as one; 5 standard deviations of the statistic.
  double statistic = 0.0, rest_expected = 0.0;
  int64_t rest = 0, cells = 0;
  const auto add = [&](int64_t count, double expected) {
    const double off = static_cast<double>(count) - expected;
    statistic += off * off / expected;
    ++cells;
  };
  for (size_t i = 0; i < probability.size(); ++i) {
    const double expected = probability[i] * kDraws;
    if (expected >= 5.0) {
      add(counts[i], expected);
    } else {
      rest_expected += expected;
      rest += counts[i];
    }
  }
  if (rest_expected >= 5.0) add(rest, rest_expected);
  const auto freedom = static_cast<double>(cells - 1);
  EXPECT_LE(statistic, freedom + 5.0 * std::sqrt(2.0 * freedom) + 1e-9) << cells << " cells";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaDraw,
    ::testing::Values(DrawCase{"temperature", 50257, {.temperature = 0.8f}},
                      DrawCase{"hot", 1000, {.temperature = 3.0f}},
                      DrawCase{"top_k", 50257, {.temperature = 1.5f, .top_k = 40}},
                      DrawCase{"top_k_beyond", 300, {.temperature = 1.0f, .top_k = 1000}},
                      DrawCase{"top_p", 151936, {.temperature = 1.0f, .top_p = 0.9f}},
                      DrawCase{"small_top_p", 50257, {.temperature = 1.0f, .top_p = 1e-6f}},
                      DrawCase{"min_p", 50257, {.temperature = 1.2f, .min_p = 0.05f}},
                      DrawCase{"all", 50257, {.temperature = 1.1f, .top_k = 200, .top_p = 0.95f, .min_p = 0.01f}},
                      DrawCase{"tiny", 3, {.temperature = 1.0f, .top_p = 0.9f}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_F(CudaDecoderOps, DrawOneOfEqualLogits) {
  constexpr int kRows = 64, kVocabulary = 1000;
  const DeviceBuffer device = send(std::vector<float>(kRows * kVocabulary, 2.5f));
  std::vector<Draw> draws(kRows);
  for (int r = 0; r < kRows; ++r) {
    draws[static_cast<size_t>(r)] = {.seed = static_cast<uint64_t>(r), .temperature = 1.0f};
    if (r % 3 == 1) draws[static_cast<size_t>(r)].top_k = 7;
    if (r % 3 == 2) draws[static_cast<size_t>(r)].top_p = 0.0035f;  // Four tokens.
  }
  auto sampler = DeviceSampler::create(kRows, stream());
  ASSERT_TRUE(sampler) << sampler.error().to_string();
  std::array<std::set<int32_t>, 3> seen;
  const std::vector<int32_t> got = draw(*sampler, device, kVocabulary, draws);
  for (int r = 0; r < kRows; ++r) seen[static_cast<size_t>(r % 3)].insert(got[static_cast<size_t>(r)]);
  EXPECT_GT(seen[0].size(), 15u);
  EXPECT_LE(seen[1].size(), 7u);
  EXPECT_GT(seen[1].size(), 1u);
  EXPECT_LE(seen[2].size(), 4u);
  EXPECT_GT(seen[2].size(), 1u);
}

}  // namespace
}  // namespace kvant::ops
