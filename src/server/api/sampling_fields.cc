#include "server/api/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "server/api/response_format.h"

namespace kvant::server {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 30;
constexpr int64_t kMaxChoices = 32;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxBiases = 4096;
constexpr double kMaxBias = 100.0;

/// Sets `out` when the field is there.
template <class Out, class In>
ApiResult<bool> take(ApiResult<std::optional<In>> value, Out& out) {
  if (!value) return refuse(std::move(value).error());
  if (*value) out = static_cast<Out>(**value);
  return true;
}

ApiResult<std::vector<std::string>> read_stops(Fields& fields) {
  std::vector<std::string> stops;
  const Json* value = fields.get("stop");
  if (value == nullptr) return stops;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& stop : list) {
    if (!stop.is_string())
      return refuse("stop", fmt::format("'stop' must be a string or an array of strings, not {}", type_name(stop)));
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty() || stops.back().size() > kMaxStopBytes)
      return refuse("stop", fmt::format("each 'stop' must have 1 to {} bytes", kMaxStopBytes));
  }
  if (stops.size() > kMaxStops) return refuse("stop", fmt::format("at most {} 'stop' strings are accepted", kMaxStops));
  return stops;
}

ApiResult<std::vector<engine::LogitBias>> read_biases(Fields& fields, int32_t vocabulary) {
  std::vector<engine::LogitBias> out;
  KVANT_API_ASSIGN(const Json* object, fields.object("logit_bias"));
  if (object == nullptr) return out;
  if (object->size() > kMaxBiases)
    return refuse("logit_bias", fmt::format("at most {} tokens may have a 'logit_bias'", kMaxBiases));
  for (const auto& [key, value] : object->items()) {
    engine::LogitBias item;
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, item.token);
    if (error != std::errc() || stop != end || item.token < 0 || item.token >= vocabulary) {
      return refuse("logit_bias", fmt::format("'logit_bias' names token '{}'; ids go from 0 to {}", key.substr(0, 32),
                                              vocabulary - 1));
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxBias)) {
      return refuse("logit_bias",
                    fmt::format("'logit_bias' of token {} must be a number from -{} to {}", key, kMaxBias, kMaxBias));
    }
    item.bias = value.get<float>();
    out.push_back(item);
  }
  return out;
}

ApiResult<bool> read_sampling(Fields& fields, engine::SamplingParams& out) {
  out.temperature = 1.0f;
  KVANT_API_ASSIGN([[maybe_unused]] bool done, take(fields.number("temperature", 0.0, 100.0), out.temperature));
  KVANT_API_ASSIGN(done, take(fields.number("top_p", 0.0, 1.0), out.top_p));
  // 0 keeps the most likely token alone.
  out.top_p = std::max(out.top_p, std::numeric_limits<float>::min());
  KVANT_API_ASSIGN(done, take(fields.number("min_p", 0.0, 1.0), out.min_p));
  KVANT_API_ASSIGN(done, take(fields.integer("top_k", -1, kMaxTokens), out.top_k));
  if (out.top_k < 0) out.top_k = 0;  // As other servers say "off".
  KVANT_API_ASSIGN(done, take(fields.number("presence_penalty", -2.0, 2.0), out.presence_penalty));
  KVANT_API_ASSIGN(done, take(fields.number("frequency_penalty", -2.0, 2.0), out.frequency_penalty));
  KVANT_API_ASSIGN(done, take(fields.number("repetition_penalty", 0.01, 100.0), out.repetition_penalty));
  KVANT_API_ASSIGN(const auto seed, fields.integer("seed", INT64_MIN, INT64_MAX));
  std::random_device random;
  out.seed = seed ? static_cast<uint64_t>(*seed) : (static_cast<uint64_t>(random()) << 32) | random();
  return true;
}

ApiResult<bool> read_stream(Fields& fields, CommonFields& out) {
  KVANT_API_ASSIGN([[maybe_unused]] bool done, take(fields.boolean("stream"), out.stream));
  KVANT_API_ASSIGN(const Json* options, fields.object("stream_options"));
  if (options == nullptr) return true;
  Fields inner(*options, "stream_options.");
  KVANT_API_ASSIGN(done, take(inner.boolean("include_usage"), out.include_usage));
  return true;
}

}  // namespace

ApiResult<CommonFields> read_common_fields(Fields& fields, const engine::EngineFacts& facts) {
  CommonFields out;
  fields.accept({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
  KVANT_API_ASSIGN([[maybe_unused]] const auto model, fields.string("model"));
  KVANT_API_ASSIGN([[maybe_unused]] bool done, read_sampling(fields, out.request.sampling));
  KVANT_API_ASSIGN(out.request.stop, read_stops(fields));
  KVANT_API_ASSIGN(out.request.sampling.logit_bias, read_biases(fields, facts.vocabulary));
  KVANT_API_ASSIGN(done, take(fields.integer("n", 1, kMaxChoices), out.choices));
  KVANT_API_ASSIGN(done, take(fields.boolean("ignore_eos"), out.request.ignore_end_of_turn));
  KVANT_API_ASSIGN(done, read_stream(fields, out));
  KVANT_API_ASSIGN(out.request.shape, read_response_format(fields));
  KVANT_API_ASSIGN(const auto older, fields.integer("max_tokens", 0, kMaxTokens));
  KVANT_API_ASSIGN(const auto newer, fields.integer("max_completion_tokens", 0, kMaxTokens));
  if (const auto given = newer ? newer : older) out.max_tokens = static_cast<int32_t>(*given);
  return out;
}

}  // namespace kvant::server
