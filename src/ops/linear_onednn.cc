#include "ops/linear_onednn.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "kvant/core/thread_pool.h"
#include "ops/openmp_team.h"

namespace kvant::ops {
namespace {

using dnnl::memory;

// A batch is cut into blocks of 2^n rows, so that one primitive per size serves every batch.
constexpr int64_t kMaxBlockRows = 512;
// oneDNN chooses the order of the packed weights for this many rows; all sizes then read that one copy.
constexpr int64_t kPackingRows = 64;

memory::desc row_major(int64_t rows, int64_t columns) {
  return {{rows, columns}, memory::data_type::f32, memory::dims{columns, 1}};
}

/// Weights [in, out] as oneDNN sees them: the transposed view of row-major [out, in].
memory::desc weight_desc(int64_t out_features, int64_t in_features, memory::data_type type, memory::format_tag tag) {
  return {{in_features, out_features}, type, tag};
}

class OneDnnLinear final : public Linear {
 public:
  OneDnnLinear(LinearFormat format, int64_t out_features, int64_t in_features, int64_t max_rows)
      : format_(format),
        out_features_(out_features),
        in_features_(in_features),
        blocks_(static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::min(max_rows, kMaxBlockRows))))) {}

  void pack(const WeightRows& rows, ThreadPool& pool) {
    const OpenMpTeam team(pool.num_threads());
    const auto type = format_ == LinearFormat::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc any = weight_desc(out_features_, in_features_, type, memory::format_tag::any);
    weights_ = memory(matmul_desc(kPackingRows, any).weights_desc(), engine_);

    constexpr int64_t kRowsPerTask = 64;
    std::vector<float> plain(static_cast<size_t>(out_features_ * in_features_));
    pool.parallel_for((out_features_ + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
      const int64_t begin = task * kRowsPerTask;
      rows(begin, std::min(out_features_, begin + kRowsPerTask), plain.data() + begin * in_features_);
    });
    const memory::desc plain_desc =
        weight_desc(out_features_, in_features_, memory::data_type::f32, memory::format_tag::ba);
    memory source(plain_desc, engine_, plain.data());
    dnnl::reorder(source, weights_).execute(stream_, source, weights_);
    stream_.wait();
  }

  void run(const float* x, int64_t num_rows, float* y, Stream stream) override {
    const OpenMpTeam team(stream.pool->num_threads());
    while (num_rows > 0) {
      const size_t size_log2 =
          std::min(blocks_.size(), static_cast<size_t>(std::bit_width(static_cast<uint64_t>(num_rows)))) - 1;
      const int64_t block_rows = int64_t{1} << size_log2;
      run_block(block(size_log2, stream.pool->num_threads()), x, y);
      x += block_rows * in_features_;
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

  dnnl::matmul::primitive_desc matmul_desc(int64_t num_rows, const memory::desc& weights) const {
    return {engine_, row_major(num_rows, in_features_), weights, row_major(num_rows, out_features_)};
  }

  Block& block(size_t size_log2, int num_threads) {
    Block& block = blocks_[size_log2];
    if (block.num_threads == num_threads) return block;
    const int64_t num_rows = int64_t{1} << size_log2;
    block.matmul = dnnl::matmul(matmul_desc(num_rows, weights_.get_desc()));
    block.source = memory(row_major(num_rows, in_features_), engine_, nullptr);
    block.destination = memory(row_major(num_rows, out_features_), engine_, nullptr);
    block.num_threads = num_threads;
    return block;
  }

  void run_block(Block& block, const float* x, float* y) {
    // oneDNN's handles are not const-correct; the source is only read.
    block.source.set_data_handle(const_cast<float*>(x));
    block.destination.set_data_handle(y);
    block.matmul.execute(
        stream_, {{DNNL_ARG_SRC, block.source}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, block.destination}});
  }

  LinearFormat format_;
  int64_t out_features_;
  int64_t in_features_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  memory weights_;
  std::vector<Block> blocks_;  // [i]: 2^i rows
};

}  // namespace

Result<std::unique_ptr<Linear>> create_onednn_linear(LinearFormat format, int64_t out_features, int64_t in_features,
                                                     const WeightRows& rows, int64_t max_rows, Stream stream) {
  try {
    auto linear = std::make_unique<OneDnnLinear>(format, out_features, in_features, max_rows);
    linear->pack(rows, *stream.pool);
    return linear;
  } catch (const dnnl::error& error) {
    return failure(StatusCode::kInternal, fmt::format("oneDNN cannot multiply by a {} weight of {} x {}: {}",
                                                      to_string(format), out_features, in_features, error.what()));
  } catch (const std::bad_alloc&) {
    return failure(StatusCode::kResourceExhausted,
                   fmt::format("no memory for a weight of {} x {}", out_features, in_features));
  }
}

bool linear_format_supported(LinearFormat format) {
  switch (format) {
    case LinearFormat::kF32:
    case LinearFormat::kInt8: return true;
    case LinearFormat::kBf16: {
      // Without bf16 dot products oneDNN converts to fp32 on the way, which is slower than fp32 weights.
      const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
      return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_fp16 ||
             isa == dnnl::cpu_isa::avx512_core_amx || isa == dnnl::cpu_isa::avx512_core_amx_fp16;
    }
  }
  return false;
}

}  // namespace kvant::ops
