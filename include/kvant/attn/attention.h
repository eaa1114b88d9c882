#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvant/attn/kv_cache.h"
#include "kvant/core/device.h"
#include "kvant/core/dtype.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"

namespace kvant::attn {

/// Which keys of its own draft block (the last q_len keys of its request) a query row sees. Keys before the block are
/// always visible, window permitting.
enum class DraftMask : uint8_t {
  kCausal,  ///< Row i sees block keys 0..i. Derived from lengths, no tensor.
  kFull,    ///< Every row sees the whole block. Derived from lengths, no tensor.
  kPacked,  ///< Row i sees block key j iff bit j of its packed row is set (trees).
};

/// Context parallelism: of a request's global keys, rank r holds those with (j / interleave) % size == rank, densely
/// packed in its own pages.
struct ContextParallel {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t interleave = 1;

  friend bool operator==(const ContextParallel&, const ContextParallel&) = default;
};

/// What a layer's attention is. Fixed for the life of a plan.
struct AttnDesc {
  int32_t num_q_heads = 0;  ///< A multiple of layout.num_kv_heads; any ratio up to the device's limit.
  KvLayout layout;
  bool exact_pages = false;  ///< Page-table entries may name the exact pool.
  KeyConditioning conditioning = KeyConditioning::kNone;
  float softmax_scale = 0.0f;  ///< Usually 1 / sqrt(head_dim_k).
  float soft_cap = 0.0f;       ///< s = cap * tanh(s / cap); 0 = none.
  int32_t window = 0;          ///< Row at position p sees keys j > p - window; 0 = no window.
  bool sinks = false;          ///< One extra logit per query head, in the denominator only.
  DraftMask draft_mask = DraftMask::kCausal;
  ContextParallel context_parallel;
  bool batch_invariant = false;  ///< How a row is split depends on that row alone.
  DType q_dtype = DType::kF32;
  DType out_dtype = DType::kF32;

  friend bool operator==(const AttnDesc&, const AttnDesc&) = default;
};

/// Shared keys by requests, less one, from which reading them once pays: measured, with eight KV heads.
inline constexpr int64_t kMinSavedKeys = 400'000;

/// Upper bounds on what one run may hold; they size the workspace and, on CUDA, fix the launch.
struct AttnLimits {
  int32_t max_requests = 1;
  int32_t max_tokens = 1;  ///< Query rows over all requests.
  int32_t max_query_len = 1;
  int32_t max_pages_per_request = 1;
  /// Runs may be given shared_runs. Where no kernel of the device makes use of them they are ignored, and right.
  bool shared_runs = false;
  /// So they are where the other limits leave fewer keys than this to save: plain kernels are faster then.
  int64_t min_saved_keys = kMinSavedKeys;

  friend bool operator==(const AttnLimits&, const AttnLimits&) = default;
};

/// Consecutive requests whose first pages are the same, as one of them sees it. Without requests: it shares nothing.
struct SharedRun {
  int32_t first_request = 0;
  int32_t num_requests = 0;
  int32_t num_pages = 0;

