#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kvant/attn/append.h"
#include "support/kv_test_cache.h"

namespace kvant::attn::test {

inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

inline bool has_cuda_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// Skips every test of a suite, with a reason, where there is no device.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "no CUDA device: GPU tests did not run";
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Stream cuda() const { return Stream::on_cuda(stream_); }
  void sync() const { check_cuda(cudaStreamSynchronize(stream_)); }

  cudaStream_t stream_ = nullptr;
};

/// Device memory between guards. `shift` bytes move its start off the allocation's alignment.
class GuardedDeviceBytes {
 public:
  explicit GuardedDeviceBytes(size_t size, size_t shift = 0) : size_(size), shift_(shift) {
    check_cuda(cudaMalloc(&memory_, size + shift + 2 * kGuard));
    check_cuda(cudaMemset(memory_, kGuardByte, size + shift + 2 * kGuard));
    settle();
  }
  template <class T>
  explicit GuardedDeviceBytes(const std::vector<T>& values, size_t shift = 0)
      : GuardedDeviceBytes(values.size() * sizeof(T), shift) {
    write(values);
  }
  ~GuardedDeviceBytes() { cudaFree(memory_); }
  GuardedDeviceBytes(GuardedDeviceBytes&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_), shift_(other.shift_) {}
  GuardedDeviceBytes& operator=(GuardedDeviceBytes&&) = delete;

  template <class T = std::byte>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + kGuard + shift_);
  }
  template <class T>
  void write(const std::vector<T>& values) const {
    check_cuda(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    settle();
  }
  template <class T>
  std::vector<T> read() const {
    std::vector<T> values(size_ / sizeof(T));
    check_cuda(cudaMemcpy(values.data(), data(), size_, cudaMemcpyDeviceToHost));
    return values;
  }
  bool guards_intact() const {
    std::vector<uint8_t> all(size_ + shift_ + 2 * kGuard);
    check_cuda(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= kGuard + shift_ && i < kGuard + shift_ + size_;
      if (!inside && all[i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  /// Fills, and copies of little memory, may return before the device has done them, and the tests' stream does not
  /// wait for the default one.
  static void settle() { check_cuda(cudaStreamSynchronize(nullptr)); }

  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kGuardByte = 0x5c;
  void* memory_ = nullptr;
  size_t size_;
  size_t shift_;
};

/// A TestCache's pools and constants on the device.
class DeviceCache {
 public:
  explicit DeviceCache(TestCache& host, size_t shift = 0)
      : base(host.base, shift), exact(host.exact, shift), view_(host.view()) {
    const int64_t row = int64_t{view_.layout.num_kv_heads} * view_.layout.head_dim_k;
    view_.base.data = base.data();
    view_.exact.data = exact.data();
    view_.scales.k = copy(view_.scales.k, view_.scales.count);
    view_.scales.v = copy(view_.scales.v, view_.scales.count);
    view_.conditioner.mu = copy(view_.conditioner.mu, row);
    view_.conditioner.z = copy(view_.conditioner.z, row);
    view_.conditioner.zi = copy(view_.conditioner.zi, row);
  }
  const KvCacheView& view() const { return view_; }

  GuardedDeviceBytes base, exact;

 private:
  const float* copy(const float* values, int64_t count) {
    if (values == nullptr) return nullptr;
    constants_.emplace_back(std::vector<float>(values, values + count));
    return constants_.back().data<float>();
  }
  KvCacheView view_;
  std::vector<GuardedDeviceBytes> constants_;
};

/// The first byte in which two pools differ, or -1.
inline int64_t first_difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want) {
  if (got.size() != want.size()) return 0;
  const auto at = std::mismatch(got.begin(), got.end(), want.begin()).first;
  return at == got.end() ? -1 : at - got.begin();
}

/// Both pools, byte for byte, gaps and guards included.
inline void expect_same_pools(const DeviceCache& got, const TestCache& want) {
  ASSERT_EQ(first_difference(got.base.read<uint8_t>(), want.base), -1);
  ASSERT_EQ(first_difference(got.exact.read<uint8_t>(), want.exact), -1);
  ASSERT_TRUE(got.base.guards_intact());
  ASSERT_TRUE(got.exact.guards_intact());
}

}  // namespace kvant::attn::test
