#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "core/mmap_file.h"
#include "file_io.h"
#include "kv_layout_options.h"
#include "kvant/attn/append.h"
#include "kvant/attn/kv_cache.h"
#include "kvant/core/stream.h"
#include "kvant/core/thread_pool.h"

namespace kvant::cli {
namespace {

struct CodecOptions {
  std::string format;
  int32_t head_dim = 0;
  float scale = 1.0f;
  std::string policy = "amax";
  std::string order = "linear";
  std::string in;
  std::string out;
};

constexpr const char* kQuantizeExamples =
    "  kvant kv quantize --format nvfp4 --head-dim 128 --scale 0.01 --in rows.f32 --out rows.nvfp4\n"
    "  kvant kv quantize --format nvfp4 --head-dim 128 --policy search --order packed --in rows.f32 --out rows.bin\n";
constexpr const char* kDequantizeExamples =
    "  kvant kv dequantize --format nvfp4 --head-dim 128 --scale 0.01 --in rows.nvfp4 --out rows.f32\n";

void add_codec_options(CLI::App& app, CodecOptions& options) {
  app.add_option("--format", options.format, "f32, f16, bf16, e4m3 (fp8), e5m2 or nvfp4")->required()->type_name("F");
  app.add_option("--head-dim", options.head_dim, "Elements of a row")->required()->type_name("D");
  app.add_option("--scale", options.scale, "Global dequantisation scale g")->capture_default_str()->type_name("G");
  app.add_option("--order", options.order, "Code order of nvfp4: linear or packed")
      ->capture_default_str()
      ->type_name("ORDER");
  app.add_option("--in", options.in, "Input file")->required()->type_name("FILE");
  app.add_option("--out", options.out, "Output file")->required()->type_name("FILE");
}

void add_quantize_options(CLI::App& app, CodecOptions& options) {
  add_codec_options(app, options);
  app.add_option("--policy", options.policy, "Scale policy of nvfp4: amax, four_over_six or search")
      ->capture_default_str()
      ->type_name("P");
}

/// One row per token and one head, so that a file of rows is a cache whose planes are concatenated over pages.
/// V takes the smallest room a layout allows; files hold K only.
Result<attn::KvLayout> row_layout(const CodecOptions& options) {
  attn::KvLayout layout;
  KVANT_ASSIGN_OR_FAIL(layout.k_format, format_from(options.format));
  KVANT_ASSIGN_OR_FAIL(layout.code_order, code_order_from(options.order));
  layout.v_format = attn::KvFormat::kF16;
  layout.head_dim_k = options.head_dim;
  layout.head_dim_v = attn::kCpuKvLimits.min_head_dim;
  layout.num_kv_heads = 1;
  layout.page_size = attn::kCpuKvLimits.max_page_size;
  KVANT_FAIL_IF_ERROR(layout.validate());
  const attn::KvFormatInfo& format = info(layout.k_format);
  if (layout.code_order == attn::CodeOrder::kPacked && layout.k_format != attn::KvFormat::kNvfp4) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("code order packed needs format nvfp4, not {}", format.name));
  }
  if (!(std::isfinite(options.scale) && options.scale > 0)) {
    return failure(StatusCode::kInvalidArgument, fmt::format("--scale {} must be above 0 and finite", options.scale));
  }
  if (!format.quantised && options.scale != 1.0f) {
    return failure(StatusCode::kInvalidArgument,
                   fmt::format("--scale {} does not apply to {}: only quantised formats have a scale", options.scale,
                               format.name));
  }
  return layout;
}

/// Rows in a file of `bytes`, each of `row_bytes`; refuses an empty file or a partial row.
Result<int64_t> count_rows(const std::string& file, size_t bytes, int64_t row_bytes) {
  const auto size = static_cast<int64_t>(bytes);
  if (size > 0 && size % row_bytes == 0) return size / row_bytes;
  return failure(
      StatusCode::kDataLoss,
      fmt::format("'{}' holds {} bytes, not a multiple (1 or more) of the {} bytes of a row", file, size, row_bytes));
}

/// A cache in memory that holds `num_rows` tokens, and the copies between it and a file's planes.
class RowCache {
 public:
  RowCache(const attn::KvLayout& layout, int64_t num_rows, float scale)
      : layout_(layout), num_rows_(num_rows), scale_(scale) {
    const int64_t num_pages = (num_rows + layout.page_size - 1) / layout.page_size;
    memory_.resize(static_cast<size_t>(num_pages * layout.page_bytes()));
    view_.layout = layout;
    view_.base = {.data = memory_.data(), .num_pages = num_pages, .page_stride = layout.page_bytes()};
    if (info(layout.k_format).quantised) view_.scales = {.k = &scale_, .v = nullptr, .count = 1};
    slots_.resize(static_cast<size_t>(num_rows));
    std::iota(slots_.begin(), slots_.end(), int64_t{0});
  }
  RowCache(const RowCache&) = delete;  // view_ points into this object.
  RowCache& operator=(const RowCache&) = delete;

