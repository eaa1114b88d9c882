#include "support/tiny_llama.h"

#include "core/float_bits.h"
#include "engine/loader/gguf.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant::engine {
namespace {

// The engine's golden tests mean something only if this side builds the very weights that transformers was given.
TEST(TinyLlama, HasTheWeightsOfTheGoldens) {
  const auto goldens = testing::read_llama_goldens();
  ASSERT_GE(goldens.size(), 5u);
  for (const auto& golden : goldens) {
    ASSERT_EQ(golden.rows.size(), golden.tokens.size()) << golden.name;
    ASSERT_FALSE(golden.weights.empty());
    const auto bytes = testing::tiny_llama_gguf(golden.config);
    const auto file = GgufFile::parse(bytes, golden.name);
    ASSERT_TRUE(file.has_value()) << file.error().to_string();
    EXPECT_EQ(file->find_tensor("output.weight") == nullptr, golden.config.tied);
    for (const auto& check : golden.weights) {
      const GgufTensor* tensor = file->find_tensor(check.tensor);
      ASSERT_NE(tensor, nullptr) << check.tensor;
      EXPECT_EQ(tensor->type, golden.config.weights);
      std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
      dequantise_rows(*tensor, 0, tensor->shape[1], values.data());
      for (size_t i = 0; i < check.bits.size(); ++i)
        ASSERT_EQ(float_to_bits(values[static_cast<size_t>(check.first) + i]), check.bits[i])
            << golden.name << " " << check.tensor << " element " << check.first + static_cast<int64_t>(i);
    }
  }
}

TEST(TinyLlama, HasAWholeByteVocabulary) {
  const auto bytes = testing::tiny_llama_gguf({});
  const auto file = GgufFile::parse(bytes, "tiny");
  ASSERT_TRUE(file.has_value());
  const auto& tokens = *file->find_strings("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 320u);
  EXPECT_EQ(tokens[3], "\u0100") << "byte 0";
  EXPECT_EQ(tokens[3 + ' '], "\u0120");
  EXPECT_EQ(tokens[3 + 'A'], "A");
  EXPECT_EQ(tokens[3 + 0xff], "\u00ff");
  EXPECT_EQ(tokens[278], "\u0120world");
  EXPECT_EQ(file->get_ints("tokenizer.ggml.token_type")->size(), tokens.size());
}

}  // namespace
}  // namespace kvant::engine
