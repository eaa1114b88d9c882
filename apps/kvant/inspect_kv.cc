#include <cstdint>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "command.h"
#include "json_output.h"
#include "kv_layout_options.h"
#include "kvant/attn/kv_layout.h"

namespace kvant::cli {
namespace {

struct InspectKvOptions {
  std::string format;
  std::string v_format;
  int32_t head_dim = 128;
  int32_t head_dim_v = 0;
  int32_t kv_heads = 8;
  int32_t page = 16;
  std::string axes = "nhd";
  std::string order = "linear";
  std::string scale_order = "linear";
  std::string planes = "split";
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant inspect kv --format nvfp4 --head-dim 128 --kv-heads 8 --page 16\n"
    "  kvant inspect kv --format e4m3 --v-format nvfp4 --head-dim 64 --kv-heads 3 --page 16 --json\n";

void add_options(CLI::App& app, InspectKvOptions& options) {
  app.add_option("--format", options.format, "Format of K and V: f32, f16, bf16, e4m3 (fp8), e5m2 or nvfp4")
      ->required()
      ->type_name("F");
  app.add_option("--v-format", options.v_format, "Format of V where it differs")->type_name("F");
  app.add_option("--head-dim", options.head_dim, "Elements of a head")->capture_default_str()->type_name("D");
  app.add_option("--head-dim-v", options.head_dim_v, "Elements of a V head where it differs")->type_name("D");
  app.add_option("--kv-heads", options.kv_heads, "KV heads")->capture_default_str()->type_name("H");
  app.add_option("--page", options.page, "Tokens per page")->capture_default_str()->type_name("N");
  app.add_option("--axes", options.axes, "Order of token and head: nhd or hnd")
      ->capture_default_str()
      ->check(CLI::IsMember({"nhd", "hnd"}));
  app.add_option("--order", options.order, "Code order of nvfp4: linear or packed")
      ->capture_default_str()
      ->type_name("ORDER");
  app.add_option("--scale-order", options.scale_order, "Order of V scales: linear or sm10x")
      ->capture_default_str()
      ->check(CLI::IsMember({"linear", "sm10x"}));
  app.add_option("--planes", options.planes, "split (K, then V) or interleaved (K row, V row)")
      ->capture_default_str()
      ->check(CLI::IsMember({"split", "interleaved"}));
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
}

Result<attn::KvLayout> make_layout(const InspectKvOptions& options) {
  attn::KvLayout layout;
  KVANT_ASSIGN_OR_FAIL(layout.k_format, format_from(options.format));
  KVANT_ASSIGN_OR_FAIL(layout.v_format, format_from(options.v_format.empty() ? options.format : options.v_format));
  KVANT_ASSIGN_OR_FAIL(layout.code_order, code_order_from(options.order));
  layout.head_dim_k = options.head_dim;
  layout.head_dim_v = options.head_dim_v == 0 ? options.head_dim : options.head_dim_v;
  layout.num_kv_heads = options.kv_heads;
  layout.page_size = options.page;
  layout.order = options.axes == "nhd" ? attn::TokenHeadOrder::kNhd : attn::TokenHeadOrder::kHnd;
  layout.scale_order = options.scale_order == "linear" ? attn::ScaleOrder::kLinear : attn::ScaleOrder::kSm10xV;
  layout.plane_order = options.planes == "split" ? attn::PlaneOrder::kSplit : attn::PlaneOrder::kInterleaved;
  KVANT_FAIL_IF_ERROR(layout.validate());
  return layout;
}

/// Byte of the first scale; null where the format has no scales.
Json scale_offset(int64_t row_bytes, int64_t offset) { return row_bytes == 0 ? Json() : Json(offset); }

Status run(const InspectKvOptions& options) {
  KVANT_ASSIGN_OR_RETURN(const attn::KvLayout layout, make_layout(options));
  const Json offsets = {{"k_data", layout.k_row(0, 0)},
                        {"k_scale", scale_offset(layout.k_scale_row_bytes(), layout.k_scale_plane())},
                        {"v_data", layout.v_row(0, 0)},
                        {"v_scale", scale_offset(layout.v_scale_row_bytes(), layout.v_scale_plane())}};
  if (options.json) {
    print_json(
        {{"page_bytes", layout.page_bytes()}, {"bytes_per_token", layout.bytes_per_token()}, {"offsets", offsets}});
    return {};
  }
  std::printf("%s\n", layout.to_string().c_str());
  std::printf("page bytes       %lld\n", static_cast<long long>(layout.page_bytes()));
  std::printf("bytes per token  %lld\n", static_cast<long long>(layout.bytes_per_token()));
  for (const auto& [name, offset] : offsets.items())
    std::printf("%-15s  %s\n", name.c_str(), offset.is_null() ? "-" : offset.dump().c_str());
  return {};
}

}  // namespace

void add_inspect_kv(CLI::App& parent, Action& action) {
  add_command<InspectKvOptions>(parent, action, "kv", "Sizes and offsets of a KV cache page", kExamples, add_options,
                                run);
}

}  // namespace kvant::cli
