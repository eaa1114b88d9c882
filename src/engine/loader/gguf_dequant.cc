// Expansion of ggml's block encodings, each a struct of a block's elements, its bytes and a function that expands one.
// Layouts: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the type definitions it refers to.
#include "engine/loader/gguf.h"

#include "core/float_bits.h"

#include <cmath>
#include <cstring>

namespace kvant::engine {
namespace {

uint16_t load_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float load_f16(const uint8_t* bytes) { return f16_to_float(load_u16(bytes)); }

// 32 elements: element i is the low nibble of byte i, element i + 16 its high nibble.
struct Q4_0 {
  static constexpr int kElements = 32, kBytes = 18;
  static void expand(const uint8_t* block, float* out) {
    const float scale = load_f16(block);
    const uint8_t* codes = block + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>((codes[i] & 15) - 8);
      out[i + 16] = scale * static_cast<float>((codes[i] >> 4) - 8);
    }
  }
};

struct Q4_1 {
  static constexpr int kElements = 32, kBytes = 20;
  static void expand(const uint8_t* block, float* out) {
    const float scale = load_f16(block), minimum = load_f16(block + 2);
    const uint8_t* codes = block + 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(codes[i] & 15) + minimum;
      out[i + 16] = scale * static_cast<float>(codes[i] >> 4) + minimum;
    }
  }
};

// As above, with the fifth bit of element i in bit i of a 32-bit word.
void join_five_bits(const uint8_t* codes, const uint8_t* high, int* out) {
  uint32_t word;
  std::memcpy(&word, high, sizeof(word));
  for (int i = 0; i < 16; ++i) {
    out[i] = (codes[i] & 15) | static_cast<int>((word >> i) << 4 & 16u);
    out[i + 16] = (codes[i] >> 4) | static_cast<int>((word >> (i + 16)) << 4 & 16u);
  }
}

struct Q5_0 {
  static constexpr int kElements = 32, kBytes = 22;
  static void expand(const uint8_t* block, float* out) {
    const float scale = load_f16(block);
    int codes[32];
    join_five_bits(block + 6, block + 2, codes);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(codes[i] - 16);
  }
};

struct Q5_1 {
  static constexpr int kElements = 32, kBytes = 24;
  static void expand(const uint8_t* block, float* out) {
    const float scale = load_f16(block), minimum = load_f16(block + 2);
    int codes[32];
    join_five_bits(block + 8, block + 4, codes);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(codes[i]) + minimum;
  }
};

struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  static void expand(const uint8_t* block, float* out) {
    const float scale = load_f16(block);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
  }
};

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: four low parts of each, then four bytes of nibbles whose two
// high bits sit on top of the low parts.
struct KScales {
  float scale[8], minimum[8];
  explicit KScales(const uint8_t* block) {
    const float d = load_f16(block), d_minimum = load_f16(block + 2);
    const uint8_t* packed = block + 4;
    for (int i = 0; i < 4; ++i) {
      scale[i] = d * static_cast<float>(packed[i] & 63);
      minimum[i] = d_minimum * static_cast<float>(packed[4 + i] & 63);
      scale[4 + i] = d * static_cast<float>((packed[8 + i] & 15) | (packed[i] >> 6 << 4));
      minimum[4 + i] = d_minimum * static_cast<float>((packed[8 + i] >> 4) | (packed[4 + i] >> 6 << 4));
    }
  }
};

// 256 elements in 8 groups of 32; 32 bytes hold groups 2j (low nibbles) and 2j + 1 (high nibbles).
struct Q4_K {
  static constexpr int kElements = 256, kBytes = 144;
  static void expand(const uint8_t* block, float* out) {
    const KScales scales(block);
    for (int group = 0; group < 8; ++group) {
      const uint8_t* codes = block + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      const float scale = scales.scale[group], minimum = scales.minimum[group];
      for (int i = 0; i < 32; ++i) out[group * 32 + i] = scale * static_cast<float>(codes[i] >> shift & 15) - minimum;
    }
  }
};

