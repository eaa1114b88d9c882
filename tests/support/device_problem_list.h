#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kvant/attn/kernel_table.h"
#include "kvant/attn/validate.h"
#include "support/device_problem.h"
#include "support/problem_list.h"

namespace kvant::attn::test {

inline AttnDesc device_desc(KvFormat k_format, KvFormat v_format, int32_t head_dim) {
  AttnDesc desc = simple_desc(6, 2, head_dim);
  store_for_device(desc, k_format, v_format);
  return desc;
}
inline AttnDesc device_desc(KvFormat format, int32_t head_dim) { return device_desc(format, format, head_dim); }

/// Sizes at which blocks share requests and merge, beside what the CPU's list has.
inline std::vector<NamedSpec> size_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  ProblemSpec many = {.desc = base, .q_lens = {}, .kv_lens = {}, .seed = 300};
  Random random(5);
  for (int i = 0; i < 150; ++i) {
    many.q_lens.push_back(random.below(4));
    many.kv_lens.push_back(many.q_lens.back() + random.below(400));
  }
  problems.push_back({"many_requests", many});
  problems.push_back({"one_long", {.desc = base, .q_lens = {1}, .kv_lens = {9000}, .seed = 301}});
  problems.push_back({"long_and_short", {.desc = base, .q_lens = {4, 1, 2}, .kv_lens = {7000, 3, 40}, .seed = 302}});
  // Enough items that are alike for each warp of an H200 to have its own, whether three or four blocks of one row tile
  // or four half ones of two are resident; some rows are padding. Without padding nothing needs to be searched.
  const auto alike = [&](std::string name, size_t count, int32_t q_len, int32_t length, bool edges,
                         bool padded = true) {
    ProblemSpec spec = {
        .desc = base, .q_lens = {}, .kv_lens = {}, .seed = static_cast<uint32_t>(310 + count + name.size())};
    spec.desc.num_q_heads = 16, spec.desc.layout.num_kv_heads = 8;
    for (size_t i = 0; i < count; ++i) {
      const bool padding = padded && i % 97 == 13;
      spec.q_lens.push_back(padding ? 0 : q_len);
      spec.kv_lens.push_back(padding ? 0 : length - random.below(12));
    }
    if (edges) {
      spec.desc.exact_pages = true;
      spec.desc.conditioning = KeyConditioning::kFull;
    }
    problems.push_back({std::move(name), spec});
  };
  alike("alike", 255, 1, 48, false);
  alike("alike_fewer", 190, 1, 48, false);
  alike("alike_verify", 265, 6, 48, false);
  alike("alike_verify_edges", 130, 6, 112, true);
  alike("alike_edges", 190, 1, 112, true);
  alike("all_alike", 260, 1, 48, false, false);
  alike("all_alike_fewer", 190, 1, 48, false, false);
  alike("all_alike_edges", 190, 1, 112, true, false);
  alike("all_alike_verify", 130, 6, 48, false, false);
  alike("all_alike_of_a_block", 49, 1, 112, false, false);
  alike("all_alike_verify_of_a_block", 60, 6, 112, false, false);
  alike("all_alike_in_parts", 33, 2, 300, false, false);
  // Clusters of two and four, also several for an item, and with parts that nothing is left for.
  alike("few_alike", 16, 6, 300, false, false);
  alike("few_alike_edges", 16, 6, 300, true, false);
  alike("one_of_two_clusters", 1, 1, 1100, false, false);
  alike("one_verify_of_two_clusters", 1, 8, 1100, false, false);
  // The window starts in the second page of a tile: the first is poison.
  AttnDesc windowed = base;
  windowed.layout.page_size = 8;
  windowed.window = 21;
  problems.push_back(
      {"page_8_window", {.desc = windowed, .q_lens = {1, 2, 4, 1}, .kv_lens = {50, 45, 90, 13}, .seed = 304}});
  // Up to 30 rows an item.
  ProblemSpec wide = {.desc = base, .q_lens = {8, 1, 10, 3}, .kv_lens = {700, 33, 1200, 5}, .seed = 305};
  problems.push_back({"wide_verify", wide});
  wide.desc.exact_pages = true;
  wide.desc.conditioning = KeyConditioning::kFull;
  problems.push_back({"wide_verify_edges", wide});
  AttnDesc edges = base;
  edges.exact_pages = true;
  edges.conditioning = KeyConditioning::kFull;
  problems.push_back({"long_edges", {.desc = edges, .q_lens = {1, 4}, .kv_lens = {5000, 900}, .seed = 303}});
  return problems;
}

/// Prompts and chunks over a prefix, beside what the CPU's list has.
inline std::vector<NamedSpec> prompt_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  const auto add = [&](std::string name, auto change, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens) {
    AttnDesc desc = base;
    change(desc);
    const auto seed = static_cast<uint32_t>(320 + problems.size());
    problems.push_back(
        {std::move(name), {.desc = desc, .q_lens = std::move(q_lens), .kv_lens = std::move(kv_lens), .seed = seed}});
  };
  const auto plain = [](AttnDesc&) {};
  add("prompts", plain, {257, 0, 130, 64, 1}, {257, 0, 130, 64, 1});
  add("chunks", plain, {100, 64, 17}, {1100, 70, 900});
  add("chunk_of_long_prefix", plain, {33}, {6000});
  add("chunks_window_whole_items", [](AttnDesc& d) { d.window = 70, d.batch_invariant = true; }, {150, 60}, {700, 61});
  add("chunks_edges",
      [](AttnDesc& d) {
        d.exact_pages = true;
        d.conditioning = KeyConditioning::kFull;
        d.sinks = true;
      },
      {80, 48}, {600, 48});
  add("one_kv_head_of_seven", [](AttnDesc& d) { d.num_q_heads = 7, d.layout.num_kv_heads = 1; }, {61}, {200});
  add("head_of_each", [](AttnDesc& d) { d.num_q_heads = d.layout.num_kv_heads; }, {140, 3}, {140, 90});
  add("chunks_context_parallel", [](AttnDesc& d) { d.context_parallel = {.rank = 1, .size = 2, .interleave = 16}; },
      {90, 20}, {400, 20});
  return problems;
}

