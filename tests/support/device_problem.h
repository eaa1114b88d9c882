#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kvant/attn/kernel_table.h"
#include "support/poison.h"
#include "support/random_problem.h"

namespace kvant::attn::test {

#define SKIP_WITHOUT_A_DEVICE() \
  if (kvant::cuda_devices().empty()) GTEST_SKIP() << "NO CUDA DEVICE: nothing was tested"

/// bf16 queries over a cache in the orders that kernels made for decode read.
inline void store_for_device(AttnDesc& desc, KvFormat k_format, KvFormat v_format) {
  desc.layout.k_format = k_format;
  desc.layout.v_format = v_format;
  desc.q_dtype = DType::kBf16;
  if (v_format == KvFormat::kNvfp4) {
    const std::vector<DeviceInfo> devices = cuda_devices();
    desc.layout.code_order = own_code_order(devices.empty() ? DeviceFamily::kSm90 : devices.front().family);
    desc.layout.scale_order = ScaleOrder::kLanes;
  }
}

/// Device memory that frees itself. A failed call fails the test that makes it.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size, int fill = kvant::test::kNanByte) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, size + 16), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, fill, size + 16), cudaSuccess);
  }
  ~DeviceBuffer() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_;
};

/// A Problem in device memory: pages as the CPU encoded them, poison included, and guard bytes round the results.
class DeviceProblem {
 public:
  /// Pages go to ids from `first_page` on, so that offsets beyond 2^31 can be reached.
  explicit DeviceProblem(Problem& problem, int32_t first_page = 0) : problem_(problem), first_page_(first_page) {
    const AttnArgs host = problem.args();
    args_ = host;
    args_.shared_runs = nullptr;
    args_.cache.base = upload_pool(host.cache.base, host.cache.layout);
    if (problem.desc().exact_pages) args_.cache.exact = upload_pool(host.cache.exact, host.cache.layout.exact());
    upload_cache_values(host);
    const int64_t rows = int64_t{host.num_tokens} * problem.desc().num_q_heads;
    args_.q = upload(static_cast<const std::byte*>(host.q), problem.q().size());
    out_bytes_ = static_cast<size_t>(rows * problem.desc().layout.head_dim_v * dtype_bytes(problem.desc().out_dtype));
    lse_bytes_ = static_cast<size_t>(rows) * sizeof(float);
    out_ = allocate(out_bytes_ + 2 * kGuard, kGuardByte);
    lse_ = allocate(lse_bytes_ + 2 * kGuard, kGuardByte);
    args_.out = out_ + kGuard;
    args_.lse = reinterpret_cast<float*>(lse_ + kGuard);
    const auto requests = static_cast<size_t>(host.num_requests);
    q_offsets_ = upload(host.q_offsets, requests + 1);
    kv_lens_ = upload(host.kv_lens, requests);
    args_.q_offsets = q_offsets_;
    args_.kv_lens = kv_lens_;
    upload_page_table();
    args_.sinks = upload(host.sinks, problem.sinks().size());
    args_.mask = upload(host.mask, problem.mask().size());
    args_.positions = upload(host.positions, static_cast<size_t>(host.num_tokens));
  }

  const AttnArgs& args() const { return args_; }

  /// Runs of the problem's own pages; call it before plan, later calls change them in place.
  void share(const std::vector<SharedRun>& runs) {
    if (args_.shared_runs == nullptr) args_.shared_runs = shared_runs_ = upload(runs.data(), runs.size());
    copy(shared_runs_, runs.data(), runs.size());
  }

  /// Makes the plan and readies its workspace.
  Status plan(int64_t min_saved_keys = 1) {
    const std::vector<DeviceInfo> devices = cuda_devices();
    AttnLimits limits = problem_.limits();
    limits.shared_runs = args_.shared_runs != nullptr;
    limits.min_saved_keys = min_saved_keys;
    KVANT_ASSIGN_OR_RETURN(const size_t bytes, workspace_size(problem_.desc(), limits, devices.front(), 1));
    KVANT_ASSIGN_OR_RETURN(plan_, make_plan(problem_.desc(), limits, devices.front(), 1,
                                            Workspace{allocate(bytes, kvant::test::kNanByte), bytes}));
    return prepare(plan_, Stream::on_cuda(nullptr));
  }
  const AttnPlan& made_plan() const { return plan_; }

