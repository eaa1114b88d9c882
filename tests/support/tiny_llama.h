#pragma once

#include "support/gguf_writer.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace kvant::testing {

/// A random model of the llama architecture, small enough to build in a test. Its weights follow from integers alone,
/// so tests/golden/make_llama_goldens.py can make the same model for Hugging Face transformers.
struct TinyLlamaConfig {
  int32_t layers = 2;
  int32_t hidden = 64;
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 16;
  int32_t ffn = 96;
  int32_t vocabulary = 320;  ///< At least 280: specials, bytes and merges; the rest are unused tokens.
  int32_t context = 1024;
  float rope_theta = 10000.0f;
  bool tied = true;
  uint32_t seed = 1;
  engine::GgufType weights = engine::GgufType::kF32;  ///< Of matrices: F32, F16, BF16 or Q8_0. Norms are F32.
};

/// Stream numbers of the tensors that are not in a layer; those of layer l begin at 10 + 16 l.
namespace tiny_llama {

inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// `count` values, uniform in [-1, 1), times `scale`, plus `offset`.
inline std::vector<float> values(uint32_t seed, uint32_t stream, int64_t count, float scale, float offset = 0.0f) {
  const uint32_t start = mix(seed * 1000u + stream);
  std::vector<float> out(static_cast<size_t>(count));
  for (uint32_t i = 0; i < out.size(); ++i) {
    const auto centred = static_cast<int32_t>(mix(start + i) >> 8) - (1 << 23);
    out[i] = static_cast<float>(centred) * 0x1p-23f * scale + offset;
  }
  return out;
}

inline std::vector<float> matrix(uint32_t seed, uint32_t stream, int64_t rows, int64_t columns, double gain) {
  return values(seed, stream, rows * columns, static_cast<float>(gain * std::sqrt(3.0 / static_cast<double>(columns))));
}

/// Rows of a q or k weight from head halves (i, i + d / 2) to the neighbours (2 i, 2 i + 1) that llama GGUF files have.
inline std::vector<float> interleave_rows(const std::vector<float>& weight, int32_t heads, int32_t head_dim,
                                          int32_t columns) {
  std::vector<float> out(weight.size());
  for (int32_t head = 0; head < heads; ++head)
    for (int32_t i = 0; i < head_dim / 2; ++i)
      for (int32_t half = 0; half < 2; ++half) {
        const auto from = static_cast<ptrdiff_t>(head * head_dim + half * head_dim / 2 + i) * columns;
        const auto to = static_cast<ptrdiff_t>(head * head_dim + 2 * i + half) * columns;
        std::copy_n(weight.begin() + from, columns, out.begin() + to);
      }
  return out;
}

/// The printable stand-in of a byte in byte-level BPE vocabularies, as UTF-8.
inline std::string byte_symbol(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

inline void add_tokenizer(GgufWriter& writer, int32_t vocabulary) {
  constexpr std::array<std::array<const char*, 2>, 20> kMerges{
      {{"h", "e"},        {"\u0120", "t"}, {"i", "n"},        {"e", "r"}, {"o", "n"},
       {"\u0120t", "he"}, {"\u0120", "a"}, {"r", "e"},        {"n", "d"}, {"\u0120a", "nd"},
       {"e", "n"},        {"in", "g"},     {"l", "l"},        {"o", "r"}, {"\u0120", "w"},
       {"he", "ll"},      {"hell", "o"},   {"\u0120w", "or"}, {"l", "d"}, {"\u0120wor", "ld"}}};
  constexpr int32_t kNormal = 1, kControl = 3, kUnused = 5;
  std::vector<std::string> tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), kControl);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(byte_symbol(byte));
  std::vector<std::string> merges;
  for (const auto& [left, right] : kMerges) {
    merges.push_back(std::string(left) + " " + right);
    tokens.push_back(std::string(left) + right);
  }
  types.resize(tokens.size(), kNormal);
  while (static_cast<int32_t>(tokens.size()) < vocabulary)
    tokens.push_back("<unused" + std::to_string(tokens.size()) + ">");
  types.resize(tokens.size(), kUnused);
  writer.add_string("tokenizer.ggml.model", "gpt2");
  writer.add_string("tokenizer.ggml.pre", "smollm");
  writer.add_strings("tokenizer.ggml.tokens", tokens);
  writer.add_i32s("tokenizer.ggml.token_type", types);
  writer.add_strings("tokenizer.ggml.merges", merges);
  writer.add_u32("tokenizer.ggml.bos_token_id", 1);
  writer.add_u32("tokenizer.ggml.eos_token_id", 2);
  writer.add_u32("tokenizer.ggml.unknown_token_id", 0);
  writer.add_u32("tokenizer.ggml.padding_token_id", 2);
  writer.add_bool("tokenizer.ggml.add_bos_token", false);
  writer.add_string("tokenizer.chat_template",
                    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                    "{% endif %}");
}

}  // namespace tiny_llama

