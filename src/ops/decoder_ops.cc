#include "ops/decoder_ops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ops/activation.h"
#include "ops/cuda/decoder_kernels.h"
#include "ops/logit_changes.h"
#include "ops/norm.h"
#include "ops/row_loop.h"
#include "ops/sampling.h"

namespace kvant::ops {
namespace {

Status check_width(const char* what, int64_t width, Stream stream) {
  if (stream.cuda == nullptr || width % 8 == 0) return {};
  return {StatusCode::kUnsupported,
          fmt::format("{} of {} channels: CUDA needs a multiple of 8; run on the CPU", what, width)};
}

void draw_on_cpu(const DrawArgs& args, int64_t row) {
  const std::span logits(args.logits + row * args.vocabulary, static_cast<size_t>(args.vocabulary));
  const Draw& draw = args.draws[args.row_indices == nullptr ? row : args.row_indices[row]];
  std::vector<float> logprobs;
  if (args.logprobs != nullptr && draw.alternatives >= 0) {
    logprobs.resize(logits.size());
    log_softmax(logits, logprobs);
  }
  for (int32_t i = 0; args.changes != nullptr && i < draw.num_changes; ++i) {
    const LogitChange& change = args.changes[draw.first_change + i];
    // Biases may name any token.
    if (change.token < 0 || change.token >= args.vocabulary) continue;
    float& logit = logits[static_cast<size_t>(change.token)];
    logit = changed_logit(logit, change, draw);
  }
  if (draw.temperature == 0.0f) {
    args.out[row] = argmax(logits);
  } else {
    Sampler sampler({.temperature = draw.temperature,
                     .top_k = draw.top_k,
                     .top_p = draw.top_p,
                     .min_p = draw.min_p,
                     .seed = draw.seed});
    args.out[row] = sampler.sample(logits, {}, draw.step);
  }
  if (logprobs.empty()) return;
  DrawnLogprobs& out = args.logprobs[row];
  out.drawn = logprobs[static_cast<size_t>(args.out[row])];
  const std::vector<int32_t> best = most_likely(logprobs, draw.alternatives);
  for (size_t rank = 0; rank < best.size(); ++rank) {
    out.tokens[rank] = best[rank];
    out.logprobs[rank] = logprobs[static_cast<size_t>(best[rank])];
  }
}

}  // namespace

Result<Embedding> Embedding::create(int64_t vocabulary, int64_t width, const WeightRows& rows, const Linear* tied,
                                    Stream stream, LinearContext* context) {
  KVANT_FAIL_IF_ERROR(check_width("an embedding", width, stream));
  Embedding embedding;
  embedding.width_ = width;
  if (stream.cuda == nullptr) {
    embedding.rows_ = rows;
    return embedding;
  }
  if (tied != nullptr) embedding.table_ = tied->plain_rows();
  if (embedding.table_ == nullptr) {
    KVANT_ASSIGN_OR_FAIL(embedding.own_,
                         Linear::create(LinearFormat::kBf16, vocabulary, width, rows, 1, stream, context));
    embedding.table_ = embedding.own_->plain_rows();
  }
  return embedding;
}

Status Embedding::run(const int32_t* tokens, int64_t num_tokens, float scale, float* out, Stream stream) const {
  if (stream.cuda != nullptr)
    return cuda::embed(
        {.table = table_, .tokens = tokens, .num_tokens = num_tokens, .width = width_, .scale = scale, .out = out},
        stream.cuda);
  for_row_blocks(num_tokens, width_, stream, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = out + i * width_;
      rows_(tokens[i], tokens[i] + 1, row);
      if (scale == 1.0f) continue;
      for (int64_t channel = 0; channel < width_; ++channel) row[channel] *= scale;
    }
  });
  return {};
}

