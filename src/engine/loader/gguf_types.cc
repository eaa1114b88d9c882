#include "engine/loader/gguf_types.h"

#include <fmt/format.h>

#include <iterator>

namespace kvant::engine {
namespace {

constexpr GgufTypeInfo kTypes[] = {
    {GgufType::kF32, "F32", 1, 4},       {GgufType::kF16, "F16", 1, 2},       {GgufType::kBf16, "BF16", 1, 2},
    {GgufType::kQ8_0, "Q8_0", 32, 34},   {GgufType::kQ4_0, "Q4_0", 32, 18},   {GgufType::kQ4_1, "Q4_1", 32, 20},
    {GgufType::kQ5_0, "Q5_0", 32, 22},   {GgufType::kQ5_1, "Q5_1", 32, 24},   {GgufType::kQ4_K, "Q4_K", 256, 144},
    {GgufType::kQ5_K, "Q5_K", 256, 176}, {GgufType::kQ6_K, "Q6_K", 256, 210}, {GgufType::kMxfp4, "MXFP4", 32, 17},
};

struct UnreadType {
  uint32_t id;
  std::string_view name;
};

constexpr UnreadType kUnreadTypes[] = {
    {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},
    {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},
};

}  // namespace

const GgufTypeInfo* find_gguf_type(uint32_t id) {
  for (const GgufTypeInfo& row : kTypes)
    if (static_cast<uint32_t>(row.type) == id) return &row;
  return nullptr;
}

std::string describe_gguf_type(uint32_t id) {
  if (const GgufTypeInfo* row = find_gguf_type(id)) return std::string(row->name);
  for (const UnreadType& row : kUnreadTypes)
    if (row.id == id) return std::string(row.name);
  return fmt::format("type {}", id);
}

std::string supported_gguf_types() {
  std::string text;
  for (const GgufTypeInfo& row : kTypes)
    fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : ", ", row.name);
  return text;
}

std::string_view to_string(GgufType type) { return find_gguf_type(static_cast<uint32_t>(type))->name; }

int64_t gguf_row_bytes(GgufType type, int64_t num_elements) {
  const GgufTypeInfo& row = *find_gguf_type(static_cast<uint32_t>(type));
  return num_elements / row.block_elements * row.block_bytes;
}

}  // namespace kvant::engine
