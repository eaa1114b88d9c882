#include "attn/reference/attention_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attn/kv/conditioning.h"
#include "attn/kv/row_codec.h"

namespace kvant::attn::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double load(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32: return static_cast<double>(static_cast<const float*>(data)[index]);
    case DType::kF16: return static_cast<double>(f16_to_float(static_cast<const uint16_t*>(data)[index]));
    case DType::kBf16: return static_cast<double>(bf16_to_float(static_cast<const uint16_t*>(data)[index]));
  }
  return 0.0;
}

/// Query row as the stored keys want it, and what its scores lack.
struct Query {
  std::vector<double> values;
  double bias = 0.0;
};

Query load_query(const AttnDesc& desc, const AttnArgs& args, int64_t row, int32_t kv_head) {
  const int32_t dim = desc.layout.head_dim_k;
  const KeyConditioner& conditioner = args.cache.conditioner;
  Query query;
  for (int32_t i = 0; i < dim; ++i) query.values.push_back(load(args.q, desc.q_dtype, row * dim + i));
  if (conditioner.kind == KeyConditioning::kNone) return query;
  const int64_t first = int64_t{kv_head} * dim;
  for (int32_t i = 0; i < dim; ++i) query.bias += query.values[i] * static_cast<double>(conditioner.mu[first + i]);
  if (conditioner.kind == KeyConditioning::kMean) return query;
  std::vector<double> balanced(dim);
  for (int32_t i = 0; i < dim; ++i) balanced[i] = query.values[i] * static_cast<double>(conditioner.z[first + i]);
  // Element (a, b) of a Hadamard matrix of order m has the sign of the parity of a & b, over sqrt(m).
  const int32_t m = hadamard_block(dim);
  for (int32_t i = 0; i < dim; ++i) {
    double sum = 0.0;
    for (int32_t j = 0; j < m; ++j) {
      const double value = balanced[i / m * m + j];
      sum += std::popcount(static_cast<uint32_t>((i % m) & j)) % 2 == 1 ? -value : value;
    }
    query.values[i] = sum / std::sqrt(static_cast<double>(m));
  }
  return query;
}

bool is_visible(const AttnDesc& desc, const AttnArgs& args, int32_t request, int32_t i, int64_t key) {
  const int32_t token = args.q_offsets[request] + i;
  const int64_t length = args.kv_lens[request];
  const int64_t block = length - (args.q_offsets[request + 1] - args.q_offsets[request]);
  const int64_t position = args.positions == nullptr ? block + i : args.positions[token];
  if (desc.window > 0 && key <= position - desc.window) return false;
  if (key < block) return true;
  switch (desc.draft_mask) {
    case DraftMask::kCausal: return key <= block + i;
    case DraftMask::kFull: return true;
    case DraftMask::kPacked: {
      const int64_t bit = key - block;
      const uint32_t word = args.mask[int64_t{token} * args.mask_row_words + bit / 32];
      return (word >> (bit % 32) & 1u) != 0;
    }
  }
  return false;
}

/// Keys and values of one request and KV head, each decoded when first asked for.
class RowReader {
 public:
  struct Row {
    std::vector<float> key, value;
  };

  RowReader(const KvCacheView& cache, const int32_t* pages, int32_t head) : cache_(cache), pages_(pages), head_(head) {}

  const Row& read(int64_t local_key) {
    if (static_cast<int64_t>(rows_.size()) <= local_key) rows_.resize(local_key + 1);
    Row& row = rows_[local_key];
    if (!row.key.empty()) return row;
    const int32_t page_size = cache_.layout.page_size;
    const int32_t entry = pages_[local_key / page_size];
    const auto token = static_cast<int32_t>(local_key % page_size);
    const bool exact = is_exact_page(entry);
    const KvLayout layout = exact ? cache_.layout.exact() : cache_.layout;
    const KvPool& pool = exact ? cache_.exact : cache_.base;
    const auto* page = reinterpret_cast<const uint8_t*>(pool.data) + page_id(entry) * pool.page_stride;
    row.key.resize(layout.head_dim_k);
    row.value.resize(layout.head_dim_v);
    decode_k_row(layout, page, head_, token, exact ? 1.0f : cache_.scales.k_scale(head_), row.key.data());
    decode_v_row(layout, page, head_, token, exact ? 1.0f : cache_.scales.v_scale(head_), row.value.data());
    return row;
  }

