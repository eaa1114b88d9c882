// Attention on a CUDA device against a plain read of the same bytes, as JSON:
//   bench_attention_cuda --suite h200 --json FILE --commit $(git rev-parse --short HEAD) --date 2026-11-29
// bench/suite/attention_suite.h says what the options mean.

#include <cstdio>
#include <string>
#include <string_view>

#include "attention_suite.h"

int main(int argc, char** argv) {
  kvant::bench::AttentionSuiteOptions options;
  std::string path;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--suite") options.suite = argv[i + 1];
    if (name == "--commit") options.commit = argv[i + 1];
    if (name == "--date") options.date = argv[i + 1];
    if (name == "--shapes") options.shapes = argv[i + 1];
    if (name == "--json") path = argv[i + 1];
  }
  std::FILE* out = path.empty() ? stdout : std::fopen(path.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "%s cannot be written\n", path.c_str());
    return 1;
  }
  const kvant::Status status = kvant::bench::run_attention_suite(options, [&](const std::string& text) {
    std::fputs(text.c_str(), out);
    std::fflush(out);
  });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  if (out != stdout && std::fclose(out) != 0) return 1;
  return status.ok() ? 0 : 1;
}
