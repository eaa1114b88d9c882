#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attn/kv/conditioning.h"
#include "attn/kv/e2m1.h"
#include "attn/kv/e4m3.h"
#include "attn/kv/e5m2.h"
#include "attn/kv/f16.h"
#include "attn/kv/nvfp4.h"
#include "attn/kv/row_codec.h"

namespace kvant::attn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Checks a mini-float cast on every code, on every midpoint (ties go to the even code) and just beside it.
template <class Encode, class Decode>
void check_cast(int max_code, int sign_bit, Encode encode, Decode decode) {
  for (int code = 0; code <= max_code; ++code) {
    const float value = decode(static_cast<uint8_t>(code));
    EXPECT_EQ(encode(value), code);
    EXPECT_EQ(encode(-value), code | sign_bit);
    EXPECT_EQ(decode(static_cast<uint8_t>(code | sign_bit)), -value);
    EXPECT_EQ(std::signbit(decode(static_cast<uint8_t>(code | sign_bit))), true);
    if (code == max_code) break;
    const float next = decode(static_cast<uint8_t>(code + 1));
    const float middle = value + (next - value) / 2;
    EXPECT_EQ(encode(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(encode(std::nextafter(middle, -kInf)), code) << middle;
    EXPECT_EQ(encode(std::nextafter(middle, kInf)), code + 1) << middle;
    EXPECT_EQ(encode(-std::nextafter(middle, kInf)), (code + 1) | sign_bit) << middle;
  }
  for (const float large : {decode(static_cast<uint8_t>(max_code)) * 1.01f, 1e30f, kInf}) {
    EXPECT_EQ(encode(large), max_code);
    EXPECT_EQ(encode(-large), max_code | sign_bit);
  }
  EXPECT_EQ(encode(1e-30f), 0);
  EXPECT_EQ(encode(-1e-30f), sign_bit);
  EXPECT_EQ(encode(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(KvCodec, E4m3CastRoundsToTheEvenCodeAndSaturates) {
  check_cast(0x7e, 0x80, float_to_e4m3, e4m3_to_float);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0f, -9));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
}

TEST(KvCodec, E5m2CastRoundsToTheEvenCodeAndSaturates) {
  check_cast(0x7b, 0x80, float_to_e5m2, e5m2_to_float);
  EXPECT_EQ(e5m2_to_float(0x7b), 57344.0f);
  EXPECT_EQ(e5m2_to_float(0x01), std::ldexp(1.0f, -16));
  EXPECT_EQ(e5m2_to_float(0xfc), -kInf);
  for (int code = 0x7d; code <= 0x7f; ++code) EXPECT_TRUE(std::isnan(e5m2_to_float(static_cast<uint8_t>(code))));
}

TEST(KvCodec, E2m1CastRoundsToTheEvenCodeAndSaturates) {
  check_cast(7, 8, float_to_e2m1, e2m1_to_float);
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code)), values[code]);
  EXPECT_EQ(float_to_e2m1(kNan), 0);
}

TEST(KvCodec, CastsToE4m3AsPublished) {
  const float values[] = {256, 448, 464, 465, 1000, -1000, kNan};
  const uint8_t cast[] = {0x78, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7f};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(float_to_e4m3(values[i]), cast[i]) << values[i];
}

TEST(KvCodec, QuantisersStoreZeroForNan) {
  for (const float nan : {kNan, -kNan, bits_to_float(0x7f800001u), bits_to_float(0xffffffffu)}) {
    EXPECT_EQ(encode_e4m3(nan, 1.0f), 0);
    EXPECT_EQ(encode_e5m2(nan, 1.0f), 0);
  }
  EXPECT_EQ(encode_e4m3(-kInf, 0.5f), 0xfe);
  EXPECT_EQ(encode_e5m2(kInf, 0.5f), 0x7b);
  EXPECT_EQ(encode_e4m3(-0.0f, 0.5f), 0x80);
}

TEST(KvCodec, F16SaturatesAndHasOneNan) {
  EXPECT_EQ(encode_f16(65504.0f), 0x7bff);
  EXPECT_EQ(encode_f16(65520.0f), 0x7bff);
  EXPECT_EQ(encode_f16(-1e30f), 0xfbff);
  EXPECT_EQ(encode_f16(kInf), 0x7bff);
  EXPECT_EQ(encode_f16(-kNan), 0x7e00);
  EXPECT_EQ(encode_f16(-0.0f), 0x8000);
  for (uint32_t half = 0; half <= 0xffffu; ++half) {
    const float value = decode_f16(static_cast<uint16_t>(half));
    if (std::isfinite(value)) {
      ASSERT_EQ(encode_f16(value), half);
    }
  }
}

