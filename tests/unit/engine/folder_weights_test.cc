#include "engine/models/folder_weights.h"

#include "core/float_bits.h"
#include "engine/models/weight_views.h"
#include "support/checkpoint_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

namespace kvant::engine {
namespace {

using ::testing::AllOf;
using testing::CheckpointDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
void add(SafetensorsWriter& writer, const std::string& name, SafetensorsType type, std::vector<int64_t> shape,
         const std::vector<T>& values) {
  writer.add(name, type, std::move(shape), std::as_bytes(std::span(values)));
}

std::vector<float> rows_of(const WeightView& view, int64_t begin, int64_t end) {
  std::vector<float> out(static_cast<size_t>((end - begin) * view.columns));
  view.read(begin, end, out.data());
  return out;
}

/// A folder with one file, and weights over it.
struct Fixture {
  explicit Fixture(const SafetensorsWriter& writer) {
    dir.write("model.safetensors", writer);
    folder.emplace(SafetensorsFolder::open(dir.path()).value());
    weights.emplace(*folder);
  }
  CheckpointDir dir;
  std::optional<SafetensorsFolder> folder;
  std::optional<FolderWeights> weights;
};

TEST(FolderWeights, ReadsRowsOfEveryFloatType) {
  SafetensorsWriter writer;
  add<float>(writer, "f32.weight", SafetensorsType::kF32, {2, 2}, {1.0f, 2.0f, 3.0f, -4.5f});
  add<uint16_t>(writer, "f16.weight", SafetensorsType::kF16, {2, 2}, {0x3c00, 0x4000, 0x4200, 0xc480});
  add<uint16_t>(writer, "bf16.weight", SafetensorsType::kBf16, {2, 2}, {0x3f80, 0x4000, 0x4040, 0xc090});
  add<uint16_t>(writer, "bias", SafetensorsType::kBf16, {3}, {0x3f80, 0x4000, 0x4040});
  add<float>(writer, "stack", SafetensorsType::kF32, {2, 1, 2}, {1.0f, 2.0f, 3.0f, 4.0f});
  const Fixture at(writer);
  for (const char* name : {"f32.weight", "f16.weight", "bf16.weight"}) {
    const WeightView view = at.weights->matrix(name, 2, 2).value();
    EXPECT_THAT(rows_of(view, 0, 2), ElementsAre(1.0f, 2.0f, 3.0f, -4.5f)) << name;
    EXPECT_THAT(rows_of(view, 1, 2), ElementsAre(3.0f, -4.5f)) << name;
  }
  EXPECT_THAT(rows_of(at.weights->vector("bias", 3).value(), 0, 1), ElementsAre(1.0f, 2.0f, 3.0f));
  EXPECT_THAT(rows_of(at.weights->matrix_of("stack", 1, 2, 1, 2).value(), 0, 1), ElementsAre(3.0f, 4.0f));
  EXPECT_TRUE(at.weights->check_all_used().ok());
}

TEST(FolderWeights, ReadsFp8WithScalesOfEachForm) {
  const std::vector<uint8_t> codes = {0x38, 0x40, 0xb8, 0x30};  // 1, 2, -1, 0.5
  SafetensorsWriter writer;
  add(writer, "tensor.weight", SafetensorsType::kF8E4m3, {2, 2}, codes);
  add<float>(writer, "tensor.weight_scale", SafetensorsType::kF32, {}, {0.5f});
  add<float>(writer, "tensor.input_scale", SafetensorsType::kF32, {}, {3.0f});
  add(writer, "row.weight", SafetensorsType::kF8E4m3, {2, 2}, codes);
  add<uint16_t>(writer, "row.weight_scale", SafetensorsType::kBf16, {2, 1}, {0x3f80, 0x4000});
  std::vector<uint8_t> ones(2 * 130, 0x38);
  add(writer, "block.weight", SafetensorsType::kF8E4m3, {2, 130}, ones);
  add<float>(writer, "block.weight_scale_inv", SafetensorsType::kF32, {1, 2}, {2.0f, 3.0f});
  const Fixture at(writer);
  EXPECT_THAT(rows_of(at.weights->matrix("tensor.weight", 2, 2).value(), 0, 2), ElementsAre(0.5f, 1.0f, -0.5f, 0.25f));
  EXPECT_THAT(rows_of(at.weights->matrix("row.weight", 2, 2).value(), 0, 2), ElementsAre(1.0f, 2.0f, -2.0f, 1.0f));
  const auto blocks = rows_of(at.weights->matrix("block.weight", 2, 130).value(), 1, 2);
  EXPECT_EQ(blocks[127], 2.0f);
  EXPECT_EQ(blocks[128], 3.0f);
  EXPECT_TRUE(at.weights->check_all_used().ok()) << at.weights->check_all_used().message();
}

TEST(FolderWeights, ReadsFp8AsItIsStored) {
  constexpr int64_t kRows = 130, kColumns = 256;
  std::vector<uint8_t> codes(kRows * kColumns);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 % 127);
  std::vector<float> of_rows(kRows);
  for (size_t i = 0; i < of_rows.size(); ++i) of_rows[i] = 0.5f + static_cast<float>(i);
  SafetensorsWriter writer;
  for (const char* name : {"tensor.weight", "row.weight", "block.weight"})
    add(writer, name, SafetensorsType::kF8E4m3, {kRows, kColumns}, codes);
  add<float>(writer, "tensor.weight_scale", SafetensorsType::kF32, {}, {0.5f});
  add<float>(writer, "row.weight_scale", SafetensorsType::kF32, {kRows, 1}, of_rows);
  add<float>(writer, "block.weight_scale", SafetensorsType::kF32, {2, 2}, {1.0f, 2.0f, 3.0f, 4.0f});
  add(writer, "narrow.weight", SafetensorsType::kF8E4m3, {2, 130}, std::vector<uint8_t>(260, 0x38));
  add<float>(writer, "narrow.weight_scale", SafetensorsType::kF32, {}, {0.5f});
  const Fixture at(writer);
  std::vector<WeightView> views;
  for (const char* name : {"tensor.weight", "row.weight", "block.weight"})
    views.push_back(at.weights->matrix(name, kRows, kColumns).value());
  views.push_back(stacked("all", views));
  for (const WeightView& view : views) {
    ASSERT_TRUE(view.read_fp8) << view.name;
    const int64_t begin = view.rows / 3, end = view.rows;  // Across parts of the stack.
    const auto count = static_cast<size_t>((end - begin) * kColumns);
    std::vector<uint8_t> stored(count);
    std::vector<float> scales(count / ops::kFp8Group);
    view.read_fp8(begin, end, stored.data(), scales.data());
    const std::vector<float> values = rows_of(view, begin, end);
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(e4m3_to_float(stored[i]) * scales[i / ops::kFp8Group], values[i]) << view.name << " " << i;
  }
  EXPECT_FALSE(at.weights->matrix("narrow.weight", 2, 130)->read_fp8);
  EXPECT_FALSE(every_row(views[0], 0, 2).read_fp8);
}

TEST(FolderWeights, ReadsNvfp4OfBothMakers) {
  std::vector<uint8_t> codes(2 * 8, 0x21);  // Even columns 0.5, odd ones 1.
  codes[8] = 0xf7;                          // 6 and -6
  const std::vector<uint8_t> scales = {0x38, 0x40};
  SafetensorsWriter writer;
  add(writer, "m.weight", SafetensorsType::kU8, {2, 8}, codes);
  add(writer, "m.weight_scale", SafetensorsType::kF8E4m3, {2, 1}, scales);
  add<float>(writer, "m.weight_scale_2", SafetensorsType::kF32, {}, {0.5f});
  add(writer, "c.weight_packed", SafetensorsType::kU8, {2, 8}, codes);
  add(writer, "c.weight_scale", SafetensorsType::kF8E4m3, {2, 1}, scales);
  add<float>(writer, "c.weight_global_scale", SafetensorsType::kF32, {1}, {2.0f});
  const Fixture at(writer);
  for (const char* name : {"m.weight", "c.weight"}) {
    EXPECT_TRUE(at.weights->contains(name));
    const auto rows = rows_of(at.weights->matrix(name, 2, 16).value(), 0, 2);
    EXPECT_EQ(rows[0], 0.25f) << name;
    EXPECT_EQ(rows[1], 0.5f) << name;
    EXPECT_EQ(rows[16], 6.0f) << name;
    EXPECT_EQ(rows[17], -6.0f) << name;
    EXPECT_EQ(rows[18], 0.5f) << name;
  }
  EXPECT_TRUE(at.weights->check_all_used().ok()) << at.weights->check_all_used().message();
}

TEST(FolderWeights, ReadsOneMatrixOfStackedMxfp4) {
  std::vector<uint8_t> codes(2 * 2 * 16, 0x22);
  codes[32] = 0x64;  // Matrix 1, row 0: 2, 4.
  const std::vector<uint8_t> scales = {127, 128, 126, 127};
  SafetensorsWriter writer;
  add(writer, "experts.up_blocks", SafetensorsType::kU8, {2, 2, 1, 16}, codes);
  add(writer, "experts.up_scales", SafetensorsType::kU8, {2, 2, 1}, scales);
  const Fixture at(writer);
  const WeightView first = at.weights->mxfp4_matrix_of("experts.up", 0, 2, 2, 32).value();
  EXPECT_EQ(rows_of(first, 1, 2)[0], 2.0f);
  const WeightView second = at.weights->mxfp4_matrix_of("experts.up", 1, 2, 2, 32).value();
  EXPECT_EQ(rows_of(second, 0, 1)[0], 1.0f);
  EXPECT_EQ(rows_of(second, 0, 1)[1], 2.0f);
  EXPECT_TRUE(at.weights->check_all_used().ok());
}

TEST(FolderWeights, NamesWhatIsWrong) {
  SafetensorsWriter writer;
  add<float>(writer, "a.weight", SafetensorsType::kF32, {2, 2}, {1, 2, 3, 4});
  add<int32_t>(writer, "int.weight", SafetensorsType::kI32, {1, 1}, {1});
  add<uint8_t>(writer, "lone.weight", SafetensorsType::kF8E4m3, {1, 1}, {0x38});
  for (const auto& [name, scale] : {std::pair("zero", 0.0f), std::pair("nan", std::numeric_limits<float>::quiet_NaN()),
                                    std::pair("inf", std::numeric_limits<float>::infinity())}) {
    add<uint8_t>(writer, std::string(name) + ".weight", SafetensorsType::kF8E4m3, {1, 1}, {0x38});
    add<float>(writer, std::string(name) + ".weight_scale", SafetensorsType::kF32, {}, {scale});
  }
  add<uint8_t>(writer, "odd.weight", SafetensorsType::kF8E4m3, {2, 2}, {1, 2, 3, 4});
  add<float>(writer, "odd.weight_scale", SafetensorsType::kF32, {3}, {1, 2, 3});
  const Fixture at(writer);
  const auto error_of = [&](const char* name, int64_t rows, int64_t columns) {
    const auto view = at.weights->matrix(name, rows, columns);
    return view ? std::string("accepted") : view.error().message();
  };
  EXPECT_THAT(error_of("b.weight", 2, 2), HasSubstr("tensor 'b.weight' is missing"));
  EXPECT_THAT(error_of("a.weight", 2, 3), HasSubstr("has shape [2, 2]; the model's configuration needs [2, 3]"));
  EXPECT_THAT(error_of("int.weight", 1, 1), HasSubstr("'int.weight' is I32; F32, F16 or BF16 is needed"));
  EXPECT_THAT(error_of("lone.weight", 1, 1), HasSubstr("needs 'lone.weight_scale', which is missing"));
  EXPECT_THAT(error_of("zero.weight", 1, 1), HasSubstr("'zero.weight_scale' holds 0"));
  EXPECT_THAT(error_of("nan.weight", 1, 1), HasSubstr("'nan.weight_scale' holds nan"));
  EXPECT_THAT(error_of("inf.weight", 1, 1), HasSubstr("'inf.weight_scale' holds inf"));
  EXPECT_THAT(error_of("odd.weight", 2, 2), HasSubstr("'odd.weight_scale' has shape [3]"));
}

TEST(FolderWeights, NamesTensorsThatNobodyAskedFor) {
  SafetensorsWriter writer;
  add<float>(writer, "a.weight", SafetensorsType::kF32, {1, 1}, {1});
  add<float>(writer, "a.bias", SafetensorsType::kF32, {1}, {1});
  add<float>(writer, "extra.scale", SafetensorsType::kF32, {}, {1});
  const Fixture at(writer);
  ASSERT_TRUE(at.weights->matrix("a.weight", 1, 1).has_value());
  EXPECT_THAT(at.weights->check_all_used().message(),
              AllOf(HasSubstr("2 of 3 tensors"), HasSubstr("'a.bias'"), HasSubstr("'extra.scale'")));
  at.weights->use("a.bias");
  at.weights->use("extra.scale");
  EXPECT_TRUE(at.weights->check_all_used().ok());
}

}  // namespace
}  // namespace kvant::engine