// As Q4_K, with the fifth bit of element i of group g in bit g of high byte i.
struct Q5_K {
  static constexpr int kElements = 256, kBytes = 176;
  static void expand(const uint8_t* block, float* out) {
    const KScales scales(block);
    const uint8_t* high = block + 16;
    for (int group = 0; group < 8; ++group) {
      const uint8_t* codes = block + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      const float scale = scales.scale[group], minimum = scales.minimum[group];
      for (int i = 0; i < 32; ++i) {
        const int code = (codes[i] >> shift & 15) | (high[i] >> group & 1) << 4;
        out[group * 32 + i] = scale * static_cast<float>(code) - minimum;
      }
    }
  }
};

// 256 elements in two halves of 4 groups of 32: group j of a half takes its low nibbles from 32-byte row j % 2 (low
// nibbles for j < 2, else high) and its two high bits from bits 2j of the half's 32 high bytes. One scale per 16.
struct Q6_K {
  static constexpr int kElements = 256, kBytes = 210;
  static void expand(const uint8_t* block, float* out) {
    const float d = load_f16(block + 208);
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
    for (int sub = 0; sub < 16; ++sub) {
      const int half = sub / 8, group = sub / 2 % 4, first = sub % 2 * 16;
      const uint8_t* low = block + half * 64 + group % 2 * 32 + first;
      const uint8_t* high = block + 128 + half * 32 + first;
      const int low_shift = group / 2 * 4, high_shift = group * 2;
      const float scale = d * static_cast<float>(scales[sub]);
      for (int i = 0; i < 16; ++i) {
        const int code = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
        out[sub * 16 + i] = scale * static_cast<float>(code - 32);
      }
    }
  }
};

// 32 elements: a power of two, then element i in the low nibble of byte i and element i + 16 in its high nibble.
struct Mxfp4 {
  static constexpr int kElements = 32, kBytes = 17;
  static void expand(const uint8_t* block, float* out) {
    constexpr float kValues[16] = {0.0f, 0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    const float scale = std::ldexp(1.0f, block[0] - 127);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * kValues[block[1 + i] & 15];
      out[i + 16] = scale * kValues[block[1 + i] >> 4];
    }
  }
};

template <class Format>
void expand_blocks(const uint8_t* in, int64_t num_elements, float* out) {
  for (int64_t i = 0; i < num_elements / Format::kElements; ++i)
    Format::expand(in + i * Format::kBytes, out + i * Format::kElements);
}

}  // namespace

void dequantise_rows(const GgufTensor& tensor, int64_t row_begin, int64_t row_end, float* out) {
  const int64_t columns = tensor.shape[0];
  KVANT_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= tensor.num_elements() / columns);
  const auto* in =
      reinterpret_cast<const uint8_t*>(tensor.data.data()) + row_begin * gguf_row_bytes(tensor.type, columns);
  const int64_t count = (row_end - row_begin) * columns;
  switch (tensor.type) {
    case GgufType::kF32: std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float)); return;
    case GgufType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = load_f16(in + 2 * i);
      return;
    case GgufType::kBf16:
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(load_u16(in + 2 * i));
      return;
    case GgufType::kQ4_0: return expand_blocks<Q4_0>(in, count, out);
    case GgufType::kQ4_1: return expand_blocks<Q4_1>(in, count, out);
    case GgufType::kQ5_0: return expand_blocks<Q5_0>(in, count, out);
    case GgufType::kQ5_1: return expand_blocks<Q5_1>(in, count, out);
    case GgufType::kQ8_0: return expand_blocks<Q8_0>(in, count, out);
    case GgufType::kQ4_K: return expand_blocks<Q4_K>(in, count, out);
    case GgufType::kQ5_K: return expand_blocks<Q5_K>(in, count, out);
    case GgufType::kQ6_K: return expand_blocks<Q6_K>(in, count, out);
    case GgufType::kMxfp4: return expand_blocks<Mxfp4>(in, count, out);
  }
}

}  // namespace kvant::engine
