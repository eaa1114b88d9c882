#include "kvant/core/status.h"

#include <cstdio>
#include <cstdlib>

namespace kvant {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kDataLoss: return "corrupt data";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kCudaError: return "CUDA error";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown status code";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(kvant::to_string(code_)) + ": " + message_;
}

namespace detail {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "kvant: internal check failed: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace detail
}  // namespace kvant
