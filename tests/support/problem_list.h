#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "support/random_problem.h"

namespace kvant::attn::test {

struct NamedSpec {
  std::string name;
  ProblemSpec spec;

  friend void PrintTo(const NamedSpec& spec, std::ostream* out) { *out << spec.name << " seed " << spec.spec.seed; }
};

/// Decode, verify, extend and prefill rows, empty ones included, around page and split edges.
inline ProblemSpec mixed_batch(AttnDesc desc) {
  ProblemSpec spec{.desc = std::move(desc), .q_lens = {}, .kv_lens = {}};
  const int32_t page = spec.desc.layout.page_size;
  spec.q_lens = {1, 0, 1, 1, 4, 0, 3, 1, 40};
  spec.kv_lens = {1, 9, std::max(1, page - 1), page, page + 4, 0, 300, 257, 290};
  return spec;
}

/// Pages and orders, on a base of formats and head dims.
inline std::vector<NamedSpec> layout_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  const auto add = [&](std::string name, auto change) {
    AttnDesc desc = base;
    change(desc);
    ProblemSpec spec = mixed_batch(desc);
    spec.seed = static_cast<uint32_t>(50 + problems.size());
    problems.push_back({std::move(name), spec});
  };
  for (const int32_t page : {1, 2, 8, 64, 256})
    add(fmt::format("page_{}", page), [&](AttnDesc& d) { d.layout.page_size = page; });
  add("hnd", [](AttnDesc& d) { d.layout.order = TokenHeadOrder::kHnd; });
  add("packed_codes", [](AttnDesc& d) { d.layout.code_order = CodeOrder::kPacked; });
  add("swizzled_scales", [](AttnDesc& d) { d.layout.scale_order = ScaleOrder::kSm10xV; });
  add("swizzled_packed_hnd", [](AttnDesc& d) {
    d.layout.scale_order = ScaleOrder::kSm10xV;
    d.layout.code_order = CodeOrder::kPacked;
    d.layout.order = TokenHeadOrder::kHnd;
  });
  add("lane_scales", [](AttnDesc& d) { d.layout.scale_order = ScaleOrder::kLanes; });
  add("lane_scales_packed_hnd_128", [](AttnDesc& d) {
    d.layout.scale_order = ScaleOrder::kLanes;
    d.layout.code_order = CodeOrder::kPacked;
    d.layout.order = TokenHeadOrder::kHnd;
    d.layout.head_dim_k = d.layout.head_dim_v = 128;
    d.layout.page_size = 64;
  });
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kE4m3}) {
    add(fmt::format("interleaved_{}", to_string(format)), [&](AttnDesc& d) {
      d.layout.k_format = d.layout.v_format = format;
      d.layout.plane_order = PlaneOrder::kInterleaved;
    });
  }
  return problems;
}

/// Head dims, head counts and lengths.
inline std::vector<NamedSpec> shape_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  uint32_t seed = 100;
  const auto add = [&](std::string name, AttnDesc desc, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens) {
    desc.layout.k_format = base.layout.k_format;
    desc.layout.v_format = base.layout.v_format;
    desc.layout.code_order = base.layout.code_order;
    desc.layout.scale_order = base.layout.scale_order;
    desc.q_dtype = base.q_dtype;
    desc.out_dtype = base.out_dtype;
    problems.push_back({std::move(name), {.desc = desc, .q_lens = q_lens, .kv_lens = kv_lens, .seed = seed++}});
  };
  for (const int32_t dim : {16, 48, 80, 96, 128, 192, 256, 512})
    add(fmt::format("dim_{}", dim), simple_desc(3, 1, dim), {1, 5, 17}, {70, 33, 90});
  AttnDesc uneven = simple_desc(6, 2, 192);
  uneven.layout.head_dim_v = 128;
  add("dim_192_128", uneven, {1, 4, 40}, {70, 33, 90});
  std::swap(uneven.layout.head_dim_k, uneven.layout.head_dim_v);
  add("dim_128_192", uneven, {1, 4, 40}, {70, 33, 90});
  for (const auto& [q_heads, kv_heads] : std::vector<std::pair<int32_t, int32_t>>{
           {14, 2}, {24, 4}, {40, 8}, {64, 4}, {28, 4}, {71, 1}, {9, 3}, {128, 1}, {5, 5}, {7, 7}})
    add(fmt::format("heads_{}_{}", q_heads, kv_heads), simple_desc(q_heads, kv_heads, base.layout.head_dim_k), {1, 4},
        {70, 280});
  AttnDesc mla_like = simple_desc(6, 2, 192);
  mla_like.layout.head_dim_v = 128;
  mla_like.layout.page_size = 64;
  mla_like.sinks = true;
  mla_like.window = 128;
  add("dim_192_128_sinks_window", mla_like, {1, 4}, {300, 129});
  add("many_rows", simple_desc(3, 1, 64), {130}, {300});
  add("long_context", simple_desc(9, 3, 64), {1, 2}, {1500, 777});
  return problems;
}