Status normalise(const NormArgs& args, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_width("a norm", args.dim, stream));
  if (stream.cuda != nullptr) return cuda::normalise(args, stream.cuda);
  auto* out = static_cast<float*>(args.out);
  if (args.row_indices == nullptr) {
    rms_norm(args.x, args.num_rows, args.dim, args.weight, args.epsilon, out, stream);
    return {};
  }
  for (int64_t row = 0; row < args.num_rows; ++row)
    rms_norm_row(args.x + args.row_indices[row] * args.dim, args.dim, args.weight, args.epsilon, out + row * args.dim);
  return {};
}

Status normalise_add(const NormAddArgs& args, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_width("a norm", args.dim, stream));
  if (stream.cuda != nullptr) return cuda::normalise_add(args, stream.cuda);
  for_row_blocks(args.num_rows, 2 * args.dim, stream, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = args.x + row * args.dim;
      float* sum = args.sum + row * args.dim;
      rms_norm_row(x, args.dim, args.weight, args.epsilon, x);
      add(sum, x, args.dim, sum);
    }
  });
  return {};
}

Status add_bias(float* x, int64_t num_rows, int64_t width, const float* bias, Stream stream) {
  if (stream.cuda != nullptr) return cuda::add_bias(x, num_rows, width, bias, stream.cuda);
  for_row_blocks(num_rows, width, stream, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) add(x + row * width, bias, width, x + row * width);
  });
  return {};
}

Status soft_cap(float* x, int64_t num_rows, int64_t width, float cap, Stream stream) {
  if (stream.cuda != nullptr) return cuda::soft_cap(x, num_rows * width, cap, stream.cuda);
  soft_cap_rows(x, num_rows, width, cap, stream);
  return {};
}

Status apply_gate(const GateArgs& args, Stream stream) {
  KVANT_RETURN_IF_ERROR(check_width("a gated activation", args.size, stream));
  if (stream.cuda != nullptr) return cuda::apply_gate(args, stream.cuda);
  gate_rows(args.gate, static_cast<const float*>(args.gate_up), args.num_rows, args.size, static_cast<float*>(args.out),
            stream);
  return {};
}

Result<DeviceSampler> DeviceSampler::create(int64_t max_rows, Stream stream) {
  DeviceSampler out;
  out.max_rows_ = max_rows;
  if (stream.cuda == nullptr) return out;
  KVANT_ASSIGN_OR_FAIL(out.scratch_,
                       DeviceBuffer::create(MemoryKind::kCuda, cuda::argmax_scratch_bytes(max_rows), "drawing tokens"));
  KVANT_ASSIGN_OR_FAIL(out.before_, DeviceBuffer::create(MemoryKind::kCuda, kMaxLogitChanges * int64_t{sizeof(float)},
                                                         "drawing tokens"));
  KVANT_ASSIGN_OR_FAIL(out.log_sums_,
                       DeviceBuffer::create(MemoryKind::kCuda, max_rows * int64_t{sizeof(double)}, "drawing tokens"));
  return out;
}

Status DeviceSampler::run(const DrawArgs& args, Stream stream) const {
  KVANT_CHECK(args.num_rows <= max_rows_);
  if (stream.cuda != nullptr) {
    auto* before = before_.as<float>();
    auto* log_sums = log_sums_.as<double>();
    if (args.logprobs != nullptr) KVANT_RETURN_IF_ERROR(cuda::find_logprobs(args, log_sums, stream.cuda));
    if (args.changes != nullptr) KVANT_RETURN_IF_ERROR(cuda::change_logits(args, before, stream.cuda));
    KVANT_RETURN_IF_ERROR(cuda::argmax({.logits = args.logits,
                                        .num_rows = args.num_rows,
                                        .vocabulary = args.vocabulary,
                                        .out = args.out,
                                        .scratch = scratch_.data(),
                                        .max_rows = max_rows_},
                                       stream.cuda));
    KVANT_RETURN_IF_ERROR(cuda::draw(args, stream.cuda));
    if (args.logprobs == nullptr) return {};
    return cuda::find_drawn_logprobs(args, before, log_sums, stream.cuda);
  }
  for (int64_t row = 0; row < args.num_rows; ++row) draw_on_cpu(args, row);
  return {};
}

}  // namespace kvant::ops
