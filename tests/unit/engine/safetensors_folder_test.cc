#include "engine/loader/safetensors_folder.h"

#include "support/checkpoint_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvant::engine {
namespace {

using ::testing::AllOf;
using testing::CheckpointDir;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kIndex = "model.safetensors.index.json";

std::string index_of(const std::string& map) {
  return R"({"metadata": {"total_size": 8}, "weight_map": {)" + map + "}}";
}

void expect_refused(const CheckpointDir& dir, const ::testing::Matcher<const std::string&>& matcher) {
  const auto folder = SafetensorsFolder::open(dir.path());
  ASSERT_FALSE(folder.has_value());
  EXPECT_THAT(folder.error().message(), AllOf(matcher, Not(HasSubstr("\n"))));
}

TEST(SafetensorsFolder, ReadsASingleFile) {
  const CheckpointDir dir;
  dir.write_shard("model.safetensors", {"a", "b"});
  const auto folder = SafetensorsFolder::open(dir.path()).value();
  EXPECT_EQ(folder.num_files(), 1u);
  EXPECT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.total_bytes(), 8);
  EXPECT_NE(folder.find_tensor("b"), nullptr);
  EXPECT_EQ(folder.find_tensor("c"), nullptr);
}

TEST(SafetensorsFolder, ReadsShardsOfAnIndexAsOneSet) {
  const CheckpointDir dir;
  dir.write_shard("model-00001-of-00002.safetensors", {"a"});
  dir.write_shard("model-00002-of-00002.safetensors", {"b", "only in the shard"});
  dir.write(kIndex, index_of(R"("a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors")"));
  const auto folder = SafetensorsFolder::open(dir.path()).value();
  EXPECT_EQ(folder.num_files(), 2u);
  EXPECT_EQ(folder.tensors().size(), 3u) << "every tensor of a shard counts";
}

TEST(SafetensorsFolder, ReadsCompleteShardsWithoutAnIndex) {
  const CheckpointDir dir;
  dir.write_shard("model-00001-of-00002.safetensors", {"a"});
  expect_refused(dir, AllOf(HasSubstr("1 of 2 shards are missing"),
                            HasSubstr((dir.path() / "model-00002-of-00002.safetensors").string())));
  dir.write_shard("model-00002-of-00002.safetensors", {"b"});
  EXPECT_EQ(SafetensorsFolder::open(dir.path()).value().tensors().size(), 2u);
}

TEST(SafetensorsFolder, NamesEveryMissingShardByItsFullPath) {
  const CheckpointDir dir;
  dir.write_shard("one.safetensors", {"a"});
  dir.write(kIndex, index_of(R"("a": "one.safetensors", "b": "two.safetensors", "c": "three.safetensors")"));
  expect_refused(dir,
                 AllOf(HasSubstr("2 of 3 shards are missing"), HasSubstr((dir.path() / "two.safetensors").string()),
                       HasSubstr((dir.path() / "three.safetensors").string())));
}

TEST(SafetensorsFolder, RefusesAnIndexThatLeavesTheFolder) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "..\\\\b.safetensors", "", "..",
                           ".safetensors", "a\\u0000.safetensors", "model.bin"}) {
    const CheckpointDir dir;
    dir.write(kIndex, index_of(std::string(R"("a": ")") + name + "\""));
    expect_refused(dir, AllOf(HasSubstr("tensor 'a' is said to be in"), HasSubstr("of the same folder is needed")));
  }
}

TEST(SafetensorsFolder, NamesDuplicateAndAbsentTensors) {
  const CheckpointDir dir;
  dir.write_shard("one.safetensors", {"a", "twice"});
  dir.write_shard("two.safetensors", {"twice"});
  dir.write(kIndex, index_of(R"("a": "one.safetensors", "twice": "two.safetensors")"));
  expect_refused(dir, AllOf(HasSubstr("tensor 'twice' is in two shards"), HasSubstr("one.safetensors"),
                            HasSubstr("two.safetensors")));
  dir.write_shard("two.safetensors", {"b"});
  dir.write(kIndex, index_of(R"("a": "one.safetensors", "gone": "two.safetensors")"));
  expect_refused(dir, AllOf(HasSubstr("two.safetensors' lacks tensor 'gone'"), HasSubstr(kIndex)));
}

TEST(SafetensorsFolder, RefusesIndexesThatAreNone) {
  const CheckpointDir dir;
  dir.write(kIndex, "{}");
  expect_refused(dir, HasSubstr("'weight_map' is missing"));
  dir.write(kIndex, index_of(""));
  expect_refused(dir, HasSubstr("names no tensor"));
  dir.write(kIndex, index_of("\"a\": 1"));
  expect_refused(dir, HasSubstr("file of tensor 'a' is not a string"));
  dir.write(kIndex, R"({"weight_map": )" + std::string(5000, '['));
  expect_refused(dir, HasSubstr("nests JSON deeper"));
  dir.write(kIndex, "{\"weight_map\": {\"\xff\": \"a.safetensors\"}}");
  expect_refused(dir, HasSubstr("not valid JSON in UTF-8"));
}

TEST(SafetensorsFolder, SaysWhenThereAreNoWeights) {
  const CheckpointDir dir;
  expect_refused(dir, AllOf(HasSubstr("has neither model.safetensors nor"), Not(HasSubstr("PyTorch"))));
  dir.write("pytorch_model.bin", "x");
  expect_refused(dir, HasSubstr("convert them to safetensors"));
}

TEST(SafetensorsFolder, HashesNamesAndData) {
  const auto hash_of = [](const std::vector<std::string>& names) {
    const CheckpointDir dir;
    dir.write_shard("model.safetensors", names);
    return SafetensorsFolder::open(dir.path()).value().hash();
  };
  EXPECT_EQ(hash_of({"a", "b"}), hash_of({"a", "b"}));
  EXPECT_NE(hash_of({"a", "b"}), hash_of({"b", "a"})) << "other values under the same names";
  EXPECT_NE(hash_of({"a", "b"}), hash_of({"a", "c"}));
}

TEST(SafetensorsFolder, SurvivesRandomMutationsOfTheIndex) {
  const CheckpointDir dir;
  dir.write_shard("m1.safetensors", {"a"});
  dir.write_shard("m2.safetensors", {"b"});
  const std::string good = index_of(R"("a": "m1.safetensors", "b": "m2.safetensors")");
  uint32_t state = 7;
  const auto random = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
  int accepted = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text = good;
    for (int i = 0; i < 1 + round % 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    dir.write(kIndex, text);
    const auto folder = SafetensorsFolder::open(dir.path());
    accepted += folder.has_value();
    if (!folder) {
      EXPECT_THAT(folder.error().message(), Not(HasSubstr("\n")));
    }
  }
  EXPECT_GT(accepted, 5) << "the mutations never get past the parser";
}

}  // namespace
}  // namespace kvant::engine
