#include "engine/loader/gguf.h"

#include "support/gguf_writer.h"
#include "support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using testing::ByteSink;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;

constexpr uint32_t kMagic = 0x46554747;

GgufWriter sample() {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_u32("llama.block_count", 30);
  writer.add_i32("signed", -7);
  writer.add_f32("llama.rope.freq_base", 10000.0f);
  writer.add_bool("flag", true);
  writer.add_u64("large", std::numeric_limits<uint64_t>::max());
  writer.add_strings("tokens", {"a", "", "longer than the small-string buffer of std::string"});
  writer.add_i32s("types", {1, -2, 3});
  writer.add_f32s("scores", {0.5f, -1.0f});
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 20.0f;
  writer.add_tensor("norm", {5}, GgufType::kF32, std::span<const float>(values.data(), 5));
  writer.add_tensor("weight", {32, 2}, GgufType::kQ8_0, std::span<const float>(values));
  return writer;
}

Result<GgufFile> parse(const std::vector<std::byte>& bytes) { return GgufFile::parse(bytes, "test.gguf"); }

/// Parses and expects a refusal in one line that has `text`.
void expect_refused(const std::vector<std::byte>& bytes, const char* text) {
  const auto file = parse(bytes);
  ASSERT_FALSE(file.has_value()) << "accepted, expected: " << text;
  EXPECT_THAT(file.error().message(), HasSubstr(text));
  EXPECT_THAT(file.error().message(), HasSubstr("test.gguf"));
  EXPECT_THAT(file.error().message(), Not(HasSubstr("\n")));
}

ByteSink header(uint64_t num_tensors, uint64_t num_entries, uint32_t version = 3) {
  ByteSink sink;
  sink.put(kMagic).put(version).put(num_tensors).put(num_entries);
  return sink;
}

ByteSink one_tensor(const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
  ByteSink sink = header(1, 0);
  sink.put_text("t").put(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) sink.put(dim);
  sink.put(type).put(offset);
  return sink;
}

TEST(Gguf, ReadsMetadataOfEveryKind) {
  for (const uint32_t version : {2u, 3u}) {
    const auto bytes = sample().bytes(version);
    const auto file = parse(bytes);
    ASSERT_TRUE(file.has_value()) << file.error().to_string();
    EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
    EXPECT_EQ(file->get_int("llama.block_count").value(), 30);
    EXPECT_EQ(file->get_int("signed").value(), -7);
    EXPECT_EQ(file->get_float("llama.rope.freq_base").value(), 10000.0);
    EXPECT_TRUE(file->get_bool("flag").value());
    ASSERT_NE(file->find_strings("tokens"), nullptr);
    EXPECT_THAT(*file->find_strings("tokens"),
                ElementsAre("a", "", "longer than the small-string buffer of std::string"));
    EXPECT_THAT(file->get_ints("types").value(), ElementsAre(1, -2, 3));
    EXPECT_THAT(file->get_floats("scores").value(), ElementsAre(0.5, -1.0));
    EXPECT_TRUE(file->contains("flag"));
    EXPECT_FALSE(file->contains("fla"));
  }
}

TEST(Gguf, LookupErrorsNameKeyFoundAndNeeded) {
  const auto bytes = sample().bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->get_int("absent").error().code(), StatusCode::kNotFound);
  EXPECT_THAT(file->get_int("absent").error().message(), HasSubstr("absent"));
  EXPECT_THAT(file->get_int("flag").error().message(), HasSubstr("'flag' is a bool; an integer is needed"));
  EXPECT_THAT(file->get_int("large").error().message(), HasSubstr("18446744073709551615"));
  EXPECT_THAT(file->get_float("signed").error().message(), HasSubstr("a float is needed"));
  EXPECT_THAT(file->get_bool("signed").error().message(), HasSubstr("a bool is needed"));
  EXPECT_THAT(file->get_string("tokens").error().message(), HasSubstr("an array of strings; a string is needed"));
  EXPECT_THAT(file->get_ints("scores").error().message(), HasSubstr("an array of floats"));
  EXPECT_THAT(file->get_floats("types").error().message(), HasSubstr("an array of integers"));
  EXPECT_EQ(file->find_strings("types"), nullptr);
  EXPECT_EQ(file->find_strings("absent"), nullptr);
}

