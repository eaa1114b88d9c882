#include "kvant/attn/kv_layout.h"

#include <bit>

#include <fmt/format.h>

namespace kvant::attn {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status check_head_dim(std::string_view which, int32_t head_dim, const KvLimits& limits) {
  if (head_dim >= limits.min_head_dim && head_dim <= limits.max_head_dim && head_dim % limits.head_dim_multiple == 0)
    return {};
  return invalid(fmt::format("{} {} is outside the limits: a multiple of {} from {} to {} is needed", which, head_dim,
                             limits.head_dim_multiple, limits.min_head_dim, limits.max_head_dim));
}

std::string_view scale_order_name(ScaleOrder order) {
  switch (order) {
    case ScaleOrder::kLinear: return "";
    case ScaleOrder::kSm10xV: return " sm10x-v-scales";
    case ScaleOrder::kLanes: return " lane-scales";
  }
  return "";
}

}  // namespace

Status KvLayout::validate() const {
  const KvLimits& limits = kCpuKvLimits;
  KVANT_RETURN_IF_ERROR(check_head_dim("head_dim_k", head_dim_k, limits));
  KVANT_RETURN_IF_ERROR(check_head_dim("head_dim_v", head_dim_v, limits));
  if (num_kv_heads < 1) return invalid(fmt::format("num_kv_heads {} must be at least 1", num_kv_heads));
  if (page_size < limits.min_page_size || page_size > limits.max_page_size ||
      !std::has_single_bit(static_cast<uint32_t>(page_size))) {
    return invalid(fmt::format("page size {} must be a power of two from {} to {}", page_size, limits.min_page_size,
                               limits.max_page_size));
  }
  const bool has_scale_plane = info(k_format).scale_block != 0 || info(v_format).scale_block != 0;
  if (plane_order == PlaneOrder::kInterleaved && has_scale_plane) {
    return invalid(fmt::format("interleaved planes need formats without block scales, not {}/{}; use split planes",
                               info(k_format).name, info(v_format).name));
  }
  if (scale_order == ScaleOrder::kSm10xV) {
    if (v_format != KvFormat::kNvfp4) {
      return invalid(fmt::format("the SM10x V-scale order needs v format nvfp4, not {}", info(v_format).name));
    }
    if (page_size % 4 != 0 || head_dim_v % 64 != 0) {
      return invalid(fmt::format(
          "the SM10x V-scale order needs page size % 4 = 0 and head_dim_v % 64 = 0, not page {} and head_dim_v {}",
          page_size, head_dim_v));
    }
  }
  if (scale_order == ScaleOrder::kLanes) {
    if (!has_scale_plane) {
      return invalid(fmt::format("the lane scale order needs an nvfp4 plane, not {}/{}; use the linear scale order",
                                 info(k_format).name, info(v_format).name));
    }
    if (page_size % 16 != 0) {
      return invalid(
          fmt::format("the lane scale order needs pages of 16 tokens or a multiple, not {}; use larger "
                      "pages or the linear scale order",
                      page_size));
    }
  }
  return {};
}

std::string KvLayout::to_string() const {
  return fmt::format("k={}/v={} d={}/{} heads={} page={} {}{}{}{}", info(k_format).name, info(v_format).name,
                     head_dim_k, head_dim_v, num_kv_heads, page_size, order == TokenHeadOrder::kNhd ? "NHD" : "HND",
                     code_order == CodeOrder::kPacked ? " packed" : "", scale_order_name(scale_order),
                     plane_order == PlaneOrder::kInterleaved ? " interleaved" : "");
}

}  // namespace kvant::attn
