#include "engine/loader/safetensors.h"

#include "support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;

std::vector<std::byte> image(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string record(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

void expect_refused(const std::string& header, size_t data_bytes, const char* text) {
  const auto bytes = image(header, data_bytes);
  const auto file = SafetensorsFile::parse(bytes, "test.safetensors");
  ASSERT_FALSE(file.has_value()) << "accepted " << header;
  EXPECT_THAT(file.error().message(), HasSubstr(text)) << header;
  EXPECT_THAT(file.error().message(), HasSubstr("test.safetensors"));
  EXPECT_THAT(file.error().message(), Not(HasSubstr("\n")));
}

SafetensorsWriter sample() {
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  writer.set_metadata("text", "caf\u00e9 \"quoted\"\n");
  const float mean[] = {1.0f, -2.0f, 3.5f, 0.0f, 5.0f, 6.0f};
  writer.add_f32("layers.0.mu", {2, 3}, mean);
  const std::byte raw[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  writer.add("codes", SafetensorsType::kU8, {3}, raw);
  writer.add_f32("empty", {0, 7}, {});
  writer.add_f32("scalar", {}, std::span(mean, 1));
  return writer;
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TempDir dir;
  const auto path = dir.path() / "profile.safetensors";
  ASSERT_TRUE(sample().write(path).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.has_value()) << file.error().to_string();
  EXPECT_EQ(file->get_metadata("text").value(), "caf\u00e9 \"quoted\"\n");
  EXPECT_EQ(file->get_metadata("absent").error().code(), StatusCode::kNotFound);
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_THAT(file->get_f32("layers.0.mu", std::vector<int64_t>{2, 3}).value(),
              ElementsAre(1.0f, -2.0f, 3.5f, 0.0f, 5.0f, 6.0f));
  EXPECT_THAT(file->get_f32("scalar", {}).value(), ElementsAre(1.0f));
  EXPECT_THAT(file->find_tensor("empty")->shape, ElementsAre(0, 7));
  EXPECT_EQ(file->find_tensor("codes")->data[2], std::byte{3});
  EXPECT_EQ(file->find_tensor("code"), nullptr);
  EXPECT_THAT(file->get_f32("layers.0.mu", std::vector<int64_t>{3, 2}).error().message(),
              HasSubstr("is F32 [2, 3]; F32 [3, 2] is needed"));
  EXPECT_THAT(file->get_f32("codes", std::vector<int64_t>{3}).error().message(), HasSubstr("is U8 [3]"));
}

TEST(Safetensors, WritesTheSameBytesEachTimeWithAlignedData) {
  const auto bytes = sample().bytes().value();
  EXPECT_EQ(bytes, sample().bytes().value());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
}

TEST(Safetensors, ReplacesAFileAndLeavesNothingBehind) {
  const TempDir dir;
  const auto path = dir.write("a.safetensors", std::vector<std::byte>(3));
  ASSERT_TRUE(sample().write(path).ok());
  EXPECT_TRUE(SafetensorsFile::open(path).has_value());
  const Status status = sample().write(dir.path() / "absent" / "a.safetensors");
  EXPECT_THAT(status.message(), HasSubstr("absent"));
  // A directory in the way makes the rename fail after the data has been written.
  std::filesystem::create_directory(dir.path() / "taken");
  EXPECT_FALSE(sample().write(dir.path() / "taken").ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 2);
}

TEST(Safetensors, RefusesTextThatIsNotUtf8) {
  SafetensorsWriter writer;
  writer.set_metadata("key", "\xff");
  EXPECT_EQ(writer.bytes().error().code(), StatusCode::kInvalidArgument);
}

TEST(Safetensors, AcceptsAnyOrderAndTrailingSpaces) {
  const auto bytes =
      image("{" + record("b", "F32", "[1]", "[4,8]") + "," + record("a", "BF16", "[2]", "[0,4]") + "}   ", 8);
  const auto file = SafetensorsFile::parse(bytes, "t");
  ASSERT_TRUE(file.has_value()) << file.error().to_string();
  EXPECT_EQ(file->tensors()[0].name, "a");
  EXPECT_EQ(file->tensors()[1].num_elements(), 1);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const auto good = sample().bytes().value();
  for (size_t size = 0; size < good.size(); ++size)
    ASSERT_FALSE(SafetensorsFile::parse(std::span(good).first(size), "t").has_value()) << size;
}

TEST(Safetensors, RefusesGapsOverlapsAndWrongSizes) {
  const auto two = [](const char* first, const char* second) {
    return "{" + record("a", "F32", "[1]", first) + "," + record("b", "F32", "[1]", second) + "}";
  };
  expect_refused(two("[0,4]", "[8,12]"), 12, "it should begin at 4");
  expect_refused(two("[0,4]", "[2,6]"), 6, "it should begin at 4");
  expect_refused(two("[0,4]", "[0,4]"), 4, "it should begin at 4");
  expect_refused(two("[4,8]", "[8,12]"), 12, "it should begin at 0");
  expect_refused(two("[0,4]", "[4,8]"), 12, "end at byte 8 of 12");
  expect_refused(two("[0,4]", "[4,8]"), 7, "lies at bytes 4 to 8 of 7");
  expect_refused("{" + record("a", "F32", "[2]", "[0,4]") + "}", 4, "larger than the data");
  expect_refused("{" + record("a", "F32", "[1]", "[0,8]") + "}", 8, "needs 4 bytes but has 8");
  expect_refused("{" + record("a", "F32", "[1]", "[4,0]") + "}", 4, "it should begin at 0");
  expect_refused("{" + record("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", 4, "larger than the data");
  expect_refused("{" + record("a", "F32", "[18446744073709551615,4]", "[0,4]") + "}", 4, "larger than the data");
  expect_refused("{" + record("a", "F4", "[1]", "[0,4]") + "}", 4, "dtype 'F4'");
}

TEST(Safetensors, RefusesHeadersThatTheFormatDoesNotDefine) {
  const std::string good = record("a", "F32", "[1]", "[0,4]");
  expect_refused("", 4, "does not begin with '{'");
  expect_refused(" {" + good + "}", 4, "does not begin with '{'");
  expect_refused("{" + good, 4, "not JSON");
  expect_refused("{" + good + "}x", 4, "not JSON");
  expect_refused("{" + good + "," + good + "}", 4, "'a' occurs twice");
  expect_refused("{" + record("", "F32", "[1]", "[0,4]") + "}", 4, "name is empty");
  expect_refused(R"({"a":[1]})", 4, "has an array where none belongs");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, "lacks dtype, shape or data_offsets");
  expect_refused(R"({"a":{"dtype":"F32","dtype":"F32"}})", 4, "a field twice");
  expect_refused(R"({"a":{"extra":1}})", 4, "unknown field 'extra'");
  expect_refused("{" + record("a", "F32", "[-1]", "[0,4]") + "}", 4, "negative");
  expect_refused("{" + record("a", "F32", "[1.0]", "[0,4]") + "}", 4, "not an integer");
  expect_refused("{" + record("a", "F32", "[[1]]", "[0,4]") + "}", 4, "an array where none belongs");
  expect_refused("{" + record("a", "F32", "[1]", "[0]") + "}", 4, "has 1 data_offsets");
  expect_refused("{" + record("a", "F32", "[1]", "[0,4,4]") + "}", 4, "more than 2 data_offsets");
  expect_refused("{" + record("a", "F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4, "more than 16");
  expect_refused(R"({"__metadata__":{"k":1}})", 0, "a number where none belongs");
  expect_refused(R"({"__metadata__":{"k":"v","k":"v"}})", 0, "'k' occurs twice");
  expect_refused(std::string(R"({"a":)") + std::string(100000, '['), 0, "where none belongs");
}

TEST(Safetensors, SurvivesRandomMutations) {
  const auto good = sample().bytes().value();
  uint32_t state = 99;
  const auto random = [&state] {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  };
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    auto bytes = good;
    for (int i = 0; i < 1 + round % 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto file = SafetensorsFile::parse(bytes, "t");
    if (!file) continue;
    ++accepted;
    size_t total = 0;
    for (const SafetensorsTensor& tensor : file->tensors()) total += tensor.data.size();
    ASSERT_EQ(total, 31u);
  }
  EXPECT_GT(accepted, 100) << "the mutations never get past the parser";
}

}  // namespace
}  // namespace kvant::engine