TEST(KvCodec, PackedOrderHoldsEveryCodeOfEveryElement) {
  for (int i = 0; i < 8; ++i) {
    for (int code = 0; code < 16; ++code) {
      const uint32_t word = packed_code_bits(i, static_cast<uint8_t>(code));
      for (int j = 0; j < 8; ++j) EXPECT_EQ(packed_code(word, j), j == i ? code : 0);
      EXPECT_EQ(packed_to_linear(word), static_cast<uint32_t>(code) << (4 * i));
      EXPECT_EQ(linear_to_packed(static_cast<uint32_t>(code) << (4 * i)), word);
    }
  }
}

/// The promise that GPU kernels rest on: masks and shifts give pairs of adjacent elements as f16x2, times 2^-14.
TEST(KvCodec, PackedWordsUnpackToF16PairsByMasks) {
  uint32_t state = 7;
  for (int trial = 0; trial < 1000; ++trial) {
    state = state * 1664525u + 1013904223u;
    const uint32_t w = linear_to_packed(state);
    const uint32_t pairs[] = {w & 0x8E008E00u, (w << 8) & 0x8E008E00u,
                              ((w << 5) & 0x0E000E00u) | ((w << 15) & 0x80008000u),
                              ((w >> 3) & 0x0E000E00u) | ((w << 7) & 0x80008000u)};
    for (int i = 0; i < 8; ++i) {
      const uint16_t half = static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
      EXPECT_EQ(float_to_bits(f16_to_float(half) * 16384.0f),
                float_to_bits(e2m1_to_float(static_cast<uint8_t>((state >> (4 * i)) & 15u))));
    }
  }
}

TEST(KvCodec, Nvfp4BlockOfOneMagnitudeUsesCodeSeven) {
  const uint8_t scales[] = {0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50,
                            0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58};
  for (int group = 0; group < 16; ++group) {
    std::vector<float> x(16, 6.0f * static_cast<float>(group + 1));
    for (const ScalePolicy policy : {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch}) {
      const Nvfp4Codes block = encode_nvfp4_block(x.data(), 1.0f, policy);
      EXPECT_EQ(block.scale, scales[group]);
      for (const uint8_t code : block.codes) EXPECT_EQ(code, 7);
    }
  }
}

TEST(KvCodec, Nvfp4ContainsNanAndInf) {
  std::vector<float> x(16, 1.0f);
  x[0] = kNan;
  x[1] = kInf;
  x[2] = -kInf;
  x[3] = -0.0f;
  x[4] = -kNan;
  for (const ScalePolicy policy : {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch}) {
    const Nvfp4Codes block = encode_nvfp4_block(x.data(), 1.0f, policy);
    EXPECT_EQ(block.scale, 0x7e);
    EXPECT_EQ(block.codes[0], 0);
    EXPECT_EQ(block.codes[1], 7);
    EXPECT_EQ(block.codes[2], 15);
    EXPECT_EQ(block.codes[3], 8);
    EXPECT_EQ(block.codes[4], 0);
  }
}

TEST(KvCodec, Nvfp4SmallBlocksBecomeZerosThatKeepTheirSigns) {
  // With g = 1 the smallest scale is 2^-9; up to half of it times 6 rounds to a zero scale.
  std::vector<float> x(16, -6.0f * std::ldexp(1.0f, -10));
  Nvfp4Codes block = encode_nvfp4_block(x.data(), 1.0f, ScalePolicy::kAmax);
  EXPECT_EQ(block.scale, 0);
  for (const uint8_t code : block.codes) EXPECT_EQ(code, 8);
  x[5] = std::nextafter(x[5], -1.0f) * 1.0001f;
  block = encode_nvfp4_block(x.data(), 1.0f, ScalePolicy::kAmax);
  EXPECT_EQ(block.scale, 1);
  EXPECT_EQ(block.codes[5], 8 + 5);  // 6.0006 * 2^-10 is about 3 steps of 2^-9.
}

TEST(KvCodec, Nvfp4BetterPoliciesNeverHaveALargerError) {
  uint32_t state = 3;
  for (int trial = 0; trial < 2000; ++trial) {
    float x[16];
    for (float& value : x) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int32_t>(state)) * 1e-9f;
    }
    double errors[3];
    for (const ScalePolicy policy : {ScalePolicy::kAmax, ScalePolicy::kFourOverSix, ScalePolicy::kSearch}) {
      const Nvfp4Codes block = encode_nvfp4_block(x, 0.01f, policy);
      double error = 0;
      for (int i = 0; i < 16; ++i) error += std::pow(decode_nvfp4(block.codes[i], block.scale, 0.01f) - x[i], 2);
      errors[static_cast<int>(policy)] = error;
      EXPECT_NE(block.scale & 0x7f, 0x7f);
    }
    EXPECT_LE(errors[1], errors[0] * (1 + 1e-5));
    EXPECT_LE(errors[2], errors[1] * (1 + 1e-5));
  }
}