  friend bool operator==(const SharedRun&, const SharedRun&) = default;
};

/// One step's data. Every pointer is device memory of the stream's device and may change content between runs.
///
/// Request r has q_len n = q_offsets[r+1] - q_offsets[r] (0 allowed) and kv_lens[r] = L keys, this step's included.
/// Its row i is at position L - n + i. A row that sees no key gets output 0 and LSE -inf.
struct AttnArgs {
  KvCacheView cache;
  const void* q = nullptr;              ///< [num_tokens, num_q_heads, head_dim_k] of q_dtype, after RoPE, unconditioned
  void* out = nullptr;                  ///< [num_tokens, num_q_heads, head_dim_v] of out_dtype
  float* lse = nullptr;                 ///< [num_tokens, num_q_heads] natural log, without the sink; may be null
  const int32_t* q_offsets = nullptr;   ///< [num_requests + 1], first 0, not decreasing
  const int32_t* kv_lens = nullptr;     ///< [num_requests]; global lengths under context parallelism
  const int32_t* page_table = nullptr;  ///< [num_requests, page_table_stride] entries
  int64_t page_table_stride = 0;        ///< Entries between requests.
  int32_t num_requests = 0;
  int32_t num_tokens = 0;
  const float* sinks = nullptr;    ///< [num_q_heads]
  const uint32_t* mask = nullptr;  ///< [num_tokens, mask_row_words], with DraftMask::kPacked
  int32_t mask_row_words = 0;
  const SharedRun* shared_runs = nullptr;  ///< [num_requests + 1] of find_shared_runs, or null: nothing is shared
  const int32_t* positions =
      nullptr;  ///< [num_tokens] position of each row for its window, for trees; null = L - n + i
};

/// Scratch memory owned by the caller, on the plan's device. May be reused by any call on the same stream, as long as
/// on CUDA only plans of this library use it: `prepare` says why.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

/// Bytes that make_plan will ask of a workspace for this configuration; the same code fills the plan.
Result<size_t> workspace_size(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device,
                              int num_threads);

/// How a CUDA route launches; of no meaning to callers.
struct AttnLaunch {
  int32_t kernel = 0;
  int32_t num_blocks = 0;
  int32_t shared_bytes = 0;  ///< Per block.
  bool is_prefill = false;
  /// Of decode of many requests, which has a kernel of its own.
  int32_t many_num_blocks = 0, many_shared_bytes = 0;
  bool in_teams = false;  ///< Many requests: several of the kernel's blocks are one of the launch.
  /// Of the kernel for runs that are given shared_runs; none where shared_kernel is negative.
  int32_t shared_kernel = -1, shared_num_blocks = 0, shared_kernel_bytes = 0;
  /// Blocks where two, four or eight of them form a cluster; 0 where they cannot.
  std::array<int32_t, 3> cluster_blocks{};
};

/// A checked configuration and the kernel chosen for it. Copyable; holds no memory of its own.
class AttnPlan {
 public:
  const AttnDesc& desc() const { return desc_; }
  const AttnLimits& limits() const { return limits_; }
  const DeviceInfo& device() const { return device_; }
  const Workspace& workspace() const { return workspace_; }
  /// Name of the route in the kernel table, such as "cpu/decode_splitkv/avx2".
  const std::string& route() const { return route_; }
  const AttnLaunch& launch() const { return launch_; }

 private:
  friend Result<AttnPlan> make_plan(const AttnDesc&, const AttnLimits&, const DeviceInfo&, int, Workspace);
  AttnDesc desc_;
  AttnLimits limits_;
  DeviceInfo device_;
  Workspace workspace_;
  std::string route_;
  AttnLaunch launch_;
};

/// Validates once; kernels trust the result. An option that no kernel of the device can honour is kUnsupported.
/// `num_threads` is the size of the pool that run will be given (1 on CUDA). A CUDA plan is made for the calling
/// thread's current device, which must be `device`; that is also where the kernel's image and memory are checked.
Result<AttnPlan> make_plan(const AttnDesc& desc, const AttnLimits& limits, const DeviceInfo& device, int num_threads,
                           Workspace workspace);

/// Readies a workspace: once, on the stream of the first run, before it and outside any loop of captured steps. On CUDA
/// it zeroes the counters at the workspace's start, asynchronously; every run leaves them zero, so plans that share a
/// workspace on one stream share one call. Does nothing on the CPU.
Status prepare(const AttnPlan& plan, Stream stream);

/// Attention of one layer for one step: decode, verify, extend and prefill rows in any mix.
///
/// Within one AttnLimits `run` makes the same launches with the same grids and pointers, whatever the lengths. It does
/// not allocate, copy layouts, read back or synchronise. Host-side fields outside the limits are kInvalidArgument.
/// Lengths, offsets and tables in device memory are trusted on CUDA; pages, `q` and `out` start at multiples of 16
/// bytes there.
Status run(const AttnPlan& plan, const AttnArgs& args, Stream stream);

/// Merges partial results of the same rows over disjoint key sets. Total: empty + empty = empty, never NaN.
struct MergeArgs {
  std::span<const float* const> outs;  ///< Each [num_tokens, num_q_heads, head_dim_v]
  std::span<const float* const> lses;  ///< Each [num_tokens, num_q_heads], natural log, without the sink
  const float* sinks = nullptr;        ///< [num_q_heads], counted once, here; may be null
  void* out = nullptr;                 ///< [num_tokens, num_q_heads, head_dim_v] of out_dtype
  float* lse = nullptr;                ///< [num_tokens, num_q_heads]; may be null
  DType out_dtype = DType::kF32;
  int32_t num_tokens = 0;
  int32_t num_q_heads = 0;
  int32_t head_dim_v = 0;
};
Status merge(const MergeArgs& args, Stream stream);

}  // namespace kvant::attn
