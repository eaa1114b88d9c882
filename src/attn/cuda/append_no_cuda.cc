#include <fmt/format.h>

#include "attn/cuda/append.h"

namespace kvant::attn::cuda {
namespace {

Status unsupported(std::string_view call) {
  return {StatusCode::kUnsupported,
          fmt::format("{} on a CUDA stream needs a build with CUDA; this build offers the CPU (Stream::on_cpu)", call)};
}

}  // namespace

Status append(const AppendArgs&, void*) { return unsupported("append"); }
Status age_pages(const AgeArgs&, void*) { return unsupported("age_pages"); }
Status convert_pages(const KvLayout&, KvPool, const KvLayout&, KvPool, void*) { return unsupported("convert_pages"); }
Status dequantise(const KvCacheView&, std::span<const int64_t>, float*, float*, void*) {
  return unsupported("dequantise");
}

}  // namespace kvant::attn::cuda