TEST(Gguf, FindsTensorsAndExpandsThem) {
  const auto bytes = sample().bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value());
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->find_tensor("nor"), nullptr);
  const GgufTensor* norm = file->find_tensor("norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_THAT(norm->shape, ElementsAre(5));
  std::vector<float> values(5);
  dequantise_rows(*norm, 0, 1, values.data());
  EXPECT_THAT(values, ElementsAre(-20.0f, -19.0f, -18.0f, -17.0f, -16.0f));
  const GgufTensor* weight = file->find_tensor("weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->num_elements(), 64);
  values.resize(32);
  dequantise_rows(*weight, 1, 2, values.data());
  EXPECT_NEAR(values[31], 43.0f, 43.0f / 2048.0f);
}

TEST(Gguf, MapsAFileAndSurvivesAMove) {
  const TempDir dir;
  auto opened = GgufFile::open(dir.write("good.gguf", sample().bytes()));
  ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
  const GgufFile file = std::move(*opened);
  float first = 0.0f;
  std::memcpy(&first, file.find_tensor("norm")->data.data(), sizeof(first));
  EXPECT_EQ(first, -20.0f);
  EXPECT_EQ(GgufFile::open(dir.path() / "absent.gguf").error().code(), StatusCode::kNotFound);
  EXPECT_FALSE(GgufFile::open(dir.path()).has_value());
  EXPECT_FALSE(GgufFile::open(dir.write("empty.gguf", {})).has_value());
}

TEST(Gguf, RefusesEveryTruncation) {
  const auto good = sample().bytes();
  for (size_t size = 0; size < good.size() - 32; size += 7) {
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
    const auto file = parse(cut);
    ASSERT_FALSE(file.has_value()) << size << " of " << good.size() << " bytes accepted";
    EXPECT_EQ(file.error().code(), StatusCode::kDataLoss) << size;
  }
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  expect_refused(ByteSink().put<uint32_t>(0x04034b50).put<uint64_t>(0).bytes(), "does not start with 'GGUF'");
  expect_refused(header(0, 0, 1).bytes(), "GGUF version 1");
  expect_refused(header(0, 0, 4).bytes(), "GGUF version 4");
  expect_refused(header(0, 0, 0x03000000).bytes(), "big-endian");
}

TEST(Gguf, RefusesCountsThatCannotFit) {
  expect_refused(header(uint64_t{1} << 40, 0).bytes(), "tensors cannot fit");
  expect_refused(header(0, std::numeric_limits<uint64_t>::max()).bytes(), "metadata entries cannot fit");
}

TEST(Gguf, RefusesCraftedDimensions) {
  expect_refused(one_tensor({0, 4}, 0, 0).bytes(), "dimension 0 of tensor 't' is 0");
  expect_refused(one_tensor({uint64_t{1} << 33, uint64_t{1} << 33}, 0, 0).bytes(), "more than the file can hold");
  expect_refused(one_tensor({4, std::numeric_limits<uint64_t>::max()}, 0, 0).bytes(), "more than the file can hold");
  expect_refused(one_tensor({1, 1, 1, 1, 1}, 0, 0).bytes(), "5 dimensions");
  expect_refused(one_tensor({}, 0, 0).put<uint64_t>(0).bytes(), "0 dimensions");
}

TEST(Gguf, RefusesAStringLargerThanTheFile) {
  ByteSink sink = header(0, 1);
  sink.put_text("key").put<uint32_t>(8).put<uint64_t>(uint64_t{1} << 30).put<uint64_t>(0);
  expect_refused(sink.bytes(), "1073741824 bytes does not fit");
}

TEST(Gguf, RefusesArraysLargerThanTheFileOrNested) {
  for (const uint32_t type : {0u, 5u, 6u, 8u, 12u}) {
    ByteSink sink = header(0, 1);
    sink.put_text("key").put<uint32_t>(9).put(type).put<uint64_t>(uint64_t{1} << 61).put<uint64_t>(0);
    expect_refused(sink.bytes(), "does not fit");
  }
  ByteSink nested = header(0, 1);
  nested.put_text("key").put<uint32_t>(9).put<uint32_t>(9).put<uint64_t>(1).put<uint64_t>(0).put<uint64_t>(0);
  expect_refused(nested.bytes(), "'key' is an array of arrays");
}

TEST(Gguf, RefusesCraftedAlignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 12u, 33u, 1u << 30}) {
    GgufWriter writer;
    writer.add_u32("general.alignment", alignment);
    expect_refused(writer.bytes(), "general.alignment");
  }
  GgufWriter text;
  text.add_string("general.alignment", "32");
  expect_refused(text.bytes(), "an integer is needed");
}

TEST(Gguf, RefusesEmptyAndDoubleKeys) {
  GgufWriter empty;
  empty.add_u32("", 1);
  expect_refused(empty.bytes(), "key is empty");
  GgufWriter twice;
  twice.add_bool("key", true);
  twice.add_u32("key", 1);
  expect_refused(twice.bytes(), "'key' occurs twice");
}