  const attn::KvCacheView& view() const { return view_; }
  const std::vector<int64_t>& slots() const { return slots_; }

  /// File: all data rows, then all scale rows.
  std::vector<std::byte> to_file() const {
    std::vector<std::byte> file(static_cast<size_t>(num_rows_ * (layout_.k_row_bytes() + layout_.k_scale_row_bytes())));
    for (int64_t row = 0; row < num_rows_; ++row) {
      std::memcpy(file.data() + file_data(row), memory_.data() + cache_data(row), data_bytes());
      std::memcpy(file.data() + file_scale(row), memory_.data() + cache_scale(row), scale_bytes());
    }
    return file;
  }
  void from_file(const std::byte* file) {
    for (int64_t row = 0; row < num_rows_; ++row) {
      std::memcpy(memory_.data() + cache_data(row), file + file_data(row), data_bytes());
      std::memcpy(memory_.data() + cache_scale(row), file + file_scale(row), scale_bytes());
    }
  }

 private:
  size_t data_bytes() const { return static_cast<size_t>(layout_.k_row_bytes()); }
  size_t scale_bytes() const { return static_cast<size_t>(layout_.k_scale_row_bytes()); }
  int64_t file_data(int64_t row) const { return row * layout_.k_row_bytes(); }
  int64_t file_scale(int64_t row) const {
    return num_rows_ * layout_.k_row_bytes() + row * layout_.k_scale_row_bytes();
  }
  int64_t page(int64_t row) const { return row / layout_.page_size * layout_.page_bytes(); }
  int32_t token(int64_t row) const { return static_cast<int32_t>(row % layout_.page_size); }
  int64_t cache_data(int64_t row) const { return page(row) + layout_.k_row(0, token(row)); }
  int64_t cache_scale(int64_t row) const { return page(row) + layout_.k_scale(0, token(row), 0); }

  attn::KvLayout layout_;
  int64_t num_rows_;
  float scale_;
  std::vector<std::byte> memory_;
  std::vector<int64_t> slots_;
  attn::KvCacheView view_;
};

Status quantize(const CodecOptions& options) {
  KVANT_ASSIGN_OR_RETURN(const attn::KvLayout layout, row_layout(options));
  KVANT_ASSIGN_OR_RETURN(const attn::ScalePolicy policy, policy_from(options.policy));
  KVANT_ASSIGN_OR_RETURN(const MmapFile file, MmapFile::open(options.in));
  KVANT_ASSIGN_OR_RETURN(const int64_t num_rows,
                         count_rows(options.in, file.bytes().size(), int64_t{4} * layout.head_dim_k));
  const std::vector<float> unused_v(static_cast<size_t>(num_rows * layout.head_dim_v));
  const RowCache cache(layout, num_rows, options.scale);
  ThreadPool pool(0);
  const attn::AppendArgs args{.cache = cache.view(),
                              .policy = policy,
                              .k = file.bytes().data(),
                              .v = unused_v.data(),
                              .slots = cache.slots().data(),
                              .num_tokens = num_rows};
  KVANT_RETURN_IF_ERROR(attn::append(args, Stream::on_cpu(pool)));
  return write_atomically(options.out, cache.to_file());
}

Status dequantize(const CodecOptions& options) {
  KVANT_ASSIGN_OR_RETURN(const attn::KvLayout layout, row_layout(options));
  KVANT_ASSIGN_OR_RETURN(const MmapFile file, MmapFile::open(options.in));
  KVANT_ASSIGN_OR_RETURN(const int64_t num_rows, count_rows(options.in, file.bytes().size(),
                                                            layout.k_row_bytes() + layout.k_scale_row_bytes()));
  RowCache cache(layout, num_rows, options.scale);
  cache.from_file(file.bytes().data());
  std::vector<float> rows(static_cast<size_t>(num_rows * layout.head_dim_k));
  std::vector<float> unused_v(static_cast<size_t>(num_rows * layout.head_dim_v));
  ThreadPool pool(0);
  KVANT_RETURN_IF_ERROR(
      attn::dequantise(cache.view(), cache.slots(), rows.data(), unused_v.data(), Stream::on_cpu(pool)));
  return write_atomically(options.out, std::as_bytes(std::span(rows)));
}

static_assert(std::endian::native == std::endian::little, "row files are little-endian, as memory is here");

}  // namespace

void add_kv_quantize(CLI::App& parent, Action& action) {
  add_command<CodecOptions>(parent, action, "quantize",
                            "Little-endian f32 rows to cache bytes: all data rows, then all scale rows",
                            kQuantizeExamples, add_quantize_options, quantize);
}

void add_kv_dequantize(CLI::App& parent, Action& action) {
  add_command<CodecOptions>(parent, action, "dequantize", "Cache bytes to little-endian f32 rows", kDequantizeExamples,
                            add_codec_options, dequantize);
}

}  // namespace kvant::cli
