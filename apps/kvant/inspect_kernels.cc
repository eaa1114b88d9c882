#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "command.h"
#include "json_output.h"
#include "kvant/attn/kernel_table.h"
#include "kvant/core/device.h"

namespace kvant::cli {
namespace {

struct InspectKernelsOptions {
  bool markdown = false;
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant inspect kernels\n"
    "  kvant inspect kernels --json\n"
    "  kvant inspect kernels --markdown\n";

void add_options(CLI::App& app, InspectKernelsOptions& options) {
  auto* markdown = app.add_flag("--markdown", options.markdown, "Print the page docs/support_matrix.md");
  app.add_flag("--json", options.json, "Print one JSON object instead of text")->excludes(markdown);
}

Json describe(const attn::KernelRow& row) {
  return {{"name", row.name},
          {"op", to_string(row.op)},
          {"device", to_string(row.family)},
          {"formats", to_string(row.formats)},
          {"head_dim_min", row.limits.min_head_dim},
          {"head_dim_max", row.limits.max_head_dim},
          {"head_dim_multiple", row.limits.head_dim_multiple},
          {"page_min", row.limits.min_page_size},
          {"page_max", row.limits.max_page_size},
          {"max_group_size", row.limits.max_group_size},
          {"features", to_string(row.features)},
          {"graphs", to_string(row.graph)},
          {"verified_on", row.verified_on},
          {"compiled_for", row.compiled_for}};
}

Status run(const InspectKernelsOptions& options) {
  const attn::KernelTable table = attn::kernel_table();
  if (options.markdown) {
    std::fputs(attn::support_matrix_markdown(table).c_str(), stdout);
    return {};
  }
  if (options.json) {
    Json json = {{"device", cpu_device().name}, {"cuda", table.has_cuda}, {"kernels", Json::array()}};
    for (const attn::KernelRow& row : table.rows) json["kernels"].push_back(describe(row));
    print_json(json);
    return {};
  }
  std::printf("this machine: %s; CUDA: %s\n\n", cpu_device().name.c_str(), table.has_cuda ? "built" : "not built");
  std::printf("%-18s %-7s %-26s %-10s %-12s %s\n", "work", "device", "kernel", "head dims", "verified on", "formats");
  for (const attn::KernelRow& row : table.rows) {
    const std::string head_dims = fmt::format("{}-{}", row.limits.min_head_dim, row.limits.max_head_dim);
    const std::string line =
        fmt::format("{:<18} {:<7} {:<26} {:<10} {:<12} {}", to_string(row.op), to_string(row.family), row.name,
                    head_dims, row.verified_on, to_string(row.formats));
    std::printf("%s\n", line.c_str());
  }
  return {};
}

}  // namespace

void add_inspect_kernels(CLI::App& parent, Action& action) {
  add_command<InspectKernelsOptions>(parent, action, "kernels", "Attention kernels of this build and what they can do",
                                     kExamples, add_options, run);
}

}  // namespace kvant::cli
