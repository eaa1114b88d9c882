#pragma once

#include <cstdint>
#include <cstring>

#include "attn/kv/e2m1.h"
#include "attn/kv/e4m3.h"
#include "attn/kv/e5m2.h"
#include "attn/kv/f16.h"
#include "attn/kv/nvfp4.h"
#include "core/float_bits.h"
#include "core/host_device.h"
#include "kvant/attn/kv_layout.h"

namespace kvant::attn {

/// How one K or V row (one token, one head) is encoded. The scalar definition of all cache bytes: fast writers and
/// readers are tested against it.
struct RowCodec {
  KvFormat format = KvFormat::kF16;
  int32_t head_dim = 0;
  float g = 1.0f;  ///< Global scale; unused by 16-bit and 32-bit formats.
  ScalePolicy policy = ScalePolicy::kAmax;
  CodeOrder code_order = CodeOrder::kLinear;
};

/// Scale bytes of a row that lie next to each other. Row codecs take any functor from block index to address.
template <class Byte>
struct LinearScales {
  Byte* first;
  KVANT_HD Byte* operator()(int32_t block) const { return first + block; }
};

/// Scale bytes of a row in a page, wherever the layout puts them.
template <class Byte>
struct KScales {
  const KvLayout& layout;
  Byte* page;
  int32_t head, token;
  KVANT_HD Byte* operator()(int32_t block) const { return page + layout.k_scale(head, token, block); }
};
template <class Byte>
struct VScales {
  const KvLayout& layout;
  Byte* page;
  int32_t head, token;
  KVANT_HD Byte* operator()(int32_t block) const { return page + layout.v_scale(head, token, block); }
};

namespace detail {

template <class T>
KVANT_HD void store_element(uint8_t* data, int32_t index, T value) {
  std::memcpy(data + static_cast<int64_t>(index) * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}
template <class T>
KVANT_HD T load_element(const uint8_t* data, int32_t index) {
  T value;
  std::memcpy(&value, data + static_cast<int64_t>(index) * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace detail

/// The code of `element` in a row of NVFP4 data.
KVANT_HD uint8_t nvfp4_code(const uint8_t* data, int32_t element, CodeOrder order) {
  const uint32_t word = detail::load_element<uint32_t>(data, element / 8);
  return order == CodeOrder::kLinear ? linear_code(word, element % 8) : packed_code(word, element % 8);
}

/// Writes head_dim values. `scale_of(block)` gives the address of a block's scale byte; only NVFP4 asks for it.
template <class ScaleOf>
KVANT_HD void encode_row(const RowCodec& codec, const float* values, uint8_t* data, const ScaleOf& scale_of) {
  const int32_t n = codec.head_dim;
  switch (codec.format) {
    case KvFormat::kF32:
      for (int32_t i = 0; i < n; ++i) detail::store_element(data, i, values[i]);
      return;
    case KvFormat::kF16:
      for (int32_t i = 0; i < n; ++i) detail::store_element(data, i, encode_f16(values[i]));
      return;
    case KvFormat::kBf16:
      for (int32_t i = 0; i < n; ++i) detail::store_element(data, i, float_to_bf16(values[i]));
      return;
    case KvFormat::kE4m3:
      for (int32_t i = 0; i < n; ++i) data[i] = encode_e4m3(values[i], codec.g);
      return;
    case KvFormat::kE5m2:
      for (int32_t i = 0; i < n; ++i) data[i] = encode_e5m2(values[i], codec.g);
      return;
    case KvFormat::kNvfp4:
      for (int32_t block = 0; block < n / kNvfp4Block; ++block) {
        const Nvfp4Codes encoded = encode_nvfp4_block(values + block * kNvfp4Block, codec.g, codec.policy);
        *scale_of(block) = encoded.scale;
        for (int32_t half = 0; half < 2; ++half) {
          uint32_t word = 0;
          for (int32_t i = 0; i < 8; ++i) {
            const uint8_t code = encoded.codes[8 * half + i];
            word |= codec.code_order == CodeOrder::kLinear ? linear_code_bits(i, code) : packed_code_bits(i, code);
          }
          detail::store_element(data, 2 * block + half, word);
        }
      }
      return;
  }
}

/// Reads head_dim values, times g. `codec.policy` does not matter.
template <class ScaleOf>
KVANT_HD void decode_row(const RowCodec& codec, const uint8_t* data, const ScaleOf& scale_of, float* values) {
  const int32_t n = codec.head_dim;
  switch (codec.format) {
    case KvFormat::kF32:
      for (int32_t i = 0; i < n; ++i) values[i] = detail::load_element<float>(data, i);
      return;
    case KvFormat::kF16:
      for (int32_t i = 0; i < n; ++i) values[i] = decode_f16(detail::load_element<uint16_t>(data, i));
      return;
    case KvFormat::kBf16:
      for (int32_t i = 0; i < n; ++i) values[i] = bf16_to_float(detail::load_element<uint16_t>(data, i));
      return;
    case KvFormat::kE4m3:
      for (int32_t i = 0; i < n; ++i) values[i] = decode_e4m3(data[i], codec.g);
      return;
    case KvFormat::kE5m2:
      for (int32_t i = 0; i < n; ++i) values[i] = decode_e5m2(data[i], codec.g);
      return;
    case KvFormat::kNvfp4:
      for (int32_t i = 0; i < n; ++i)
        values[i] = decode_nvfp4(nvfp4_code(data, i, codec.code_order), *scale_of(i / kNvfp4Block), codec.g);
      return;
  }
}

/// One K or V row of a page, addressed through its layout.
KVANT_HD void encode_k_row(const KvLayout& layout, uint8_t* page, int32_t head, int32_t token, float g,
                           ScalePolicy policy, const float* values) {
  const RowCodec codec{layout.k_format, layout.head_dim_k, g, policy, layout.code_order};
  encode_row(codec, values, page + layout.k_row(head, token), KScales<uint8_t>{layout, page, head, token});
}
KVANT_HD void encode_v_row(const KvLayout& layout, uint8_t* page, int32_t head, int32_t token, float g,
                           ScalePolicy policy, const float* values) {
  const RowCodec codec{layout.v_format, layout.head_dim_v, g, policy, layout.code_order};
  encode_row(codec, values, page + layout.v_row(head, token), VScales<uint8_t>{layout, page, head, token});
}
KVANT_HD void decode_k_row(const KvLayout& layout, const uint8_t* page, int32_t head, int32_t token, float g,
                           float* values) {
  const RowCodec codec{layout.k_format, layout.head_dim_k, g, ScalePolicy::kAmax, layout.code_order};
  decode_row(codec, page + layout.k_row(head, token), KScales<const uint8_t>{layout, page, head, token}, values);
}
KVANT_HD void decode_v_row(const KvLayout& layout, const uint8_t* page, int32_t head, int32_t token, float g,
                           float* values) {
  const RowCodec codec{layout.v_format, layout.head_dim_v, g, ScalePolicy::kAmax, layout.code_order};
  decode_row(codec, page + layout.v_row(head, token), VScales<const uint8_t>{layout, page, head, token}, values);
}

}  // namespace kvant::attn
