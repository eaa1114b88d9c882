#include "ops/cuda/linear_cuda.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/cuda_status.h"
#include "core/device_memory.h"
#include "core/float_bits.h"
#include "ops/cuda/batch_rows.h"
#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/one_row.h"

namespace kvant::ops::cuda {
namespace {

/// What NVIDIA advises for Hopper; smaller parts take less of it.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kStagingBytes = int64_t{32} << 20;

/// One product of a shape: y [rows, out] = x [rows, in] W^T, as the column-major y^T = W x^T of the library.
class Plan {
 public:
  explicit Plan(std::shared_ptr<const CublasLt> lt) : lt_(std::move(lt)) {}
  ~Plan() {
    if (desc != nullptr) lt_->destroy_desc(desc);
    for (const cublasLtMatrixLayout_t layout : {weight, x, y})
      if (layout != nullptr) lt_->destroy_layout(layout);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

 private:
  std::shared_ptr<const CublasLt> lt_;
};

struct Shape {
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t num_rows = 0;
  LinearOutput output = LinearOutput::kActivations;

  friend auto operator<=>(const Shape&, const Shape&) = default;
};

class Context final : public LinearContext {
 public:
  static Result<std::unique_ptr<LinearContext>> create(void* stream, ThreadPool& loaders) {
    std::unique_ptr<Context> context(new Context(static_cast<cudaStream_t>(stream), loaders));
    KVANT_ASSIGN_OR_FAIL(context->lt_, CublasLt::load());
    KVANT_FAIL_IF_ERROR(context->lt_->check(context->lt_->create(&context->handle_), "cublasLtCreate"));
    KVANT_ASSIGN_OR_FAIL(context->workspace_,
                         DeviceBuffer::create(MemoryKind::kCuda, kWorkspaceBytes, "cuBLASLt's workspace"));
    KVANT_ASSIGN_OR_FAIL(context->few_rows_, FewRows::create(stream));
    KVANT_ASSIGN_OR_FAIL(context->batch_rows_, BatchRows::create());
    for (Staging& staging : context->staging_) {
      KVANT_ASSIGN_OR_FAIL(staging.memory, DeviceBuffer::create(MemoryKind::kPinned, kStagingBytes, "weight uploads"));
      KVANT_FAIL_IF_ERROR(
          cuda_status(cudaEventCreateWithFlags(&staging.sent, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    }
    return context;
  }

  ~Context() override {
    plans_.clear();
    if (handle_ != nullptr) lt_->destroy(handle_);
    for (const Staging& staging : staging_)
      if (staging.sent != nullptr) static_cast<void>(cudaEventDestroy(staging.sent));
  }

  /// Null where the device has no such kernels.
  const FewRows* few_rows() const { return few_rows_.get(); }
  const BatchRows* batch_rows() const { return batch_rows_.get(); }

  /// Rows of a checkpoint to bf16 in device memory, a piece at a time: one is made while the other is sent.
  Status upload(const WeightRows& rows, int64_t num_rows, int64_t columns, std::byte* to) {
    const int64_t row_bytes = columns * int64_t{sizeof(uint16_t)};
    const int64_t piece_rows = std::max<int64_t>(1, kStagingBytes / row_bytes);
    if (row_bytes > kStagingBytes)
      return {StatusCode::kUnsupported, fmt::format("a weight with rows of {} values is too wide", columns)};
    for (int64_t begin = 0; begin < num_rows; begin += piece_rows) {
      Staging& staging = staging_[static_cast<size_t>(next_staging_++ % staging_.size())];
      KVANT_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(staging.sent), "cudaEventSynchronize"));
      const int64_t end = std::min(num_rows, begin + piece_rows);
      convert(rows, begin, end, columns, staging.memory.as<uint16_t>());
      KVANT_RETURN_IF_ERROR(copy_bytes(to + begin * row_bytes, staging.memory.data(), (end - begin) * row_bytes,
                                       Stream::on_cuda(stream_)));
      KVANT_RETURN_IF_ERROR(cuda_status(cudaEventRecord(staging.sent, stream_), "cudaEventRecord"));
    }
    return {};
  }

  Status multiply(const Shape& shape, const void* weight, const LinearArgs& args, void* stream) {
    KVANT_ASSIGN_OR_RETURN(const Plan* plan, find_plan(shape));
    const float alpha = 1.0f;
    const float beta = shape.output == LinearOutput::kAddF32 ? 1.0f : 0.0f;
    return lt_->check(lt_->matmul(handle_, plan->desc, &alpha, weight, plan->weight, args.x, plan->x, &beta, args.y,
                                  plan->y, args.y, plan->y, &plan->algorithm, workspace_.data(),
                                  static_cast<size_t>(kWorkspaceBytes), static_cast<cudaStream_t>(stream)),
                      "cublasLtMatmul");
  }

 private:
  struct Staging {
    DeviceBuffer memory;
    cudaEvent_t sent = nullptr;
  };

  Context(cudaStream_t stream, ThreadPool& loaders) : stream_(stream), loaders_(loaders) {}

  void convert(const WeightRows& rows, int64_t begin, int64_t end, int64_t columns, uint16_t* to) {
    // A task's fp32 rows stay in cache until they are rounded.
    const int64_t task_rows = std::max<int64_t>(1, 65536 / columns);
    buffers_.resize(static_cast<size_t>(loaders_.num_threads()));
    for (auto& buffer : buffers_) buffer.resize(std::max(buffer.size(), static_cast<size_t>(task_rows * columns)));
    const int64_t num_tasks = (end - begin + task_rows - 1) / task_rows;
    loaders_.parallel_for(num_tasks, [&](int64_t task, int worker) {
      float* values = buffers_[static_cast<size_t>(worker)].data();
      const int64_t first = begin + task * task_rows;
      const int64_t last = std::min(end, first + task_rows);
      rows(first, last, values);
      uint16_t* out = to + (first - begin) * columns;
      for (int64_t i = 0; i < (last - first) * columns; ++i) out[i] = float_to_bf16(values[i]);
    });
  }

  Result<const Plan*> find_plan(const Shape& shape) {
    if (const auto found = plans_.find(shape); found != plans_.end()) return found->second.get();
    KVANT_ASSIGN_OR_FAIL(std::unique_ptr<Plan> plan, make_plan(shape));
    return plans_.emplace(shape, std::move(plan)).first->second.get();
  }

  Result<std::unique_ptr<Plan>> make_plan(const Shape& shape) {
    auto plan = std::make_unique<Plan>(lt_);
    const auto out = static_cast<uint64_t>(shape.out_features), in = static_cast<uint64_t>(shape.in_features),
               rows = static_cast<uint64_t>(shape.num_rows);
    const cudaDataType y_type = shape.output == LinearOutput::kActivations ? CUDA_R_16BF : CUDA_R_32F;
    KVANT_FAIL_IF_ERROR(
        lt_->check(lt_->create_desc(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    KVANT_FAIL_IF_ERROR(
        lt_->check(lt_->set_desc(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
                   "cublasLtMatmulDescSetAttribute"));
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType type, uint64_t height, uint64_t width) {
      return lt_->check(lt_->create_layout(&to, type, height, width, static_cast<int64_t>(height)),
                        "cublasLtMatrixLayoutCreate");
    };
    KVANT_FAIL_IF_ERROR(layout(plan->weight, CUDA_R_16BF, in, out));
    KVANT_FAIL_IF_ERROR(layout(plan->x, CUDA_R_16BF, in, rows));
    KVANT_FAIL_IF_ERROR(layout(plan->y, y_type, out, rows));
    KVANT_FAIL_IF_ERROR(choose_algorithm(shape, *plan));
    return plan;
  }

  Status choose_algorithm(const Shape& shape, Plan& plan) {
    cublasLtMatmulPreference_t preference = nullptr;
    KVANT_RETURN_IF_ERROR(lt_->check(lt_->create_preference(&preference), "cublasLtMatmulPreferenceCreate"));
    const auto workspace = static_cast<uint64_t>(kWorkspaceBytes);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    Status status = lt_->check(
        lt_->set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)),
        "cublasLtMatmulPreferenceSetAttribute");
    if (status.ok()) {
      status = lt_->check(
          lt_->get_heuristic(handle_, plan.desc, plan.weight, plan.x, plan.y, plan.y, preference, 1, &found, &count),
          "cublasLtMatmulAlgoGetHeuristic");
    }
    lt_->destroy_preference(preference);
    KVANT_RETURN_IF_ERROR(status);
    if (count == 0)
      return {StatusCode::kUnsupported, fmt::format("cuBLASLt has no product of {} rows with a bf16 weight of {} x {}",
                                                    shape.num_rows, shape.out_features, shape.in_features)};
    plan.algorithm = found.algo;
    return {};
  }

  cudaStream_t stream_;
  ThreadPool& loaders_;
  std::shared_ptr<const CublasLt> lt_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::unique_ptr<FewRows> few_rows_;
  std::unique_ptr<BatchRows> batch_rows_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  std::array<Staging, 2> staging_;
  uint64_t next_staging_ = 0;
  std::vector<std::vector<float>> buffers_;  ///< One per loader.
};

class CudaLinear final : public Linear {
 public:
  CudaLinear(Context& context, int64_t out_features, int64_t in_features, DeviceBuffer weight,
             std::optional<FewRowsWeight> few_rows, std::optional<BatchRowsWeight> batch_rows)
      : context_(context),
        out_features_(out_features),
        in_features_(in_features),
        weight_(std::move(weight)),
        few_rows_(few_rows),
        batch_rows_(batch_rows) {}

  Status run(const LinearArgs& args, Stream stream) override {
    if (args.num_rows == 0) return {};
    if (args.num_rows == 1 && in_features_ % 8 == 0)
      return multiply_one_row({.weight = weight_.data(),
                               .x = args.x,
                               .y = args.y,
                               .out_features = out_features_,
                               .in_features = in_features_,
                               .output = args.output},
                              stream.cuda);
    const auto multiply = [&](auto& products, const auto& weight) {
      return products.multiply({.weight = &weight,
                                .x = args.x,
                                .y = args.y,
                                .num_rows = args.num_rows,
                                .output = args.output,
                                .gate = args.gate},
                               stream.cuda);
    };
    if (few_rows_ && few_rows_->takes(args.num_rows)) return multiply(*context_.few_rows(), *few_rows_);
    if (batch_rows_ && batch_rows_->takes(args.num_rows, args.output))
      return multiply(*context_.batch_rows(), *batch_rows_);
    return context_.multiply(
        {.out_features = out_features_, .in_features = in_features_, .num_rows = args.num_rows, .output = args.output},
        weight_.data(), args, stream.cuda);
  }

  bool gates(int64_t num_rows) const override {
    if (num_rows <= 1) return false;
    if (few_rows_ && few_rows_->takes(num_rows)) return few_rows_->gates(num_rows);
    return batch_rows_ && batch_rows_->takes(num_rows, LinearOutput::kGated);
  }

  int64_t out_features() const override { return out_features_; }
  int64_t in_features() const override { return in_features_; }
  int64_t weight_bytes() const override { return weight_.bytes(); }
  const void* plain_rows() const override { return weight_.data(); }

 private:
  Context& context_;
  int64_t out_features_;
  int64_t in_features_;
  DeviceBuffer weight_;
  std::optional<FewRowsWeight> few_rows_;
  std::optional<BatchRowsWeight> batch_rows_;
};

}  // namespace

Result<std::unique_ptr<LinearContext>> create_linear_context(void* stream, ThreadPool& loaders) {
  return Context::create(stream, loaders);
}

Result<std::unique_ptr<Linear>> create_linear(int64_t out_features, int64_t in_features, const WeightRows& rows,
                                              LinearContext* context) {
  auto* shared = dynamic_cast<Context*>(context);
  KVANT_CHECK(shared != nullptr);
  const int64_t bytes = out_features * in_features * int64_t{sizeof(uint16_t)};
  KVANT_ASSIGN_OR_FAIL(DeviceBuffer weight, DeviceBuffer::create(MemoryKind::kCuda, bytes, "weights"));
  KVANT_FAIL_IF_ERROR(shared->upload(rows, out_features, in_features, weight.data()));
  std::optional<FewRowsWeight> few_rows;
  if (const FewRows* few = shared->few_rows(); few != nullptr) {
    KVANT_ASSIGN_OR_FAIL(few_rows, few->describe(weight.data(), out_features, in_features));
  }
  std::optional<BatchRowsWeight> batch_rows;
  if (const BatchRows* batch = shared->batch_rows(); batch != nullptr) {
    KVANT_ASSIGN_OR_FAIL(batch_rows, batch->describe(weight.data(), out_features, in_features));
  }
  return std::make_unique<CudaLinear>(*shared, out_features, in_features, std::move(weight), few_rows, batch_rows);
}

}  // namespace kvant::ops::cuda
