#pragma once

#include "core/float_bits.h"
#include "engine/loader/checkpoint_folder.h"
#include "engine/loader/safetensors.h"
#include "engine/models/model_source.h"
#include "engine/runner/runner.h"
#include "support/checkpoint_dir.h"
#include "support/engine_models.h"
#include "support/gguf_writer.h"
#include "support/tiny_llama.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvant::testing {

/// One file of tests/golden/families: a tiny model, as tests/golden/make_family_goldens.py describes it.
class FamilyGolden {
 public:
  struct Row {
    int32_t argmax = 0;
    double log_sum_exp = 0.0;
    std::vector<double> samples;  ///< Of ids (37 position + 41 i) % vocabulary.
  };

  explicit FamilyGolden(const std::filesystem::path& file) : json_(nlohmann::json::parse(std::ifstream(file))) {
    for (const auto& row : json_.at("rows")) {
      rows_.push_back({.argmax = row.at(0), .log_sum_exp = row.at(1), .samples = {}});
      for (size_t i = 2; i < row.size(); ++i) rows_.back().samples.push_back(row.at(i));
    }
  }

  std::string name() const { return json_.at("name"); }
  bool has_gguf() const { return !json_.at("gguf").is_null(); }
  std::vector<int32_t> tokens() const { return json_.at("tokens"); }
  size_t prompt_tokens() const { return json_.at("prompt"); }
  int32_t vocabulary() const { return json_.at("config").at("vocab_size"); }
  const std::vector<Row>& rows() const { return rows_; }
  int32_t sample_id(int32_t position, int32_t i) const { return (37 * position + 41 * i) % vocabulary(); }

  /// The same without the tensors whose names end so.
  FamilyGolden without(std::string_view ending) const {
    FamilyGolden out = *this;
    Json kept = Json::array();
    for (const auto& tensor : json_.at("tensors"))
      if (!tensor.at("name").get_ref<const std::string&>().ends_with(ending)) kept.push_back(tensor);
    out.json_["tensors"] = kept;
    return out;
  }

  /// config.json and model.safetensors.
  void write_folder(const CheckpointDir& dir) const {
    dir.write("config.json", json_.at("config").dump());
    engine::SafetensorsWriter writer;
    for (const auto& tensor : json_.at("tensors")) {
      const std::vector<int64_t> shape = tensor.at("shape");
      const std::string type = tensor.at("dtype");
      if (type == "U8" || type == "F8_E4M3") {
        const std::vector<uint8_t> bytes = codes(tensor);
        writer.add(tensor.at("name"), type == "U8" ? engine::SafetensorsType::kU8 : engine::SafetensorsType::kF8E4m3,
                   shape, std::as_bytes(std::span(bytes)));
      } else if (type == "BF16") {
        const auto bytes = GgufWriter::encode(engine::GgufType::kBf16, values(tensor));
        writer.add(tensor.at("name"), engine::SafetensorsType::kBf16, shape, bytes);
      } else {
        writer.add_f32(tensor.at("name"), shape, values(tensor));
      }
    }
    dir.write("model.safetensors", writer);
  }

  engine::ModelSource open_folder(const CheckpointDir& dir) const {
    auto folder = engine::CheckpointFolder::open(dir.path());
    EXPECT_TRUE(folder) << folder.error().to_string();
    auto source = engine::open_folder_model(std::make_shared<const engine::CheckpointFolder>(*std::move(folder)));
    EXPECT_TRUE(source) << source.error().to_string();
    return *std::move(source);
  }

  /// Logits of all tokens: the prompt in one piece, then steps.
  std::vector<float> logits_of(engine::Runner& runner, engine::KvCacheSet& cache) const {
    const std::vector<int32_t> all = tokens();
    const auto width = static_cast<size_t>(vocabulary());
    std::vector<float> logits(all.size() * width);
    const engine::SequenceId sequence = cache.add_sequence().value();
    for (size_t done = 0; done < all.size();) {
      const size_t count = done == 0 ? prompt_tokens() : 1;
      const engine::BatchRow row{.cache = &cache,
                                 .sequence = sequence,
                                 .tokens = std::span(all).subspan(done, count),
                                 .phase = done == 0 ? engine::RowPhase::kPrefill : engine::RowPhase::kDecode,
                                 .logits = engine::LogitsWanted::kAll};
      const Status status = runner.forward({&row, 1}, logits.data() + done * width);
      EXPECT_TRUE(status.ok()) << status.to_string();
      done += count;
    }
    return logits;
  }

  std::vector<std::byte> gguf() const {
    GgufWriter writer;
    for (const auto& [key, entry] : json_.at("gguf").at("metadata").items()) {
      const std::string type = entry.at(0);
      if (type == "string") writer.add_string(key, entry.at(1).get<std::string>());
      if (type == "u32") writer.add_u32(key, entry.at(1));
      if (type == "f32") writer.add_f32(key, entry.at(1));
    }
    tiny_llama::add_tokenizer(writer, vocabulary());
    for (const auto& recipe : json_.at("gguf").at("tensors")) add_gguf_tensor(recipe, writer);
    return writer.bytes();
  }

 private:
  using Json = nlohmann::json;