 private:
  const KvCacheView& cache_;
  const int32_t* pages_;
  int32_t head_;
  std::vector<Row> rows_;
};

double logit(const AttnDesc& desc, const Query& query, const std::vector<float>& key) {
  double dot = query.bias;
  for (size_t i = 0; i < key.size(); ++i) dot += query.values[i] * static_cast<double>(key[i]);
  const double scaled = static_cast<double>(desc.softmax_scale) * dot;
  const auto cap = static_cast<double>(desc.soft_cap);
  return desc.soft_cap == 0.0f ? scaled : cap * std::tanh(scaled / cap);
}

void attend_row(const AttnDesc& desc, const AttnArgs& args, int32_t request, int32_t i, int32_t q_head,
                RowReader& reader, AttentionResult& result) {
  const int32_t kv_head = q_head / (desc.num_q_heads / desc.layout.num_kv_heads);
  const int64_t row = int64_t{args.q_offsets[request] + i} * desc.num_q_heads + q_head;
  const Query query = load_query(desc, args, row, kv_head);
  const ContextParallel& cp = desc.context_parallel;
  std::vector<double> scores;
  std::vector<int64_t> keys;
  int64_t local = 0;
  for (int64_t key = 0; key < args.kv_lens[request]; ++key) {
    if ((key / cp.interleave) % cp.size != cp.rank) continue;
    if (is_visible(desc, args, request, i, key)) {
      scores.push_back(logit(desc, query, reader.read(local).key));
      keys.push_back(local);
    }
    ++local;
  }
  if (scores.empty()) return;

  const double sink = desc.sinks ? static_cast<double>(args.sinks[q_head]) : kMinusInfinity;
  const double max = std::max(*std::max_element(scores.begin(), scores.end()), sink);
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - max);
  const double denominator = sum + std::exp(sink - max);
  result.lse[row] = max + std::log(sum);
  double* out = result.out.data() + row * desc.layout.head_dim_v;
  for (size_t j = 0; j < scores.size(); ++j) {
    const double weight = std::exp(scores[j] - max) / denominator;
    const std::vector<float>& value = reader.read(keys[j]).value;
    for (int32_t d = 0; d < desc.layout.head_dim_v; ++d) out[d] += weight * static_cast<double>(value[d]);
  }
}

}  // namespace

AttentionResult attention(const AttnDesc& desc, const AttnArgs& args) {
  const int64_t rows = int64_t{args.num_tokens} * desc.num_q_heads;
  AttentionResult result{.out = std::vector<double>(rows * desc.layout.head_dim_v, 0.0),
                         .lse = std::vector<double>(rows, kMinusInfinity)};
  const int32_t group = desc.num_q_heads / desc.layout.num_kv_heads;
  for (int32_t request = 0; request < args.num_requests; ++request) {
    const int32_t num_tokens = args.q_offsets[request + 1] - args.q_offsets[request];
    for (int32_t kv_head = 0; kv_head < desc.layout.num_kv_heads; ++kv_head) {
      RowReader reader(args.cache, args.page_table + request * args.page_table_stride, kv_head);
      for (int32_t i = 0; i < num_tokens; ++i)
        for (int32_t q_head = kv_head * group; q_head < (kv_head + 1) * group; ++q_head)
          attend_row(desc, args, request, i, q_head, reader, result);
    }
  }
  return result;
}

}  // namespace kvant::attn::reference
