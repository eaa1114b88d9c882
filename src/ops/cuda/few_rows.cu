#include "ops/cuda/few_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "core/cuda_status.h"
#include "ops/cuda/few_rows.cuh"

namespace kvant::ops::cuda {
namespace {

using Rows8 = FewRowsTraits<8, 1>;
using Rows16 = FewRowsTraits<16, 1>;
using Rows32 = FewRowsTraits<32, 1>;
static_assert(Rows32::kRows == FewRows::kMostRows, "the last of them");
static_assert(sizeof(CUtensorMap) == sizeof(FewRowsWeight::map), "what FewRowsWeight keeps");

int64_t divided_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

/// As many as there are multiprocessors, or a few less where more of them then end with a tile.
int32_t choose_num_shares(int32_t num_tiles, int32_t num_units, int32_t num_multiprocessors) {
  constexpr int32_t kLeastUnits = 4;
  const int32_t most = std::clamp(num_units / kLeastUnits, 1, num_multiprocessors);
  int32_t best = most;
  for (int32_t shares = most - 1; shares >= most - most / 32; --shares)
    if (std::gcd(num_tiles, shares) > std::gcd(num_tiles, best)) best = shares;
  return best;
}

template <class Traits>
Status prepare() {
  return cuda_status(
      cudaFuncSetAttribute(few_rows_kernel<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes),
      "cudaFuncSetAttribute");
}

template <class Traits>
Status launch_few_rows(FewRowsParams params, int32_t num_multiprocessors, void* stream) {
  const auto num_tiles = static_cast<int32_t>(divided_up(params.out_features, Traits::kOutputs));
  params.num_chunks = static_cast<int32_t>(divided_up(params.in_features, Traits::kChunk));
  params.num_units = num_tiles * params.num_chunks;
  const int32_t num_shares = choose_num_shares(num_tiles, params.num_units, num_multiprocessors);
  return launch("few-rows", few_rows_kernel<Traits>, static_cast<unsigned>(num_shares), Traits::kThreads, params,
                stream, Traits::kSharedBytes);
}

}  // namespace

Result<std::unique_ptr<FewRows>> FewRows::create(void* stream) {
  std::unique_ptr<FewRows> few(new FewRows());
  int device = 0, major = 0, minor = 0;
  KVANT_FAIL_IF_ERROR(cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  for (const auto& [value, attribute] :
       {std::pair{&major, cudaDevAttrComputeCapabilityMajor}, std::pair{&minor, cudaDevAttrComputeCapabilityMinor},
        std::pair{&few->num_multiprocessors_, cudaDevAttrMultiProcessorCount}})
    KVANT_FAIL_IF_ERROR(cuda_status(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute"));
  if (major != 9 || minor != 0) return nullptr;
  for (const auto prepare_one : {prepare<Rows8>, prepare<Rows16>, prepare<Rows32>}) KVANT_FAIL_IF_ERROR(prepare_one());
  const int64_t bytes =
      int64_t{few->num_multiprocessors_} * Rows32::kQuads * Rows32::kConsumers * int64_t{sizeof(float4)};
  KVANT_ASSIGN_OR_FAIL(few->sums_, DeviceBuffer::create(MemoryKind::kCuda, bytes, "sums of products"));
  static_assert(detail::kAbsent == 0xffffffffu, "what the next call writes");
  KVANT_FAIL_IF_ERROR(cuda_status(
      cudaMemsetAsync(few->sums_.data(), 0xff, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)),
      "cudaMemsetAsync"));
  return few;
}

bool FewRows::takes(int64_t out_features, int64_t in_features) const {
  const int64_t units = divided_up(out_features, Rows8::kOutputs) * divided_up(in_features, Rows8::kChunk);
  return out_features % 8 == 0 && in_features % 8 == 0 &&
         units * (num_multiprocessors_ + 1) <= std::numeric_limits<int32_t>::max();
}

Result<FewRowsWeight> FewRows::describe(const void* weight, int64_t out_features, int64_t in_features) const {
  // The driver's library is not linked: programs built with CUDA start without one.
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  KVANT_FAIL_IF_ERROR(
      cuda_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
                  "cudaGetDriverEntryPointByVersion"));
  if (entry == nullptr || found != cudaDriverEntryPointSuccess)
    return failure(StatusCode::kUnsupported,
                   "the CUDA driver has no cuTensorMapEncodeTiled; it must be of CUDA 12 or later");
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(in_features), static_cast<cuuint64_t>(out_features)};
  const cuuint64_t row_bytes[] = {2 * static_cast<cuuint64_t>(in_features)};
  const cuuint32_t box[] = {Rows8::kChunk, Rows8::kBoxOutputs}, steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(weight), sizes, row_bytes, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return failure(StatusCode::kCudaError, "cuTensorMapEncodeTiled: error " + std::to_string(result));
  FewRowsWeight described{.out_features = out_features, .in_features = in_features};
  std::memcpy(described.map.data(), &map, sizeof(map));
  return described;
}

Status FewRows::multiply(const FewRowsArgs& args, void* stream) const {
  const FewRowsWeight& weight = *args.weight;
  FewRowsParams params{.x = static_cast<const __nv_bfloat16*>(args.x),
                       .y = args.y,
                       .sums = sums_.as<float4>(),
                       .out_features = static_cast<int32_t>(weight.out_features),
                       .in_features = static_cast<int32_t>(weight.in_features),
                       .num_rows = static_cast<int32_t>(args.num_rows),
                       .output = args.output};
  std::memcpy(&params.weight, weight.map.data(), sizeof(params.weight));
  if (args.num_rows <= Rows8::kRows) return launch_few_rows<Rows8>(params, num_multiprocessors_, stream);
  if (args.num_rows <= Rows16::kRows) return launch_few_rows<Rows16>(params, num_multiprocessors_, stream);
  return launch_few_rows<Rows32>(params, num_multiprocessors_, stream);
}

}  // namespace kvant::ops::cuda