  static std::vector<uint32_t> hashes(const std::string& name, size_t count) {
    uint32_t seed = 0x811c9dc5u;
    for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x01000193u;
    const uint32_t start = tiny_llama::mix(seed);
    std::vector<uint32_t> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = tiny_llama::mix(start + static_cast<uint32_t>(i));
    return out;
  }
  static size_t count_of(const Json& tensor) {
    size_t count = 1;
    for (const auto& size : tensor.at("shape")) count *= size.get<size_t>();
    return count;
  }
  std::string salted_name(const Json& tensor) const {
    return json_.at("salt").get<std::string>() + tensor.at("name").get<std::string>();
  }
  std::vector<uint8_t> codes(const Json& tensor) const {
    const uint32_t modulus = tensor.at("scale"), offset = tensor.at("offset");
    const bool is_scale = tensor.at("name").get_ref<const std::string&>().ends_with("_scale");
    const uint32_t sign = tensor.at("dtype") == "F8_E4M3" && !is_scale ? 0x80 : 0;
    std::vector<uint8_t> out;
    for (const uint32_t bits : hashes(salted_name(tensor), count_of(tensor)))
      out.push_back(static_cast<uint8_t>((offset + (bits >> 8) % modulus) | ((bits & 1) != 0 ? sign : 0)));
    return out;
  }
  std::vector<float> values(const Json& tensor) const {
    const float scale = tensor.at("scale"), offset = tensor.at("offset");
    std::vector<float> out;
    for (const uint32_t bits : hashes(salted_name(tensor), count_of(tensor))) {
      const float value = static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) * 0x1p-23f * scale + offset;
      out.push_back(tensor.at("dtype") == "BF16" ? bf16_to_float(float_to_bf16(value)) : value);
    }
    return out;
  }
  const Json& tensor(const std::string& name) const {
    const Json& all = json_.at("tensors");
    return *std::find_if(all.begin(), all.end(), [&](const Json& entry) { return entry.at("name") == name; });
  }

  /// Values in the file's order: rows one after the other.
  std::vector<float> arranged(const Json& recipe) const {
    if (recipe.contains("values")) return recipe.at("values");
    std::vector<float> out;
    for (const std::string name : recipe.at("from")) {
      const std::vector<float> part = values(tensor(name));
      out.insert(out.end(), part.begin(), part.end());
    }
    const std::string op = recipe.value("op", "");
    const std::vector<size_t> shape = recipe.at("shape");
    if (op == "plus_one")
      for (float& value : out) value += 1.0f;
    if (op == "interleave") {
      const auto heads = recipe.at("heads").get<int32_t>();
      const auto rows = static_cast<int32_t>(shape.size() == 1 ? shape[0] : shape[1]);
      return tiny_llama::interleave_rows(out, heads, rows / heads,
                                         static_cast<int32_t>(shape.size() == 1 ? 1 : shape[0]));
    }
    if (op == "elements" || op == "turned") {
      const size_t first = recipe.at("first"), step = recipe.at("step");
      const size_t columns = op == "turned" ? shape[0] : 1, rows = op == "turned" ? shape[1] : shape[0];
      const size_t count = op == "turned" ? shape[2] : shape[1];
      std::vector<float> taken;
      for (size_t matrix = 0; matrix < count; ++matrix)
        for (size_t row = 0; row < rows; ++row)
          for (size_t column = 0; column < columns; ++column)
            taken.push_back(out[(matrix * columns + column) * rows * step + row * step + first]);
      return taken;
    }
    return out;
  }

  /// Codes of element pairs (2 i, 2 i + 1) to (i, i + 16), with each block's scale before them.
  std::vector<std::byte> mxfp4(const Json& recipe) const {
    const std::vector<uint8_t> from = codes(tensor(recipe.at("from").at(0)));
    const std::vector<uint8_t> scales = codes(tensor(recipe.at("from").at(1)));
    const std::vector<size_t> shape = recipe.at("shape");
    const size_t first = recipe.at("first"), step = recipe.at("step"), blocks = shape[0] / 32;
    std::vector<std::byte> out;
    for (size_t row = first; row < shape[1] * shape[2] * step; row += step) {
      for (size_t block = row * blocks; block < (row + 1) * blocks; ++block) {
        const auto code = [&](size_t i) { return from[block * 16 + i / 2] >> (i % 2 * 4) & 15; };
        out.push_back(static_cast<std::byte>(scales[block]));
        for (size_t i = 0; i < 16; ++i) out.push_back(static_cast<std::byte>(code(i) | code(i + 16) << 4));
      }
    }
    return out;
  }

  void add_gguf_tensor(const Json& recipe, GgufWriter& writer) const {
    const std::string name = recipe.at("name");
    const std::vector<int64_t> shape = recipe.at("shape");
    if (recipe.value("op", "") == "mxfp4") {
      writer.add_tensor(name, shape, engine::GgufType::kMxfp4, std::span<const std::byte>(mxfp4(recipe)));
      return;
    }
    // As converters do: matrices keep the checkpoint's type, vectors are F32.
    const bool is_matrix = shape.size() > 1 && !name.ends_with(".bias");
    const bool is_bf16 = is_matrix && tensor(recipe.at("from").at(0)).at("dtype") == "BF16";
    writer.add_tensor(name, shape, is_bf16 ? engine::GgufType::kBf16 : engine::GgufType::kF32,
                      std::span<const float>(arranged(recipe)));
  }

  Json json_;
  std::vector<Row> rows_;
};

inline std::vector<std::filesystem::path> family_golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(KVANT_SOURCE_DIR "/tests/golden/families"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvant::testing
