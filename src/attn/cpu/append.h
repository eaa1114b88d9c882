#pragma once

#include "kvant/attn/append.h"
#include "kvant/core/thread_pool.h"

namespace kvant::attn::cpu {

// The CPU side of kvant/attn/append.h. Descriptors have been checked; what lies behind their pointers is checked here.

Status append(const AppendArgs& args, ThreadPool& pool);
Status age_pages(const AgeArgs& args, ThreadPool& pool);
Status convert_pages(const KvLayout& from_layout, KvPool from, const KvLayout& to_layout, KvPool to, ThreadPool& pool);
Status dequantise(const KvCacheView& cache, std::span<const int64_t> slots, float* k_out, float* v_out,
                  ThreadPool& pool);

}  // namespace kvant::attn::cpu
