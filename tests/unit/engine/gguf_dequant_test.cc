#include "core/float_bits.h"
#include "engine/loader/gguf.h"
#include "engine/loader/gguf_types.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

struct Golden {
  GgufType type = GgufType::kF32;
  std::vector<std::byte> block;
  std::vector<uint32_t> value_bits;
};

std::vector<Golden> read_goldens() {
  std::vector<Golden> goldens;
  std::ifstream in(KVANT_SOURCE_DIR "/tests/golden/gguf_dequant.txt");
  for (std::string type, block, values; in >> type >> block >> values;) {
    Golden golden;
    for (uint32_t id = 0; id < 64; ++id)
      if (const GgufTypeInfo* info = find_gguf_type(id); info != nullptr && info->name == type)
        golden.type = info->type;
    for (size_t i = 0; i < block.size(); i += 2)
      golden.block.push_back(static_cast<std::byte>(std::stoul(block.substr(i, 2), nullptr, 16)));
    for (size_t i = 0; i < values.size(); i += 8)
      golden.value_bits.push_back(static_cast<uint32_t>(std::stoul(values.substr(i, 8), nullptr, 16)));
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

GgufTensor tensor(GgufType type, int64_t columns, int64_t rows, std::span<const std::byte> data) {
  return {.name = "t", .type = type, .shape = {columns, rows}, .data = data};
}

TEST(GgufDequant, MatchesTheReferenceBitForBit) {
  std::map<GgufType, int> seen;
  for (const Golden& golden : read_goldens()) {
    ++seen[golden.type];
    const auto count = static_cast<int64_t>(golden.value_bits.size());
    ASSERT_EQ(gguf_row_bytes(golden.type, count), static_cast<int64_t>(golden.block.size()));
    std::vector<float> values(golden.value_bits.size());
    dequantise_rows(tensor(golden.type, count, 1, golden.block), 0, 1, values.data());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(float_to_bits(values[i]), golden.value_bits[i]) << to_string(golden.type) << " element " << i;
  }
  EXPECT_EQ(seen.size(), 11u) << "every encoding but F32 has a golden";
}

TEST(GgufDequant, ExpandsARangeOfRowsFromAnUnalignedAddress) {
  for (const Golden& golden : read_goldens()) {
    std::vector<std::byte> data(1);
    for (int row = 0; row < 3; ++row) data.insert(data.end(), golden.block.begin(), golden.block.end());
    for (size_t i = 1; i <= golden.block.size(); ++i) data[i] = std::byte{0};
    const auto columns = static_cast<int64_t>(golden.value_bits.size());
    std::vector<float> values(golden.value_bits.size() * 2 + 1, -12345.0f);
    dequantise_rows(tensor(golden.type, columns, 3, std::span(data).subspan(1)), 1, 3, values.data());
    for (size_t i = 0; i < golden.value_bits.size() * 2; ++i)
      ASSERT_EQ(float_to_bits(values[i]), golden.value_bits[i % golden.value_bits.size()]) << to_string(golden.type);
    EXPECT_EQ(values.back(), -12345.0f) << "wrote past the last row";
  }
}

}  // namespace
}  // namespace kvant::engine
