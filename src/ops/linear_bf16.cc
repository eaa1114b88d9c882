#include "ops/linear_bf16.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "core/float_bits.h"
#include "core/large_pages.h"
#include "kvant/core/thread_pool.h"
#include "ops/linear_cpu.h"
#include "ops/openmp_team.h"
#include "ops/row_loop.h"

namespace kvant::ops {
namespace {

using dnnl::memory;

// A batch is cut into blocks of 2^n rows, so that one primitive per size serves every batch.
constexpr int64_t kMaxBlockRows = 512;
// oneDNN chooses the order of the packed weights for this many rows; all sizes then read that one copy.
constexpr int64_t kPackingRows = 64;

memory::desc row_major(int64_t rows, int64_t columns, memory::data_type type) {
  return {{rows, columns}, type, memory::dims{columns, 1}};
}

class Bf16Linear final : public CpuLinear {
 public:
  Bf16Linear(int64_t out_features, int64_t in_features, int64_t max_rows)
      : out_features_(out_features),
        in_features_(in_features),
        blocks_(static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::min(max_rows, kMaxBlockRows))))) {}

  void pack(const WeightRows& rows, ThreadPool& pool) {
    const OpenMpTeam team(pool.num_threads());
    // oneDNN sees weights as [in, out]: the transposed view of row-major [out, in].
    const memory::dims sizes = {in_features_, out_features_};
    const memory::desc any(sizes, memory::data_type::bf16, memory::format_tag::any);
    const memory::desc packed = matmul_desc(kPackingRows, any).weights_desc();
    packed_.resize(packed.get_size());
    weights_ = memory(packed, engine_, packed_.data());

    constexpr int64_t kRowsPerTask = 64;
    std::vector<float> plain(static_cast<size_t>(out_features_ * in_features_));
    pool.parallel_for((out_features_ + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
      const int64_t begin = task * kRowsPerTask;
      rows(begin, std::min(out_features_, begin + kRowsPerTask), plain.data() + begin * in_features_);
    });
    memory source({sizes, memory::data_type::f32, memory::format_tag::ba}, engine_, plain.data());
    dnnl::reorder(source, weights_).execute(stream_, source, weights_);
    stream_.wait();
    gather_large_pages(packed_.data(), packed_.size());
  }

  int64_t scratch_bytes(int64_t num_rows) const { return num_rows * in_features_ * int64_t{sizeof(uint16_t)}; }

  void multiply(const float* x, int64_t num_rows, float* y, Stream stream) override {
    auto* rounded = reinterpret_cast<uint16_t*>(stream.pool->scratch(scratch_bytes(num_rows)));
    for_row_blocks(num_rows, in_features_, stream, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * in_features_; i < end * in_features_; ++i) rounded[i] = float_to_bf16(x[i]);
    });
    const OpenMpTeam team(stream.pool->num_threads());
    while (num_rows > 0) {
      const size_t size_log2 =
          std::min(blocks_.size(), static_cast<size_t>(std::bit_width(static_cast<uint64_t>(num_rows)))) - 1;
      const int64_t block_rows = int64_t{1} << size_log2;
      run_block(block(size_log2, stream.pool->num_threads()), rounded, y);
      rounded += block_rows * in_features_;
      y += block_rows * out_features_;
      num_rows -= block_rows;
    }
  }

  int64_t out_features() const override { return out_features_; }
  int64_t in_features() const override { return in_features_; }
  int64_t weight_bytes() const override { return static_cast<int64_t>(weights_.get_desc().get_size()); }

 private:
  struct Block {
    int num_threads = 0;  // What the primitive was made for; 0 = not made yet.
    dnnl::matmul matmul;
    memory source, destination;
  };

  memory::desc source_desc(int64_t num_rows) const {
    return row_major(num_rows, in_features_, memory::data_type::bf16);
  }
  memory::desc destination_desc(int64_t num_rows) const {
    return row_major(num_rows, out_features_, memory::data_type::f32);
  }

  dnnl::matmul::primitive_desc matmul_desc(int64_t num_rows, const memory::desc& weights) const {
    return {engine_, source_desc(num_rows), weights, destination_desc(num_rows)};
  }

  Block& block(size_t size_log2, int num_threads) {
    Block& block = blocks_[size_log2];
    if (block.num_threads == num_threads) return block;
    const int64_t num_rows = int64_t{1} << size_log2;
    block.matmul = dnnl::matmul(matmul_desc(num_rows, weights_.get_desc()));
    block.source = memory(source_desc(num_rows), engine_, nullptr);
    block.destination = memory(destination_desc(num_rows), engine_, nullptr);
    block.num_threads = num_threads;
    return block;
  }

  void run_block(Block& block, uint16_t* x, float* y) {
    block.source.set_data_handle(x);
    block.destination.set_data_handle(y);
    block.matmul.execute(
        stream_, {{DNNL_ARG_SRC, block.source}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, block.destination}});
  }

  int64_t out_features_;
  int64_t in_features_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  LargePageVector<std::byte> packed_;
  memory weights_;             // In packed_.
  std::vector<Block> blocks_;  // [i]: 2^i rows
};

}  // namespace

Result<std::unique_ptr<Linear>> create_bf16_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                                   int64_t max_rows, Stream stream) {
  try {
    auto linear = std::make_unique<Bf16Linear>(out_features, in_features, max_rows);
    linear->pack(rows, *stream.pool);
    stream.pool->scratch(linear->scratch_bytes(max_rows));
    return linear;
  } catch (const dnnl::error& error) {
    return failure(StatusCode::kInternal, fmt::format("oneDNN cannot multiply by a bf16 weight of {} x {}: {}",
                                                      out_features, in_features, error.what()));
  } catch (const std::bad_alloc&) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("no memory for a bf16 weight of {} x {}", out_features, in_features));
  }
}

bool has_bf16_instructions() {
  // Other CPUs would convert on the way, which is slower than fp32 weights.
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_fp16:
    case dnnl::cpu_isa::avx512_core_amx:
    case dnnl::cpu_isa::avx512_core_amx_fp16: return true;
    default: return false;  // Whatever else oneDNN knows or will know.
  }
}

}  // namespace kvant::ops
