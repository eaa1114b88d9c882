#pragma once

#include <cstdint>
#include <span>

#include "attn/cuda/generic/decode_splitkv.h"
#include "attn/cuda/generic/prefill_flash.h"
#include "attn/cuda/generic/shared_rows.h"

namespace kvant::attn::cuda {

struct SharingDecodeParams : DecodeParams {
  SharedRows shared;
};
/// Times of a block for shared pages, in those for 16 keys of a request's own.
struct SharedCosts {
  float tile;  ///< 64 keys by 128 rows.
  float unit;  ///< What a part of an item costs beside its tiles, until its rows are merged.
};
struct SharedDecodeParams {
  SharingDecodeParams decode;  // the requests' own pages
  PrefillParams prefix;        // the pages that runs of them share
  SharedCosts costs;
};

/// A launch is image.function with one argument, SharedDecodeParams, and shared_bytes of shared memory, on any grid
/// whose blocks all run at the same time or start in order.
struct SharedDecodeInstance {
  KvFormat format;
  int32_t head_dim;
  int32_t row_tiles;
  bool exact_pages;
  KernelImage (*image)();
  int32_t (*shared_bytes)(int32_t max_requests);
};

/// Written by kernels.cmake; none where no kernel is built for SM90a.
std::span<const SharedDecodeInstance> decode_shared_instances();

}  // namespace kvant::attn::cuda
