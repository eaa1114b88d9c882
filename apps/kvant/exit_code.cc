#include "exit_code.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace kvant::cli {

ExitCode exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return ExitCode::kOk;
    case StatusCode::kInvalidArgument: return ExitCode::kUsage;
    case StatusCode::kUnsupported: return ExitCode::kUnsupported;
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kResourceExhausted:
    case StatusCode::kCudaError:
    case StatusCode::kInternal: return ExitCode::kFailed;
  }
  return ExitCode::kFailed;
}

void print_error(const std::string& message) {
  std::string line = message;
  // Names from files and command lines may hold control characters; an error stays one line.
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  std::fprintf(stderr, "kvant: error: %s\n", line.c_str());
}

}  // namespace kvant::cli