  /// Fills the results with NaN, so that a row that is not written shows.
  void clear_results() {
    EXPECT_EQ(cudaMemset(args_.out, kvant::test::kNanByte, out_bytes_), cudaSuccess);
    EXPECT_EQ(cudaMemset(args_.lse, kvant::test::kNanByte, lse_bytes_), cudaSuccess);
  }
  Status run(cudaStream_t stream = nullptr) { return attn::run(plan_, args_, Stream::on_cuda(stream)); }

  void set_lengths(const std::vector<int32_t>& q_offsets, const std::vector<int32_t>& kv_lens) {
    copy(q_offsets_, q_offsets.data(), q_offsets.size());
    copy(kv_lens_, kv_lens.data(), kv_lens.size());
  }

  std::vector<std::byte> out_bytes() { return download(out_, out_bytes_); }
  std::vector<float> out() { return from_dtype(out_bytes(), problem_.desc().out_dtype); }
  std::vector<float> lse() { return from_dtype(download(lse_, lse_bytes_), DType::kF32); }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr int kGuardByte = 0x5c;

  std::byte* allocate(size_t bytes, int fill) {
    memory_.push_back(std::make_unique<DeviceBuffer>(bytes, fill));
    return memory_.back()->data();
  }
  template <class T>
  static void copy(T* to, const T* from, size_t count) {
    EXPECT_EQ(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  template <class T>
  T* upload(const T* from, size_t count) {
    if (from == nullptr) return nullptr;
    T* to = reinterpret_cast<T*>(allocate(count * sizeof(T), kvant::test::kNanByte));
    copy(to, from, count);
    return to;
  }

  /// Pages need a stride of whole 16 bytes here; the gap between pages is poison as on the CPU.
  KvPool upload_pool(const KvPool& host, const KvLayout& layout) {
    const auto page_bytes = static_cast<size_t>(layout.page_bytes());
    const size_t stride = page_bytes + 32;
    const auto first = static_cast<size_t>(first_page_);
    const size_t pages = first + static_cast<size_t>(host.num_pages);
    std::byte* data = allocate(pages * stride, kvant::test::kNanByte);
    EXPECT_EQ(cudaMemcpy2D(data + first * stride, stride, host.data, static_cast<size_t>(host.page_stride), page_bytes,
                           static_cast<size_t>(host.num_pages), cudaMemcpyHostToDevice),
              cudaSuccess);
    return {.data = data, .num_pages = static_cast<int64_t>(pages), .page_stride = static_cast<int64_t>(stride)};
  }
  void upload_cache_values(const AttnArgs& host) {
    const KvLayout& layout = host.cache.layout;
    const auto count = static_cast<size_t>(host.cache.scales.count);
    args_.cache.scales.k = upload(host.cache.scales.k, count);
    args_.cache.scales.v = upload(host.cache.scales.v, count);
    const auto values = static_cast<size_t>(layout.num_kv_heads) * static_cast<size_t>(layout.head_dim_k);
    args_.cache.conditioner.mu = upload(host.cache.conditioner.mu, values);
    args_.cache.conditioner.z = upload(host.cache.conditioner.z, values);
    args_.cache.conditioner.zi = upload(host.cache.conditioner.zi, values);
  }
  void upload_page_table() {
    std::vector<int32_t> table = problem_.page_table();
    for (int32_t& entry : table)
      if (entry >= 0 && entry != kvant::test::kPoisonPage) entry += first_page_;
    args_.page_table = upload(table.data(), table.size());
  }

  std::vector<std::byte> download(const std::byte* guarded, size_t bytes) {
    std::vector<std::byte> all(bytes + 2 * kGuard);
    EXPECT_EQ(cudaMemcpy(all.data(), guarded, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(static_cast<int>(all[i]), kGuardByte) << "guard before the result, byte " << i;
      EXPECT_EQ(static_cast<int>(all[kGuard + bytes + i]), kGuardByte) << "guard after the result, byte " << i;
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

  Problem& problem_;
  int32_t first_page_;
  AttnArgs args_;
  AttnPlan plan_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
  std::byte *out_ = nullptr, *lse_ = nullptr;
  int32_t *q_offsets_ = nullptr, *kv_lens_ = nullptr;
  SharedRun* shared_runs_ = nullptr;
  size_t out_bytes_ = 0, lse_bytes_ = 0;
};

/// Runs a planned problem `times` times with the same bits each time.
inline void expect_repeats(DeviceProblem& device, int times) {
  std::vector<std::byte> first;
  for (int repeat = 0; repeat < times; ++repeat) {
    device.clear_results();
    ASSERT_TRUE(device.run().ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (repeat == 0) first = device.out_bytes();
    ASSERT_TRUE(device.out_bytes() == first) << "run " << repeat;
  }
}

}  // namespace kvant::attn::test
