#include "engine/loaded_model.h"
#include "support/family_golden.h"
#include "support/temp_dir.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvant::engine {
namespace {

using nlohmann::json;

/// A tokenizer of single bytes.
std::string byte_tokenizer() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[testing::tiny_llama::byte_symbol(byte)] = byte;
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return json{{"version", "1.0"},
              {"added_tokens", json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
      .dump();
}

TEST(FolderEngine, RunsAFolderWithItsTokenizer) {
  const testing::FamilyGolden golden(KVANT_SOURCE_DIR "/tests/golden/families/llama3_scaled.json");
  const testing::CheckpointDir dir;
  golden.write_folder(dir);
  dir.write("tokenizer.json", byte_tokenizer());
  const testing::TempDir cache_dir;
  LoadOptions options;
  options.model = dir.path();
  options.weights = WeightFormat::kF32;
  options.threads = 1;
  options.cache_dir = cache_dir.path();
  auto model = LoadedModel::load(options);
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ((*model)->config().architecture, "llama");
  EXPECT_EQ((*model)->chat_template().value(), std::nullopt);
  EXPECT_EQ((*model)->tokenizer().decode((*model)->tokenizer().encode("Hello, world")), "Hello, world");
  // The default cache needs a profile, which is made on the way.
  const auto cache = (*model)->create_cache(testing::spec("nvfp4"), {.max_tokens = 64});
  ASSERT_TRUE(cache) << cache.error().to_string();
  EXPECT_TRUE((*cache)->uses_profile());

  const std::vector<int32_t> tokens = golden.tokens();
  const auto exact = (*model)->create_cache(testing::spec("f32"), {.max_tokens = 64}).value();
  std::vector<float> logits(static_cast<size_t>(golden.vocabulary()));
  const BatchRow row{
      .cache = exact.get(), .sequence = exact->add_sequence().value(), .tokens = tokens, .phase = RowPhase::kPrefill};
  ASSERT_TRUE((*model)->runner().forward({&row, 1}, logits.data()).ok());
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), golden.rows().back().argmax);
}

}  // namespace
}  // namespace kvant::engine
