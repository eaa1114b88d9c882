#include <cstdio>
#include <vector>

#include <kvant/attn/append.h>
#include <kvant/attn/kv_cache.h>
#include <kvant/core/thread_pool.h>

// Writes one token to an NVFP4 page and reads it back.
int main() {
  using namespace kvant;
  attn::KvCacheView cache;
  cache.layout.k_format = cache.layout.v_format = attn::KvFormat::kNvfp4;
  std::vector<std::byte> page(static_cast<size_t>(cache.layout.page_bytes()));
  cache.base = {.data = page.data(), .num_pages = 1, .page_stride = cache.layout.page_bytes()};

  const std::vector<float> row(128, 1.5f);
  const int64_t slot = 3;
  ThreadPool pool(1);
  attn::AppendArgs args;
  args.cache = cache;
  args.k = args.v = row.data();
  args.slots = &slot;
  args.num_tokens = 1;
  if (const Status status = attn::append(args, Stream::on_cpu(pool)); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  std::vector<float> k(128), v(128);
  if (!attn::dequantise(cache, {&slot, 1}, k.data(), v.data(), Stream::on_cpu(pool)).ok()) return 1;
  std::printf("%g %g\n", k[0], v[127]);
  return k == row && v == row ? 0 : 1;
}
