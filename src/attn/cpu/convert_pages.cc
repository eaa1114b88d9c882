#include <cstring>
#include <functional>

#include "attn/cpu/append.h"
#include "attn/kv/e2m1.h"

namespace kvant::attn::cpu {
namespace {

/// Copies a data row; NVFP4 codes may change their places in each 32-bit word.
void copy_row(KvFormat format, CodeOrder from_order, CodeOrder to_order, const uint8_t* from, uint8_t* to,
              int64_t row_bytes) {
  if (format != KvFormat::kNvfp4 || from_order == to_order) {
    std::memcpy(to, from, static_cast<size_t>(row_bytes));
    return;
  }
  for (int64_t at = 0; at < row_bytes; at += 4) {
    uint32_t word;
    std::memcpy(&word, from + at, sizeof(word));
    word = to_order == CodeOrder::kPacked ? linear_to_packed(word) : packed_to_linear(word);
    std::memcpy(to + at, &word, sizeof(word));
  }
}

void convert_page(const KvLayout& from_layout, const uint8_t* from, const KvLayout& to_layout, uint8_t* to) {
  for (int32_t head = 0; head < from_layout.num_kv_heads; ++head) {
    for (int32_t token = 0; token < from_layout.page_size; ++token) {
      copy_row(from_layout.k_format, from_layout.code_order, to_layout.code_order,
               from + from_layout.k_row(head, token), to + to_layout.k_row(head, token), from_layout.k_row_bytes());
      copy_row(from_layout.v_format, from_layout.code_order, to_layout.code_order,
               from + from_layout.v_row(head, token), to + to_layout.v_row(head, token), from_layout.v_row_bytes());
      for (int32_t block = 0; block < from_layout.k_scale_row_bytes(); ++block)
        to[to_layout.k_scale(head, token, block)] = from[from_layout.k_scale(head, token, block)];
      for (int32_t block = 0; block < from_layout.v_scale_row_bytes(); ++block)
        to[to_layout.v_scale(head, token, block)] = from[from_layout.v_scale(head, token, block)];
    }
  }
}

}  // namespace

Status convert_pages(const KvLayout& from_layout, KvPool from, const KvLayout& to_layout, KvPool to, ThreadPool& pool) {
  const auto convert = [&](int64_t page, int) {
    convert_page(from_layout, reinterpret_cast<const uint8_t*>(from.data) + page * from.page_stride, to_layout,
                 reinterpret_cast<uint8_t*>(to.data) + page * to.page_stride);
  };
  pool.parallel_for(from.num_pages, std::cref(convert));  // By reference: nothing is allocated.
  return {};
}

}  // namespace kvant::attn::cpu
