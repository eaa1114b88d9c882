#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attn/common/kernel_rows.h"
#include "kvant/attn/kernel_table.h"

namespace kvant::attn {
namespace {

constexpr std::array kFamilies{DeviceFamily::kCpu,   DeviceFamily::kSm8x,  DeviceFamily::kSm90,
                               DeviceFamily::kSm10x, DeviceFamily::kSm11x, DeviceFamily::kSm12x};

std::string_view parts_of(DeviceFamily family) {
  switch (family) {
    case DeviceFamily::kCpu: return "x86-64, ARM64";
    case DeviceFamily::kSm8x: return "8.0, 8.6, 8.7, 8.9";
    case DeviceFamily::kSm90: return "9.0";
    case DeviceFamily::kSm10x: return "10.0, 10.3";
    case DeviceFamily::kSm11x: return "11.0";
    case DeviceFamily::kSm12x: return "12.0, 12.1";
  }
  return "?";
}

std::string_view or_dash(std::string_view text) { return text.empty() ? "-" : text; }

std::string kernel_line(const KernelRow& row) {
  const KvLimits& limits = row.limits;
  return fmt::format("| {} | {} | `{}` | {} | {} to {}, step {} | up to {} | {} to {} | {} | {} | {} |\n",
                     to_string(row.op), to_string(row.family), row.name, to_string(row.formats), limits.min_head_dim,
                     limits.max_head_dim, limits.head_dim_multiple, limits.max_group_size, limits.min_page_size,
                     limits.max_page_size, to_string(row.graph), or_dash(row.verified_on), or_dash(row.compiled_for));
}

std::string kernels_section(const KernelTable& table) {
  std::string text =
      "## Kernels\n\n"
      "| work | device | kernel | formats | head dims | query heads per KV head | page sizes (powers of two) | CUDA "
      "graphs | verified on | built for, not run |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const KernelRow& row : table.rows) text += kernel_line(row);
  return text;
}

// Rows by kernel: families that share one differ in evidence only.
std::vector<const KernelRow*> distinct_kernels(const KernelTable& table) {
  std::vector<const KernelRow*> kernels;
  for (const KernelRow& row : table.rows) {
    const auto same = [&row](const KernelRow* other) {
      return other->op == row.op && other->name == row.name && other->features == row.features;
    };
    if (std::ranges::none_of(kernels, same)) kernels.push_back(&row);
  }
  return kernels;
}

std::string features_section(const KernelTable& table) {
  const std::vector<const KernelRow*> kernels = distinct_kernels(table);
  std::string head = "| option |";
  std::string rule = "| --- |";
  for (const KernelRow* row : kernels) {
    head += fmt::format(" {}: `{}` |", to_string(row->op), row->name);
    rule += " --- |";
  }
  std::string text = fmt::format(
      "## Options\n\nA dash means that the option does not concern the kernel; a kernel never drops one that does.\n\n"
      "{}\n{}\n",
      head, rule);
  for (int i = 0; i < kNumAttnFeatures; ++i) {
    const AttnFeature feature = static_cast<AttnFeature>(i);
    text += fmt::format("| {} |", to_string(feature));
    for (const KernelRow* row : kernels) {
      const bool concerned = features_of(row->op).contains(feature);
      text += row->features.contains(feature) ? " yes |" : concerned ? " no |" : " - |";
    }
    text += '\n';
  }
  return text;
}

// The best row of an op for a format: a verified one, else any.
const KernelRow* best_row(const KernelTable& table, AttnOp op, DeviceFamily family, KvFormat format) {
  const KernelRow* best = nullptr;
  for (const KernelRow& row : table.rows) {
    if (row.op != op || row.family != family || !row.formats.contains(format)) continue;
    if (best == nullptr || (best->verified_on.empty() && !row.verified_on.empty())) best = &row;
  }
  return best;
}

// A cache format needs append, decode and prefill, so the weakest of the three counts.
std::string evidence_for(const KernelTable& table, DeviceFamily family, KvFormat format) {
  bool all_verified = true;
  std::vector<std::string_view> places;
  for (AttnOp op : {AttnOp::kAppend, AttnOp::kDecode, AttnOp::kPrefill}) {
    const KernelRow* row = best_row(table, op, family, format);
    if (row == nullptr) return "not built yet";
    all_verified = all_verified && !row->verified_on.empty();
    if (std::ranges::find(places, row->verified_on) == places.end()) places.push_back(row->verified_on);
  }
  return all_verified ? fmt::format("verified on {}", fmt::join(places, "; ")) : "built, not run";
}

std::string devices_section(const KernelTable& table) {
  std::string text =
      "## Devices\n\nA cell covers append, decode, verify and prefill together and shows the weakest of them. (f32 is "
      "a "
      "format for tests on the CPU.)\n\n"
      "| device | parts |";
  std::string rule = "| --- | --- |";
  for (const KvFormatInfo& format : kKvFormats) {
    if (format.format == KvFormat::kF32) continue;
    text += fmt::format(" {} |", format.name);
    rule += " --- |";
  }
  text += '\n' + rule + '\n';
  for (DeviceFamily family : kFamilies) {
    text += fmt::format("| {} | {} |", kvant::to_string(family), parts_of(family));
    for (const KvFormatInfo& format : kKvFormats) {
      if (format.format == KvFormat::kF32) continue;
      text += fmt::format(" {} |", evidence_for(table, family, format.format));
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string support_matrix_markdown(const KernelTable& table) {
  return fmt::format(
      "# Support matrix\n\n"
      "Generated from the kernel table in `src/attn/common/kernel_rows.h`; do not edit. A test compares this page with "
      "the table, and `KVANT_REGENERATE=1 ctest -R SupportMatrix` writes it anew.\n\n{}\n{}\n{}",
      devices_section(table), kernels_section(table), features_section(table));
}

}  // namespace kvant::attn