/// Every option of a layer, alone and together.
inline std::vector<NamedSpec> option_problems(const AttnDesc& base) {
  std::vector<NamedSpec> problems;
  const auto add = [&](std::string name, auto change) {
    ProblemSpec spec = mixed_batch(base);
    spec.seed = static_cast<uint32_t>(200 + problems.size());
    change(spec);
    problems.push_back({std::move(name), spec});
  };
  for (const int32_t window : {1, 7, 64, 100})
    add(fmt::format("window_{}", window), [&](ProblemSpec& s) { s.desc.window = window; });
  add("sinks", [](ProblemSpec& s) { s.desc.sinks = true; });
  for (const float cap : {0.5f, 50.0f}) add(fmt::format("cap_{}", cap), [&](ProblemSpec& s) { s.desc.soft_cap = cap; });
  add("window_sinks_cap", [](ProblemSpec& s) {
    s.desc.window = 33;
    s.desc.sinks = true;
    s.desc.soft_cap = 5.0f;
  });
  add("full_mask", [](ProblemSpec& s) { s.desc.draft_mask = DraftMask::kFull; });
  add("tree_mask", [](ProblemSpec& s) { s.desc.draft_mask = DraftMask::kPacked; });
  add("tree_mask_long", [](ProblemSpec& s) {
    s.desc.draft_mask = DraftMask::kPacked;
    s.q_lens = {70, 33, 5};
    s.kv_lens = {70, 300, 261};
  });
  add("tree_mask_window", [](ProblemSpec& s) {
    s.desc.draft_mask = DraftMask::kPacked;
    s.desc.window = 20;
    s.tree_positions = true;
  });
  add("scales", [](ProblemSpec& s) {
    s.k_scale = 0.02f;
    s.v_scale = 0.5f;
    s.scale_per_head = true;
  });
  add("mean", [](ProblemSpec& s) { s.desc.conditioning = KeyConditioning::kMean; });
  add("conditioned_edges_all", [](ProblemSpec& s) {
    s.desc.conditioning = KeyConditioning::kFull;
    s.desc.exact_pages = true;
    s.desc.sinks = true;
    s.desc.soft_cap = 30.0f;
    s.k_scale = 0.01f;
    s.v_scale = 0.25f;
  });
  add("edges_e4m3_bf16", [](ProblemSpec& s) {
    s.desc.layout.k_format = KvFormat::kE4m3;
    s.desc.layout.v_format = KvFormat::kBf16;
    s.desc.exact_pages = true;
    s.k_scale = 0.25f;
  });
  add("edges_interleaved", [](ProblemSpec& s) {
    s.desc.layout.k_format = s.desc.layout.v_format = KvFormat::kE5m2;
    s.desc.layout.plane_order = PlaneOrder::kInterleaved;
    s.desc.exact_pages = true;
  });
  add("conditioned_dim_80", [](ProblemSpec& s) {
    s.desc.layout.head_dim_k = 80;
    s.desc.conditioning = KeyConditioning::kFull;
  });
  for (const int32_t rank : {0, 2}) {
    add(fmt::format("context_parallel_{}", rank), [&](ProblemSpec& s) {
      s.desc.context_parallel = {.rank = rank, .size = 3, .interleave = 2};
      s.desc.window = rank == 0 ? 0 : 50;
    });
  }
  for (const DType dtype : {DType::kF16, DType::kBf16})
    add(fmt::format("dtype_{}", to_string(dtype)), [&](ProblemSpec& s) { s.desc.q_dtype = s.desc.out_dtype = dtype; });
  add("batch_invariant", [](ProblemSpec& s) { s.desc.batch_invariant = true; });
  return problems;
}

/// Name of a parameterised test.
inline const auto kProblemName = [](const auto& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
};

}  // namespace kvant::attn::test
