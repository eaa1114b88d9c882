#include "engine/text_chunks.h"

#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer_data.h"

namespace kvant::engine {
namespace {

/// Bytes as tokens, with a BOS that the file asks for or not.
Tokenizer bytes_with_bos(bool add_bos) {
  const auto json = nlohmann::json::parse(std::ifstream(KVANT_SOURCE_DIR "/tests/golden/tokenizer_small.json"));
  TokenizerData data;
  data.pretokenizer = "gpt-2";
  data.tokens = json["tokens"].get<std::vector<std::string>>();
  data.token_types = json["types"].get<std::vector<int64_t>>();
  data.bos = 3;
  data.add_bos = add_bos;
  return Tokenizer::from_data(std::move(data)).value();
}

TEST(TextChunks, BeginWithBosWhereTheTokenizerWantsIt) {
  const Tokenizer plain = bytes_with_bos(false), wanted = bytes_with_bos(true);
  const std::vector<int32_t> ids = plain.encode("abcdefg");
  ASSERT_EQ(ids.size(), 7u);
  EXPECT_EQ(encode_chunks(plain, "abcdefg", 4), ids);
  EXPECT_THAT(encode_chunks(wanted, "abcdefg", 4),
              ::testing::ElementsAre(3, ids[0], ids[1], ids[2], 3, ids[3], ids[4], ids[5], 3, ids[6]));
}

}  // namespace
}  // namespace kvant::engine
