#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/attn/kv_format.h"

namespace kvant::bench {

struct Shape {
  attn::KvFormat format;
  int32_t batch, context;
  int32_t q_len = 1;
  int32_t q_heads = 32, kv_heads = 8, head_dim = 128, page = 16;
  bool mixed = false;  ///< Lengths from 2 % of the context to all of it.
  bool edges = false;  ///< First page and last three pages exact.
  int32_t shared = 0;  ///< Leading keys that all requests have in common; a multiple of the page.
  bool runs = false;   ///< Whether kernels are told what is shared, be it nothing.
};

/// Such as nvfp4_256x4096_q1_h32_edges or e4m3_64x9216_q1_h32_shared8192_runs.
std::string name_of(const Shape& shape);

/// The shapes of a suite without doubles; none for an unknown name.
///   decode   what the targets name: saturating, small, mixed and verify shapes
///   grid     batches by contexts, one and four rows a request
///   h200     both
///   shared   requests with leading pages in common: told so, not told so, and with pages of their own
///   prefill  prompts, chunks over a prefix, wide verify blocks
std::vector<Shape> shapes_of(std::string_view suite);

/// Whether `name` holds one of the comma-separated texts.
bool is_wanted(const std::string& name, std::string_view texts);

}  // namespace kvant::bench
