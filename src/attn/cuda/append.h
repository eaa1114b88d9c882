#pragma once

#include "kvant/attn/append.h"

namespace kvant::attn::cuda {

// The CUDA side of kvant/attn/append.h. `stream` is a cudaStream_t. Descriptors have been checked.

Status append(const AppendArgs& args, void* stream);
Status age_pages(const AgeArgs& args, void* stream);
Status convert_pages(const KvLayout& from_layout, KvPool from, const KvLayout& to_layout, KvPool to, void* stream);
Status dequantise(const KvCacheView& cache, std::span<const int64_t> slots, float* k_out, float* v_out, void* stream);

}  // namespace kvant::attn::cuda