/// The model as the bytes of a GGUF file.
inline std::vector<std::byte> tiny_llama_gguf(const TinyLlamaConfig& config) {
  namespace tiny = tiny_llama;
  GgufWriter writer;
  const auto u32 = [](int32_t value) { return static_cast<uint32_t>(value); };
  writer.add_string("general.architecture", "llama");
  writer.add_string("general.name", "Tiny");
  writer.add_u32("llama.context_length", u32(config.context));
  writer.add_u32("llama.embedding_length", u32(config.hidden));
  writer.add_u32("llama.block_count", u32(config.layers));
  writer.add_u32("llama.feed_forward_length", u32(config.ffn));
  writer.add_u32("llama.attention.head_count", u32(config.q_heads));
  writer.add_u32("llama.attention.head_count_kv", u32(config.kv_heads));
  writer.add_u32("llama.attention.key_length", u32(config.head_dim));
  writer.add_u32("llama.attention.value_length", u32(config.head_dim));
  writer.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.add_f32("llama.rope.freq_base", config.rope_theta);
  writer.add_u32("llama.rope.dimension_count", u32(config.head_dim));
  writer.add_u32("llama.vocab_size", u32(config.vocabulary));
  tiny::add_tokenizer(writer, config.vocabulary);

  const auto add_matrix = [&](const std::string& name, const std::vector<float>& weight, int64_t columns) {
    writer.add_tensor(name + ".weight", {columns, static_cast<int64_t>(weight.size()) / columns}, config.weights,
                      std::span<const float>(weight));
  };
  const auto add_norm = [&](const std::string& name, uint32_t stream) {
    const auto weight = tiny::values(config.seed, stream, config.hidden, 0.25f, 1.0f);
    writer.add_tensor(name + ".weight", {config.hidden}, engine::GgufType::kF32, std::span<const float>(weight));
  };
  const int32_t q_size = config.q_heads * config.head_dim, kv_size = config.kv_heads * config.head_dim;
  add_matrix("token_embd", tiny::values(config.seed, 0, int64_t{config.vocabulary} * config.hidden, 0.5f),
             config.hidden);
  add_norm("output_norm", 1);
  if (!config.tied)
    add_matrix("output", tiny::matrix(config.seed, 2, config.vocabulary, config.hidden, 3.0), config.hidden);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const uint32_t stream = 10 + 16 * static_cast<uint32_t>(layer);
    const auto matrix = [&](uint32_t i, int32_t rows, int32_t columns, double gain) {
      return tiny::matrix(config.seed, stream + i, rows, columns, gain);
    };
    const auto interleaved = [&](uint32_t i, int32_t heads) {
      return tiny::interleave_rows(matrix(i, heads * config.head_dim, config.hidden, 2.0), heads, config.head_dim,
                                   config.hidden);
    };
    add_norm(block + "attn_norm", stream);
    add_matrix(block + "attn_q", interleaved(1, config.q_heads), config.hidden);
    add_matrix(block + "attn_k", interleaved(2, config.kv_heads), config.hidden);
    add_matrix(block + "attn_v", matrix(3, kv_size, config.hidden, 1.0), config.hidden);
    add_matrix(block + "attn_output", matrix(4, config.hidden, q_size, 1.0), q_size);
    add_norm(block + "ffn_norm", stream + 5);
    add_matrix(block + "ffn_gate", matrix(6, config.ffn, config.hidden, 1.0), config.hidden);
    add_matrix(block + "ffn_up", matrix(7, config.ffn, config.hidden, 1.0), config.hidden);
    add_matrix(block + "ffn_down", matrix(8, config.hidden, config.ffn, 1.0), config.ffn);
  }
  return writer.bytes();
}

/// One model of llama_logits.txt with what transformers says about it.
struct LlamaGolden {
  std::string name;
  TinyLlamaConfig config;
  int32_t prompt_tokens = 0;    ///< The first of `tokens`; the others are decode steps with given tokens.
  std::vector<int32_t> tokens;  ///< Fed in this order whatever the model would choose.
  /// Per token: arg max of its logits, their log-sum-exp, and logits at ids (37 position + 41 i) % vocabulary.
  struct Row {
    int32_t argmax = 0;
    float log_sum_exp = 0.0f;
    std::array<float, 8> samples{};
  };
  std::vector<Row> rows;
  /// Weights in the file's order, to check that both sides make the same model: name, first element, bit patterns.
  struct WeightCheck {
    std::string tensor;
    int64_t first = 0;
    std::vector<uint32_t> bits;
  };
  std::vector<WeightCheck> weights;

  int32_t sample_id(int32_t position, int32_t i) const { return (37 * position + 41 * i) % config.vocabulary; }
};

inline std::vector<LlamaGolden> read_llama_goldens(const std::filesystem::path& path = KVANT_SOURCE_DIR
                                                   "/tests/golden/llama_logits.txt") {
  std::vector<LlamaGolden> goldens;
  std::ifstream in(path);
  for (std::string word; in >> word;) {
    if (word == "case") goldens.emplace_back();
    if (goldens.empty()) return {};
    LlamaGolden& golden = goldens.back();
    TinyLlamaConfig& config = golden.config;
    if (word == "case") {
      std::string weights;
      in >> golden.name >> config.layers >> config.hidden >> config.q_heads >> config.kv_heads >> config.head_dim >>
          config.ffn >> config.vocabulary >> config.rope_theta >> config.tied >> config.seed >> weights;
      config.weights = weights == "q8_0"  ? engine::GgufType::kQ8_0
                       : weights == "f16" ? engine::GgufType::kF16
                                          : engine::GgufType::kF32;
    } else if (word == "tokens") {
      size_t count = 0;
      in >> golden.prompt_tokens >> count;
      golden.tokens.resize(count);
      for (int32_t& token : golden.tokens) in >> token;
    } else if (word == "row") {
      LlamaGolden::Row row;
      in >> row.argmax >> row.log_sum_exp;
      for (float& sample : row.samples) in >> sample;
      golden.rows.push_back(row);
    } else if (word == "weight") {
      LlamaGolden::WeightCheck check;
      in >> check.tensor >> check.first;
      check.bits.resize(4);
      for (uint32_t& bits : check.bits) in >> std::hex >> bits >> std::dec;
      golden.weights.push_back(std::move(check));
    }
  }
  return goldens;
}

}  // namespace kvant::testing
