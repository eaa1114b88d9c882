#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <hwy/targets.h>

#include "attn/kv/conditioning.h"
#include "attn/kv/row_codec.h"
#include "core/float_bits.h"
#include "kvant/attn/append.h"

namespace kvant::attn::test {

/// Repeatable random numbers; small, so that one seed gives one test.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33) * 2u ^ static_cast<uint32_t>(state_ >> 20);
  }
  /// In [-1, 1).
  float uniform() { return static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-31f; }
  int32_t below(int32_t limit) { return static_cast<int32_t>(bits() % static_cast<uint32_t>(limit)); }

 private:
  uint64_t state_;
};

/// Mostly ordinary values over many binades, with outliers, zeros of both signs, subnormals, inf and NaN between.
inline std::vector<float> random_values(int64_t count, uint32_t seed, bool with_specials = true) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float specials[] = {0.0f,     -0.0f,    kInf,     -kInf,    kNan,          -kNan,   1e-42f, -3e-39f,
                            65504.0f, 65520.0f, -7e4f,    3e38f,    448.0f,        2688.0f, 464.0f, -57344.0f,
                            61440.0f, 0x1p-9f,  0x1p-10f, 0x1p-17f, 5.9604645e-8f, 1e-8f};
  for (float& value : values) {
    value = random.uniform() * 4.0f;
    if (!with_specials) continue;
    const int32_t kind = random.below(64);
    if (kind == 0) value = specials[random.below(static_cast<int32_t>(std::size(specials)))];
    if (kind == 1) value *= 100.0f;
    if (kind >= 2 && kind < 6) value = bits_to_float((random.bits() & 0x83ffffffu) + 0x3c000000u);
    if (kind == 6) value = static_cast<float>(random.below(25) - 12) * 0.25f;
  }
  return values;
}

/// Bytes of `values` as the model would hand them over.
inline std::vector<std::byte> to_dtype(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == DType::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    if (dtype == DType::kF32)
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    else
      std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}
inline std::vector<float> from_dtype(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    if (dtype == DType::kF32)
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    else
      values[i] = dtype == DType::kF16 ? f16_to_float(half) : bf16_to_float(half);
  }
  return values;
}

/// Two pools whose unused bytes, gaps between pages included, hold poison, and everything that a view points to.
class TestCache {
 public:
  static constexpr uint8_t kPoison = 0xa5;

  TestCache(const KvLayout& layout, int64_t num_base, int64_t num_exact, int64_t gap_bytes = 24)
      : base_stride_(layout.page_bytes() + gap_bytes), exact_stride_(layout.exact().page_bytes() + gap_bytes) {
    base.assign(static_cast<size_t>(num_base * base_stride_), kPoison);
    exact.assign(static_cast<size_t>(num_exact * exact_stride_), kPoison);
    view_.layout = layout;
    view_.base.num_pages = num_base;
    view_.exact.num_pages = num_exact;
  }

  void set_scales(std::vector<float> k, std::vector<float> v) {
    k_scales_ = std::move(k);
    v_scales_ = std::move(v);
  }
  void set_conditioner(KeyConditioning kind, uint32_t seed) {
    const int64_t count = int64_t{view_.layout.num_kv_heads} * view_.layout.head_dim_k;
    kind_ = kind;
    mu_ = random_values(count, seed, false);
    z_ = random_values(count, seed + 1, false);
    zi_.clear();
    for (float& z : z_) {
      z = 0.4f + z * z;
      zi_.push_back(fl_div(1.0f, z));
    }
  }

  KvCacheView view() {
    KvCacheView view = view_;
    view.base.data = reinterpret_cast<std::byte*>(base.data());
    view.base.page_stride = base_stride_;
    view.exact.data = reinterpret_cast<std::byte*>(exact.data());
    view.exact.page_stride = exact_stride_;
    if (!k_scales_.empty()) view.scales = {k_scales_.data(), v_scales_.data(), static_cast<int32_t>(k_scales_.size())};
    view.conditioner = {kind_, mu_.data(), z_.data(), zi_.data()};
    return view;
  }

  std::vector<uint8_t> base, exact;

 private:
  KvCacheView view_;
  int64_t base_stride_, exact_stride_;
  std::vector<float> k_scales_, v_scales_;
  KeyConditioning kind_ = KeyConditioning::kNone;
  std::vector<float> mu_, z_, zi_;
};

/// What `append` must do, one row at a time with the scalar codecs. Dense inputs.
inline void append_scalar(const KvCacheView& cache, ScalePolicy policy, const std::vector<float>& k,
                          const std::vector<float>& v, const std::vector<int64_t>& slots) {
  const KvLayout& base = cache.layout;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    const bool is_exact = (slots[i] & kExactSlotBit) != 0;
    const int64_t slot = slots[i] & ~kExactSlotBit;
    const KvLayout layout = is_exact ? base.exact() : base;
    const KvPool& pool = is_exact ? cache.exact : cache.base;
    auto* page = reinterpret_cast<uint8_t*>(pool.data) + slot / base.page_size * pool.page_stride;
    const auto token = static_cast<int32_t>(slot % base.page_size);
    for (int32_t head = 0; head < base.num_kv_heads; ++head) {
      const auto row = static_cast<int64_t>(i) * base.num_kv_heads + head;
      std::vector<float> key(k.begin() + row * base.head_dim_k, k.begin() + (row + 1) * base.head_dim_k);
      condition_key(cache.conditioner, head, base.head_dim_k, key.data());
      encode_k_row(layout, page, head, token, cache.scales.k_scale(head), policy, key.data());
      encode_v_row(layout, page, head, token, cache.scales.v_scale(head), policy, v.data() + row * base.head_dim_v);
    }
  }
}

/// Runs `body` once for every instruction set that was compiled and that this machine has.
template <class Body>
void for_each_simd_target(const Body& body) {
#if HWY_ARCH_X86
  const int64_t compiled = HWY_SSSE3 | HWY_AVX2 | HWY_AVX3;
#else
  const int64_t compiled = HWY_NEON;
#endif
  hwy::SetSupportedTargetsForTest(0);
  const int64_t targets = hwy::SupportedTargets() & compiled;
  for (int64_t rest = targets; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    body(hwy::TargetName(rest & -rest));
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace kvant::attn::test