inline const KernelRow* find_row(AttnOp op, const AttnDesc& desc) {
  static const DeviceInfo hopper = *describe_compute_capability(90);
  const KernelTable table{.rows = kernel_table().rows, .has_cuda = true};
  const Result<const KernelRow*> row = select_kernel(op, hopper, desc, table);
  return row ? *row : nullptr;
}

/// The problem as it is, and where that takes the prefill kernel for its rows, with fewer of them once more.
inline void add_problem(std::vector<NamedSpec>& problems, std::set<std::string>& names, const std::string& prefix,
                        const NamedSpec& named) {
  const AttnDesc& desc = named.spec.desc;
  if (!validate_attention(desc, AttnLimits{}).ok()) return;
  const KernelRow* decode = find_row(AttnOp::kDecode, desc);
  if (decode == nullptr || find_row(AttnOp::kPrefill, desc) == nullptr) return;
  NamedSpec problem = named;
  problem.name = fmt::format("{}_{}", prefix, named.name);
  if (!names.insert(problem.name).second) return;
  problems.push_back(problem);
  const int32_t group = desc.num_q_heads / desc.layout.num_kv_heads;
  const int32_t most = decode->max_rows / group;
  if (most < 1 || *std::ranges::max_element(problem.spec.q_lens) <= most) return;
  problem.name += "_few_rows";
  for (int32_t& q_len : problem.spec.q_lens) q_len = std::min(q_len, most);
  problems.push_back(problem);
}

/// The problem with `rows` rows an item where a request has the most query tokens, and no more elsewhere.
inline NamedSpec with_rows(NamedSpec named, int32_t rows) {
  ProblemSpec& spec = named.spec;
  const int32_t q_len = rows / (spec.desc.num_q_heads / spec.desc.layout.num_kv_heads);
  const int32_t most = *std::ranges::max_element(spec.q_lens);
  for (size_t i = 0; i < spec.q_lens.size(); ++i)
    spec.q_lens[i] = spec.q_lens[i] == most ? std::min(q_len, spec.kv_lens[i]) : std::min(q_len, spec.q_lens[i]);
  named.name += fmt::format("_{}_rows", rows);
  return named;
}

/// NVFP4 pages of a tile each with rows of a head side by side.
inline AttnDesc tile_pages_desc() {
  AttnDesc desc = device_desc(KvFormat::kNvfp4, 128);
  desc.num_q_heads = 8;
  desc.layout.order = TokenHeadOrder::kHnd;
  return desc;
}

/// The problem lists on every format and head dim of the kernel table, as far as its rows take them.
inline std::vector<NamedSpec> device_problems() {
  std::vector<NamedSpec> problems;
  std::set<std::string> names;
  const auto add_all = [&](const std::string& prefix, const std::vector<NamedSpec>& list) {
    for (const NamedSpec& named : list) add_problem(problems, names, prefix, named);
  };
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3, KvFormat::kNvfp4}) {
    for (const int32_t head_dim : {64, 128}) {
      const AttnDesc base = device_desc(format, head_dim);
      for (const auto& list : {layout_problems(base), shape_problems(base), option_problems(base), size_problems(base),
                               prompt_problems(base)})
        add_all(fmt::format("{}_{}", to_string(format), head_dim), list);
    }
  }
  for (const auto& list : {option_problems(tile_pages_desc()), size_problems(tile_pages_desc())}) {
    for (const NamedSpec& named : list)
      for (const int32_t rows : {16, 32}) add_problem(problems, names, "nvfp4_128_tile_pages", with_rows(named, rows));
  }
  // Formats that differ only in how a tile is expanded.
  AttnDesc linear = device_desc(KvFormat::kNvfp4, 128);
  linear.layout.code_order = CodeOrder::kLinear;
  linear.layout.scale_order = ScaleOrder::kLinear;
  const std::pair<std::string, AttnDesc> others[] = {
      {"f16_128", device_desc(KvFormat::kF16, 128)},
      {"e5m2_64", device_desc(KvFormat::kE5m2, 64)},
      {"k_e4m3_v_nvfp4_128", device_desc(KvFormat::kE4m3, KvFormat::kNvfp4, 128)},
      {"nvfp4_linear_128", linear},
  };
  for (const auto& [prefix, base] : others) {
    add_all(prefix, layout_problems(base));
    add_all(prefix, prompt_problems(base));
  }
  for (const int32_t head_dim : {80, 96, 192, 256, 512}) {
    for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF16, KvFormat::kE4m3, KvFormat::kNvfp4})
      add_all(fmt::format("{}_{}", to_string(format), head_dim), prompt_problems(device_desc(format, head_dim)));
  }
  return problems;
}

}  // namespace kvant::attn::test
