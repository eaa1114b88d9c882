#include "engine/loader/gguf.h"

#include "support/gguf_writer.h"
#include "support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using ::testing::AllOf;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TempDir;

struct Part {
  uint32_t number = 0;
  uint32_t count = 2;
  uint32_t total_tensors = 2;
  std::vector<std::string> tensors;
};

void write(const TempDir& dir, const std::string& name, const Part& part) {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_u32("split.no", part.number);
  writer.add_u32("split.count", part.count);
  writer.add_u32("split.tensors.count", part.total_tensors);
  const float value = static_cast<float>(part.number) + 1.0f;
  for (const std::string& tensor : part.tensors)
    writer.add_tensor(tensor, {1}, GgufType::kF32, std::span<const float>(&value, 1));
  dir.write(name, writer.bytes());
}

std::string error_of(const TempDir& dir, const std::string& name) {
  const auto file = GgufFile::open(dir.path() / name);
  return file ? "accepted" : file.error().message();
}

TEST(GgufSplit, JoinsAllPartsOfAModel) {
  const TempDir dir;
  write(dir, "m-00001-of-00002.gguf", {.number = 0, .tensors = {"a"}});
  write(dir, "m-00002-of-00002.gguf", {.number = 1, .tensors = {"b"}});
  const auto file = GgufFile::open(dir.path() / "m-00001-of-00002.gguf").value();
  ASSERT_NE(file.find_tensor("b"), nullptr);
  float value = 0.0f;
  dequantise_rows(*file.find_tensor("b"), 0, 1, &value);
  EXPECT_EQ(value, 2.0f);
  dequantise_rows(*file.find_tensor("a"), 0, 1, &value);
  EXPECT_EQ(value, 1.0f);
}

TEST(GgufSplit, NamesMissingPartsAndWrongOnes) {
  const TempDir dir;
  write(dir, "m-00001-of-00003.gguf", {.number = 0, .count = 3, .tensors = {"a"}});
  EXPECT_THAT(error_of(dir, "m-00001-of-00003.gguf"),
              AllOf(HasSubstr("2 of 3 parts"), HasSubstr((dir.path() / "m-00002-of-00003.gguf").string()),
                    HasSubstr((dir.path() / "m-00003-of-00003.gguf").string())));
  write(dir, "m-00002-of-00002.gguf", {.number = 1, .tensors = {"b"}});
  EXPECT_THAT(error_of(dir, "m-00002-of-00002.gguf"), HasSubstr("name the first"));
  write(dir, "renamed.gguf", {.number = 0, .tensors = {"a"}});
  EXPECT_THAT(error_of(dir, "renamed.gguf"), HasSubstr("must end in '-00001-of-00002.gguf'"));
  write(dir, "m-00001-of-00002.gguf", {.number = 0, .tensors = {"b"}});
  EXPECT_THAT(error_of(dir, "m-00001-of-00002.gguf"), HasSubstr("the tensor 'b'"));
  write(dir, "m-00001-of-00002.gguf", {.number = 0, .total_tensors = 3, .tensors = {"a"}});
  EXPECT_THAT(error_of(dir, "m-00001-of-00002.gguf"), HasSubstr("hold 2 tensors; split.tensors.count says 3"));
  write(dir, "m-00002-of-00002.gguf", {.number = 0, .tensors = {"b"}});
  EXPECT_THAT(error_of(dir, "m-00001-of-00002.gguf"), HasSubstr("says that it is part 1 of the model, not 2"));
  write(dir, "m-00001-of-00002.gguf", {.number = 7, .tensors = {"a"}});
  EXPECT_THAT(error_of(dir, "m-00001-of-00002.gguf"), HasSubstr("says that it is part 7 of 2"));
}

}  // namespace
}  // namespace kvant::engine