TEST(KvCodec, Nvfp4CodesDoNotChangeWhenValuesAndScaleGrowTogether) {
  uint32_t state = 11;
  for (int trial = 0; trial < 500; ++trial) {
    float x[16], large[16];
    for (int i = 0; i < 16; ++i) {
      state = state * 1664525u + 1013904223u;
      x[i] = static_cast<float>(static_cast<int32_t>(state) >> 20) / 256.0f;
      large[i] = x[i] * 1000.0f;
    }
    const Nvfp4Codes a = encode_nvfp4_block(x, 1.0f, ScalePolicy::kAmax);
    const Nvfp4Codes b = encode_nvfp4_block(large, 1000.0f, ScalePolicy::kAmax);
    EXPECT_EQ(a.scale, b.scale);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(a.codes[i], b.codes[i]);
      EXPECT_FLOAT_EQ(decode_nvfp4(b.codes[i], b.scale, 1000.0f), 1000.0f * decode_nvfp4(a.codes[i], a.scale, 1.0f));
    }
  }
}

TEST(Conditioning, FactorIsTheRoundedInverseRoot) {
  for (int m = 1; m <= 512; m *= 2) {
    EXPECT_EQ(hadamard_factor(m), static_cast<float>(1.0 / std::sqrt(static_cast<double>(m)))) << m;
    EXPECT_EQ(hadamard_factor(m), 1.0f / std::sqrt(static_cast<float>(m))) << m;
  }
  EXPECT_EQ(hadamard_block(80), 16);
  EXPECT_EQ(hadamard_block(96), 32);
  EXPECT_EQ(hadamard_block(192), 64);
  EXPECT_EQ(hadamard_block(128), 128);
}

TEST(Conditioning, ScoresAreKeptByTheRotationAndTheBias) {
  for (const int n : {16, 64, 80, 96, 128, 192, 256, 512}) {
    std::vector<float> mu(n), z(n), zi(n), q(n), k(n);
    uint32_t state = 5;
    const auto next = [&] {
      state = state * 1664525u + 1013904223u;
      return static_cast<float>(static_cast<int32_t>(state)) * 4.6566e-10f;
    };
    for (int d = 0; d < n; ++d) {
      mu[d] = 3 * next();
      z[d] = 1.5f + next();
      zi[d] = 1.0f / z[d];
      q[d] = next();
      k[d] = next() + mu[d];
    }
    for (const KeyConditioning kind : {KeyConditioning::kNone, KeyConditioning::kMean, KeyConditioning::kFull}) {
      const KeyConditioner conditioner{kind, mu.data(), z.data(), zi.data()};
      double want = 0, got = query_bias(conditioner, 0, n, q.data());
      for (int d = 0; d < n; ++d) want += static_cast<double>(q[d]) * k[d];
      std::vector<float> kc = k, qc = q;
      condition_key(conditioner, 0, n, kc.data());
      condition_query(conditioner, 0, n, qc.data());
      for (int d = 0; d < n; ++d) got += static_cast<double>(qc[d]) * kc[d];
      EXPECT_NEAR(got, want, 1e-4) << n << " " << to_string(kind);
    }
  }
}

TEST(RowCodec, DecodesWhatItEncodesForEveryFormatAndOrder) {
  constexpr int kDim = 48;
  std::vector<float> x(kDim), y(kDim);
  // All 16 values of e2m1 in every block, times 0.5: exact in every format.
  for (int i = 0; i < kDim; ++i) x[i] = e2m1_to_float(static_cast<uint8_t>((i * 7) % 16)) * 0.5f;
  for (const KvFormatInfo& format : kKvFormats) {
    for (const CodeOrder order : {CodeOrder::kLinear, CodeOrder::kPacked}) {
      std::vector<uint8_t> data(kDim * 4), scales(3);
      const RowCodec codec{format.format, kDim, 0.5f, ScalePolicy::kSearch, order};
      encode_row(codec, x.data(), data.data(), LinearScales<uint8_t>{scales.data()});
      decode_row(codec, data.data(), LinearScales<const uint8_t>{scales.data()}, y.data());
      EXPECT_EQ(std::memcmp(y.data(), x.data(), kDim * sizeof(float)), 0) << format.name;
    }
  }
}

}  // namespace
}  // namespace kvant::attn
