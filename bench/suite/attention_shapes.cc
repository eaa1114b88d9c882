#include "attention_shapes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvant::bench {

using attn::KvFormat;

std::string name_of(const Shape& shape) {
  return fmt::format("{}_{}x{}_q{}_h{}{}{}{}{}", to_string(shape.format), shape.batch, shape.context, shape.q_len,
                     shape.q_heads, shape.mixed ? "_mixed" : "", shape.edges ? "_edges" : "",
                     shape.shared > 0 ? fmt::format("_shared{}", shape.shared) : "", shape.runs ? "_runs" : "");
}

namespace {

/// Prompts, chunks over a prefix, and verify blocks beyond the decode kernel.
std::vector<Shape> prefill_suite() {
  std::vector<Shape> shapes;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    shapes.push_back({.format = format, .batch = 8, .context = 4096, .q_len = 4096});
    if (format == KvFormat::kF16) continue;
    shapes.push_back({.format = format, .batch = 1, .context = 16384, .q_len = 16384});
    shapes.push_back({.format = format, .batch = 32, .context = 1024, .q_len = 1024});
    shapes.push_back({.format = format, .batch = 8, .context = 4096, .q_len = 4096, .head_dim = 64});
    shapes.push_back({.format = format, .batch = 1, .context = 4096, .q_len = 4096});
    shapes.push_back({.format = format, .batch = 1, .context = 32768, .q_len = 512});
    shapes.push_back({.format = format, .batch = 8, .context = 8192, .q_len = 256});
    shapes.push_back({.format = format, .batch = 256, .context = 4096, .q_len = 8});
    shapes.push_back({.format = format, .batch = 16, .context = 4096, .q_len = 16});
    shapes.push_back({.format = format, .batch = 1, .context = 65536, .q_len = 16});
    if (format != KvFormat::kBf16)
      shapes.push_back({.format = format, .batch = 8, .context = 4096, .q_len = 4096, .edges = true});
  }
  return shapes;
}

std::vector<Shape> decode_suite() {
  std::vector<Shape> shapes;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    for (const auto& [batch, context] : std::vector<std::pair<int32_t, int32_t>>{{256, 4096},
                                                                                 {64, 16384},
                                                                                 {16, 32768},
                                                                                 {256, 1024},
                                                                                 {64, 4096},
                                                                                 {16, 4096},
                                                                                 {4, 4096},
                                                                                 {1, 65536},
                                                                                 {1, 4096},
                                                                                 {1, 1024}})
      shapes.push_back({.format = format, .batch = batch, .context = context});
    for (const int32_t batch : {64, 256})
      shapes.push_back({.format = format, .batch = batch, .context = 4096, .q_len = 4});
    shapes.push_back({.format = format, .batch = 256, .context = 4096, .q_len = 8});
    for (const int32_t q_len : {1, 4})
      shapes.push_back({.format = format, .batch = 256, .context = 4096, .q_len = q_len, .q_heads = 64});
    shapes.push_back({.format = format, .batch = 16, .context = 65536, .mixed = true});
    shapes.push_back({.format = format, .batch = 64, .context = 4096, .q_heads = 64});
    shapes.push_back({.format = format, .batch = 64, .context = 4096, .q_heads = 40});
    if (format != KvFormat::kBf16) shapes.push_back({.format = format, .batch = 64, .context = 4096, .edges = true});
  }
  return shapes;
}

/// Batches by contexts, one and four rows a request; what does not fit the arena is left out.
std::vector<Shape> grid_suite() {
  std::vector<Shape> shapes;
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4})
    for (const int32_t q_len : {1, 4})
      for (const int32_t batch : {1, 4, 16, 64, 256})
        for (const int32_t context : {1024, 4096, 16384, 65536})
          shapes.push_back({.format = format, .batch = batch, .context = context, .q_len = q_len});
  return shapes;
}

std::vector<Shape> shared_suite() {
  std::vector<Shape> shapes;
  const auto add = [&](Shape shape, int32_t shared) {
    shapes.push_back(shape);
    shape.shared = shared;
    shapes.push_back(shape);
    shape.runs = true;
    shapes.push_back(shape);
  };
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    add({.format = format, .batch = 64, .context = 9216}, 8192);
    add({.format = format, .batch = 128, .context = 9216}, 8192);
    add({.format = format, .batch = 64, .context = 17408}, 16384);
    add({.format = format, .batch = 16, .context = 3072}, 2048);
    if (format != KvFormat::kBf16) add({.format = format, .batch = 64, .context = 9216, .edges = true}, 8192);
    // Nothing is shared, which the kernel finds out by itself.
    for (const auto& [batch, context] : std::vector<std::pair<int32_t, int32_t>>{
             {256, 4096}, {256, 1024}, {64, 4096}, {64, 1024}, {16, 4096}, {4, 1024}}) {
      shapes.push_back({.format = format, .batch = batch, .context = context});
      shapes.push_back({.format = format, .batch = batch, .context = context, .runs = true});
    }
  }
  return shapes;
}

}  // namespace

std::vector<Shape> shapes_of(std::string_view suite) {
  std::vector<Shape> shapes;
  if (suite == "decode" || suite == "h200") shapes = decode_suite();
  if (suite == "prefill") shapes = prefill_suite();
  if (suite == "shared") shapes = shared_suite();
  if (suite != "grid" && suite != "h200") return shapes;
  for (const Shape& shape : grid_suite()) {
    const auto same = [&](const Shape& other) { return name_of(other) == name_of(shape); };
    if (std::none_of(shapes.begin(), shapes.end(), same)) shapes.push_back(shape);
  }
  return shapes;
}

bool is_wanted(const std::string& name, std::string_view texts) {
  while (!texts.empty()) {
    const size_t end = std::min(texts.find(','), texts.size());
    if (name.find(texts.substr(0, end)) != std::string::npos) return true;
    texts.remove_prefix(std::min(end + 1, texts.size()));
  }
  return false;
}

}  // namespace kvant::bench
