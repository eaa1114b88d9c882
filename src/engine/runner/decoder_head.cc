// The end of a pass: logits, drawn tokens, and passes that are captured as a whole.
#include <algorithm>

#include "engine/runner/decoder.h"

namespace kvant::engine {

template <class RowOf>
Status Decoder::deliver(const DecoderPass& pass, int64_t begin, int64_t end, const RowOf& row_of) {
  for (int64_t i = begin; i < end; ++i) {
    if (float* to = pass.logits[static_cast<size_t>(i)]; to != nullptr)
      KVANT_RETURN_IF_ERROR(copy_bytes(to, logits_.as<float>() + row_of(i) * config_.vocabulary_size,
                                       config_.vocabulary_size * int64_t{sizeof(float)}, stream_));
  }
  KVANT_RETURN_IF_ERROR(synchronise(stream_));
  for (int64_t i = begin; i < end; ++i)
    if (int32_t* to = pass.drawn[static_cast<size_t>(i)]; to != nullptr) *to = host_drawn_.as<int32_t>()[row_of(i)];
  for (int64_t i = begin; draw_parts_.logprobs && i < end; ++i)
    if (ops::DrawnLogprobs* to = pass.logprobs[static_cast<size_t>(i)]; to != nullptr)
      *to = host_logprobs_.as<ops::DrawnLogprobs>()[row_of(i)];
  return {};
}

Status Decoder::run_captured(const DecoderPass& pass, const StepShape& shape) {
  const GraphCache::Key key{
      .cache = pass.segments.front().cache->id(), .shape = shape, .parts = parts_, .draw_parts = draw_parts_};
  const auto calls = [&]() -> Status {
    KVANT_RETURN_IF_ERROR(run_layers(shape.num_tokens, pass.segments, nullptr));
    return head_rows(shape.num_tokens, nullptr);
  };
  const auto row_of = [&](int64_t i) { return int64_t{pass.wanted[static_cast<size_t>(i)]}; };
  if (const CudaGraph* graph = graphs_.find(key); graph != nullptr) {
    graphs_.note_replay();
    KVANT_RETURN_IF_ERROR(graph->launch(stream_));
    return deliver(pass, 0, std::ssize(pass.wanted), row_of);
  }
  // The first pass of a shape runs call by call, which makes what a capture must not make: plans, loaded kernels.
  graphs_.note_miss(GraphMiss::kFirstOfShape);
  KVANT_RETURN_IF_ERROR(calls());
  KVANT_RETURN_IF_ERROR(deliver(pass, 0, std::ssize(pass.wanted), row_of));
  return graphs_.capture(key, stream_, calls);
}

Status Decoder::head(const DecoderPass& pass) {
  const bool logits_alone =
      std::all_of(pass.drawn.begin(), pass.drawn.end(), [](const int32_t* drawn) { return drawn == nullptr; });
  if (stream_.cuda == nullptr && logits_alone) return head_in_place(pass);
  const int64_t num_wanted = std::ssize(pass.wanted);
  for (int64_t begin = 0; begin < num_wanted; begin += head_rows_) {
    const int64_t end = std::min(num_wanted, begin + head_rows_);
    KVANT_RETURN_IF_ERROR(head_rows(end - begin, wanted_.device + begin));
    KVANT_RETURN_IF_ERROR(deliver(pass, begin, end, [&](int64_t i) { return i - begin; }));
  }
  // Also where nothing is wanted the tables of this step must be free for the next.
  return num_wanted == 0 ? synchronise(stream_) : Status();
}

Status Decoder::head_in_place(const DecoderPass& pass) {
  const int64_t num_wanted = std::ssize(pass.wanted);
  KVANT_RETURN_IF_ERROR(normalise(weights_.final_norm, num_wanted, wanted_.device));
  // One product per run of rows whose logits lie side by side: nearly always all of them.
  for (int64_t begin = 0; begin < num_wanted;) {
    int64_t end = begin + 1;
    while (end < num_wanted &&
           pass.logits[static_cast<size_t>(end)] == pass.logits[static_cast<size_t>(end - 1)] + config_.vocabulary_size)
      ++end;
    KVANT_RETURN_IF_ERROR(weights_.head->run({.x = activations(normed_, begin * config_.hidden_size),
                                              .num_rows = end - begin,
                                              .y = pass.logits[static_cast<size_t>(begin)],
                                              .output = ops::LinearOutput::kF32},
                                             stream_));
    KVANT_RETURN_IF_ERROR(cap_logits(pass.logits[static_cast<size_t>(begin)], end - begin));
    begin = end;
  }
  return {};
}

Status Decoder::head_rows(int64_t num_rows, const int32_t* row_indices) {
  KVANT_RETURN_IF_ERROR(normalise(weights_.final_norm, num_rows, row_indices));
  KVANT_RETURN_IF_ERROR(
      multiply(*weights_.head,
               {.x = normed_.data(), .num_rows = num_rows, .y = logits_.data(), .output = ops::LinearOutput::kF32}));
  if (runs_rest()) {
    KVANT_RETURN_IF_ERROR(cap_logits(logits_.as<float>(), num_rows));
    KVANT_RETURN_IF_ERROR(
        sampler_.run({.logits = logits_.as<float>(),
                      .num_rows = num_rows,
                      .vocabulary = config_.vocabulary_size,
                      .draws = draws_.device,
                      .row_indices = row_indices,
                      .out = drawn_.as<int32_t>(),
                      .changes = draw_parts_.changes ? changes_.device : nullptr,
                      .logprobs = draw_parts_.logprobs ? logprobs_.as<ops::DrawnLogprobs>() : nullptr},
                     stream_));
    if (draw_parts_.logprobs)
      KVANT_RETURN_IF_ERROR(
          copy_bytes(host_logprobs_.data(), logprobs_.data(), num_rows * int64_t{sizeof(ops::DrawnLogprobs)}, stream_));
  }
  return copy_bytes(host_drawn_.data(), drawn_.data(), num_rows * int64_t{sizeof(int32_t)}, stream_);
}

Status Decoder::cap_logits(float* logits, int64_t num_rows) {
  if (config_.final_soft_cap == 0.0f) return {};
  return ops::soft_cap(logits, num_rows, config_.vocabulary_size, config_.final_soft_cap, stream_);
}

}  // namespace kvant::engine
