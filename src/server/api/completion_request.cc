#include "server/api/completion_request.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api/completion_format.h"
#include "server/api/fields.h"
#include "server/api/sampling_fields.h"
#include "server/api/token_ids.h"

namespace kvant::server {
namespace {

constexpr int32_t kDefaultMaxTokens = 16;
constexpr int64_t kMaxLogprobs = 20;
constexpr size_t kMaxPrompts = 64;

struct Prompt {
  std::string text;
  std::vector<int32_t> tokens;
};

ApiResult<Prompt> read_tokens(const Json& list, const engine::Engine& engine) {
  Prompt out;
  KVANT_API_ASSIGN(out.tokens, read_token_ids(list, "prompt", engine.facts().vocabulary));
  out.text = engine.decode(out.tokens);
  return out;
}

ApiResult<Prompt> read_text(const Json& text, const engine::Engine& engine) {
  Prompt out{.text = text.get<std::string>(), .tokens = {}};
  auto tokens = engine.encode_prompt(out.text);
  if (!tokens) return refuse(to_api_error(tokens.error(), "prompt"));
  out.tokens = *std::move(tokens);
  return out;
}

/// A string, an array of strings, an array of token ids, or an array of such arrays.
ApiResult<std::vector<Prompt>> read_prompts(Fields& fields, const engine::Engine& engine) {
  const Json* value = fields.get("prompt");
  if (value == nullptr) return refuse("prompt", "'prompt' is missing");
  std::vector<Prompt> out;
  const bool one = value->is_string() || (value->is_array() && !value->empty() && value->front().is_number());
  if (!one && !value->is_array()) {
    return refuse("prompt", fmt::format("'prompt' must be a string or an array of strings or token ids, not {}",
                                        type_name(*value)));
  }
  const Json list = one ? Json::array({*value}) : *value;
  if (list.size() > kMaxPrompts) return refuse("prompt", fmt::format("at most {} prompts are accepted", kMaxPrompts));
  for (const Json& item : list) {
    if (!item.is_string() && !item.is_array())
      return refuse("prompt", fmt::format("'prompt' holds {}, which is no prompt", type_name(item)));
    KVANT_API_ASSIGN(Prompt prompt, item.is_string() ? read_text(item, engine) : read_tokens(item, engine));
    if (prompt.tokens.empty()) return refuse("prompt", "'prompt' is empty; at least one token is needed");
    KVANT_API_ASSIGN([[maybe_unused]] const bool fits, check_context(engine.facts(), prompt.tokens.size(), "prompt"));
    out.push_back(std::move(prompt));
  }
  if (out.empty()) return refuse("prompt", "'prompt' is empty; at least one token is needed");
  return out;
}

}  // namespace

ApiResult<PreparedRequest> read_completion_request(const Json& body, const RequestContext& context,
                                                   std::vector<std::string>& ignored) {
  Fields fields(body);
  KVANT_API_ASSIGN(CommonFields common, read_common_fields(fields, context.engine.facts()));
  KVANT_API_ASSIGN(const auto logprobs, fields.integer("logprobs", 0, kMaxLogprobs));
  KVANT_API_ASSIGN(const auto echo, fields.boolean("echo"));
  KVANT_API_ASSIGN(const auto best_of, fields.integer("best_of", 1, 32));
  if (best_of && *best_of != common.choices)
    return refuse("best_of", fmt::format("'best_of' must be left out or equal 'n' ({})", common.choices));
  KVANT_API_ASSIGN(const std::vector<Prompt> prompts, read_prompts(fields, context.engine));

  if (logprobs) common.request.logprobs = static_cast<int32_t>(*logprobs);
  if (echo.value_or(false) && logprobs) {
    if (common.stream) return refuse("echo", "'echo' with 'logprobs' is not supported in a stream");
    common.request.prompt_logprobs = common.request.logprobs;
  }
  common.request.cache_salt = context.cache_salt;

  PreparedRequest out{.choices_per_prompt = static_cast<size_t>(common.choices),
                      .stream = common.stream,
                      .include_usage = common.include_usage,
                      .prompt_field = "prompt"};
  std::vector<std::string> echoes;
  for (const Prompt& prompt : prompts) {
    for (int32_t i = 0; i < common.choices; ++i) {
      engine::GenerateRequest& request = out.requests.emplace_back(common.request);
      request.prompt = prompt.tokens;
      request.max_tokens =
          answer_tokens(context.engine.facts(), prompt.tokens.size(), common.max_tokens.value_or(kDefaultMaxTokens));
      request.sampling.seed += static_cast<uint64_t>(i);
      echoes.push_back(echo.value_or(false) ? prompt.text : std::string());
    }
  }
  out.format = std::make_unique<CompletionFormat>(context.engine, AnswerIdentity::make("cmpl", context.model_name),
                                                  std::move(echoes), logprobs.has_value());
  ignored = fields.unknown();
  return out;
}

}  // namespace kvant::server