TEST(Gguf, RefusesEmptyAndDoubleTensorNames) {
  const std::vector<float> values(8);
  GgufWriter empty;
  empty.add_tensor("", {8}, GgufType::kF32, std::span<const float>(values));
  expect_refused(empty.bytes(), "tensor name is empty");
  GgufWriter twice;
  for (int i = 0; i < 2; ++i) twice.add_tensor("t", {8}, GgufType::kF32, std::span<const float>(values));
  expect_refused(twice.bytes(), "'t' occurs twice");
}

TEST(Gguf, RefusesUnknownValueTypesAndBools) {
  ByteSink type = header(0, 1);
  type.put_text("key").put<uint32_t>(13).put<uint64_t>(0);
  expect_refused(type.bytes(), "'key' has the unknown value type 13");
  ByteSink boolean = header(0, 1);
  boolean.put_text("key").put<uint32_t>(7).put<uint8_t>(2);
  expect_refused(boolean.bytes(), "bool of value 2");
}

TEST(Gguf, RefusesTensorsItCannotRead) {
  ByteSink q2_k = one_tensor({256}, 10, 0);
  expect_refused(q2_k.pad_to(32).put<uint64_t>(0).bytes(), "tensor 't' is Q2_K; kvant reads F32, F16, BF16, Q8_0");
  expect_refused(one_tensor({8}, 77, 0).put<uint64_t>(0).bytes(), "tensor 't' is type 77");
  expect_refused(one_tensor({33}, 8, 0).put<uint64_t>(0).bytes(), "Q8_0 needs a multiple of 32");
}

TEST(Gguf, RefusesTensorsOutsideTheFile) {
  ByteSink past = one_tensor({4}, 0, 32);
  expect_refused(past.pad_to(32).put<uint64_t>(0).put<uint64_t>(0).bytes(), "needs 16 bytes at offset 32");
  ByteSink wrap = one_tensor({4}, 0, std::numeric_limits<uint64_t>::max() - 31);
  expect_refused(wrap.pad_to(32).put<uint64_t>(0).put<uint64_t>(0).bytes(), "needs 16 bytes");
  ByteSink askew = one_tensor({4}, 0, 4);
  expect_refused(askew.pad_to(32).put<uint64_t>(0).put<uint64_t>(0).put<uint64_t>(0).bytes(), "the alignment 32");
}

TEST(Gguf, KeepsControlCharactersOutOfMessages) {
  GgufWriter twice;
  for (int i = 0; i < 2; ++i) twice.add_bool("a\nb\x1b[31m", true);
  expect_refused(twice.bytes(), "'a?b?[31m' occurs twice");
}

int64_t resident_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:") {
      int64_t value = 0;
      status >> value;
      return value;
    }
  return 0;
}

TEST(Gguf, SmallFilesNeverCostMuchMemory) {
  const int64_t before = resident_kilobytes();
  ByteSink sink = header(0, 1);
  sink.put_text("key").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(1000);
  for (int i = 0; i < 1000; ++i) sink.put<uint64_t>(uint64_t{1} << 40);
  EXPECT_FALSE(parse(sink.bytes()).has_value());
  EXPECT_FALSE(parse(one_tensor({uint64_t{1} << 62}, 0, 0).bytes()).has_value());
  EXPECT_LT(resident_kilobytes() - before, 20 * 1024);
}

TEST(Gguf, RefusesMetadataThatGrowsBeyondTheFile) {
  // 80 MB of empty strings would decode to four times as much.
  const uint64_t count = 10'000'000;
  ByteSink sink = header(0, 1);
  sink.put_text("key").put<uint32_t>(9).put<uint32_t>(8).put(count);
  std::vector<std::byte> bytes = sink.bytes();
  bytes.resize(bytes.size() + count * 8);
  expect_refused(bytes, "more memory than the file's");
}

TEST(Gguf, SurvivesRandomMutations) {
  const auto good = sample().bytes();
  uint32_t state = 12345;
  const auto random = [&state] {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  };
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = good;
    const uint32_t changes = 1 + random() % 4;
    for (uint32_t i = 0; i < changes; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<std::byte>(random()); break;
        case 1: bytes[at] = std::byte{0xff}; break;
        default: bytes.resize(std::max<size_t>(at, 1)); break;
      }
    }
    const auto file = parse(bytes);
    if (!file) continue;
    ++accepted;
    for (const GgufTensor& tensor : file->tensors()) {
      std::vector<float> row(static_cast<size_t>(tensor.shape[0]));
      const int64_t rows = tensor.num_elements() / tensor.shape[0];
      dequantise_rows(tensor, 0, 1, row.data());
      dequantise_rows(tensor, rows - 1, rows, row.data());
    }
  }
  EXPECT_GT(accepted, 100) << "the mutations never get past the parser";
}

}  // namespace
}  // namespace kvant::engine
