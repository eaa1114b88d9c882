#pragma once

#include "kvant/core/status.h"

namespace kvant::cli {

/// Exit codes of every subcommand, as docs/cli.md lists them.
enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,       ///< A file, the data in it, or memory let us down.
  kUsage = 2,        ///< The command line asks for something that makes no sense.
  kUnsupported = 3,  ///< It makes sense, but this build or machine does not offer it.
  kInterrupted = 130,
};

ExitCode exit_code_of(StatusCode code);

/// Prints "kvant: error: ..." as one line on stderr.
void print_error(const std::string& message);

}  // namespace kvant::cli
