// Writes cache bytes for cases that tests/golden/kv_model.py made, so that the two can be compared.
// kv_bytes IN OUT. IN is a sequence of cases: the struct below, then fp32 arrays mu, z, zi [heads, head_dim_k] and k, v
// [tokens, heads, head_dim] of the case's dtype. OUT receives the case's pages, one after another, without gaps.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "attn/kv/conditioning.h"
#include "kvant/attn/append.h"
#include "kvant/core/thread_pool.h"

namespace kvant::attn {
namespace {

enum class Mode : int32_t { kBasePages, kExactPages, kAgedPages, kQueries };

struct Case {
  int32_t mode, k_format, v_format, policy, conditioning, code_order, scale_order, plane_order, row_order;
  int32_t head_dim_k, head_dim_v, num_heads, page_size, num_pages, dtype;
  float k_scale, v_scale;
};

template <class T>
std::vector<T> read_array(std::ifstream& in, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

void write_bytes(std::ofstream& out, const void* data, size_t count) {
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(count));
}

Status run_case(const Case& c, std::ifstream& in, std::ofstream& out, Stream stream) {
  const KvLayout layout{.k_format = static_cast<KvFormat>(c.k_format),
                        .v_format = static_cast<KvFormat>(c.v_format),
                        .head_dim_k = c.head_dim_k,
                        .head_dim_v = c.head_dim_v,
                        .num_kv_heads = c.num_heads,
                        .page_size = c.page_size,
                        .order = static_cast<TokenHeadOrder>(c.row_order),
                        .code_order = static_cast<CodeOrder>(c.code_order),
                        .scale_order = static_cast<ScaleOrder>(c.scale_order),
                        .plane_order = static_cast<PlaneOrder>(c.plane_order)};
  KVANT_RETURN_IF_ERROR(layout.validate());
  const Mode mode = static_cast<Mode>(c.mode);
  const DType dtype = static_cast<DType>(c.dtype);
  const ScalePolicy policy = static_cast<ScalePolicy>(c.policy);
  const int64_t num_tokens = int64_t{c.num_pages} * c.page_size;
  const auto mu = read_array<float>(in, int64_t{c.num_heads} * c.head_dim_k);
  const auto z = read_array<float>(in, int64_t{c.num_heads} * c.head_dim_k);
  const auto zi = read_array<float>(in, int64_t{c.num_heads} * c.head_dim_k);
  const auto k = read_array<std::byte>(in, num_tokens * c.num_heads * c.head_dim_k * dtype_bytes(dtype));
  const auto v = read_array<std::byte>(in, num_tokens * c.num_heads * c.head_dim_v * dtype_bytes(dtype));
  const KeyConditioner conditioner{static_cast<KeyConditioning>(c.conditioning), mu.data(), z.data(), zi.data()};

  if (mode == Mode::kQueries) {  // k holds fp32 queries.
    std::vector<float> q(k.size() / sizeof(float));
    std::memcpy(q.data(), k.data(), k.size());
    for (int64_t row = 0; row < num_tokens * c.num_heads; ++row) {
      float* query = q.data() + row * c.head_dim_k;
      const auto head = static_cast<int32_t>(row % c.num_heads);
      const float bias = query_bias(conditioner, head, c.head_dim_k, query);
      condition_query(conditioner, head, c.head_dim_k, query);
      write_bytes(out, &bias, sizeof(bias));
      write_bytes(out, query, static_cast<size_t>(c.head_dim_k) * sizeof(float));
    }
    return {};
  }

  std::vector<std::byte> base(static_cast<size_t>(c.num_pages * layout.page_bytes()));
  std::vector<std::byte> exact(static_cast<size_t>(c.num_pages * layout.exact().page_bytes()));
  const KvCacheView cache{.layout = layout,
                          .base = {base.data(), c.num_pages, layout.page_bytes()},
                          .exact = {exact.data(), c.num_pages, layout.exact().page_bytes()},
                          .scales = {&c.k_scale, &c.v_scale, 1},
                          .conditioner = conditioner};
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < num_tokens; ++slot)
    slots.push_back(mode == Mode::kBasePages ? slot : slot | kExactSlotBit);
  KVANT_RETURN_IF_ERROR(append({.cache = cache,
                                .policy = policy,
                                .k = k.data(),
                                .v = v.data(),
                                .dtype = dtype,
                                .slots = slots.data(),
                                .num_tokens = num_tokens},
                               stream));
  if (mode == Mode::kAgedPages) {
    std::vector<PageAge> ages;
    for (int32_t page = 0; page < c.num_pages; ++page) ages.push_back({page, page});
    KVANT_RETURN_IF_ERROR(
        age_pages({.cache = cache, .policy = policy, .ages = ages.data(), .num_ages = c.num_pages}, stream));
  }
  const std::vector<std::byte>& pages = mode == Mode::kExactPages ? exact : base;
  write_bytes(out, pages.data(), pages.size());
  return {};
}

}  // namespace
}  // namespace kvant::attn

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: kv_bytes IN OUT\n", stderr);
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);
  kvant::ThreadPool pool(1);
  kvant::attn::Case c{};
  while (in.read(reinterpret_cast<char*>(&c), sizeof(c))) {
    const kvant::Status status = kvant::attn::run_case(c, in, out, kvant::Stream::on_cpu(pool));
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.to_string().c_str());
      return 1;
    }
  }
  return out.flush() ? 0 : 1;
}
