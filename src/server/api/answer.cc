#include "server/api/answer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace kvant::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWait = std::chrono::milliseconds(50);
/// A comment after so much silence keeps proxies from closing a stream.
constexpr auto kSilence = std::chrono::seconds(10);

ApiError failed(const engine::Generation& generation) {
  ApiError error = to_api_error(generation.status);
  error.status = 500;
  return error;
}

/// Prompts are counted once, however many choices they have.
Usage usage_of(const std::vector<WholeAnswer>& answers, size_t choices_per_prompt) {
  Usage usage;
  for (size_t i = 0; i < answers.size(); ++i) {
    const engine::Generation& end = answers[i].end;
    usage.completion_tokens += std::ssize(end.token_ids);
    if (i % choices_per_prompt != 0) continue;
    usage.prompt_tokens += end.prompt_tokens;
    usage.cached_tokens += end.reused_tokens;
  }
  return usage;
}

ApiError shut_down() { return {.status = 503, .message = "the server is shutting down", .code = "shutting_down"}; }

HttpResponse answer_whole(const EngineHost& host, GenerationRun& run, PreparedRequest& prepared,
                          const HttpRequest& http) {
  std::vector<WholeAnswer> answers(prepared.requests.size());
  size_t open = answers.size();
  Clock::time_point next_look = Clock::now();
  while (open > 0) {
    std::optional<AnswerEvent> event = run.next(kWait);
    if (host.given_up()) return to_response(shut_down());
    if (http.client_gone && Clock::now() >= next_look) {
      // Nobody reads this response; the run is cancelled as it is dropped.
      if (http.client_gone()) return to_response({.status = 499, .message = "the client is gone"});
      next_look = Clock::now() + kWait;
    }
    if (!event) continue;
    WholeAnswer& whole = answers[event->choice];
    whole.text += event->text;
    std::move(event->tokens.begin(), event->tokens.end(), std::back_inserter(whole.tokens));
    if (!event->end) continue;
    if (event->end->finish_reason == engine::FinishReason::kError) return to_response(failed(*event->end));
    whole.end = *std::move(event->end);
    --open;
  }
  Json body = prepared.format->whole(answers);
  body["usage"] = to_json(usage_of(answers, prepared.choices_per_prompt));
  return {.body = to_text(body)};
}

/// What a stream needs from its first to its last event.
struct StreamState {
  const EngineHost& host;
  std::unique_ptr<GenerationRun> run;
  PreparedRequest prepared;
};

bool send(const BodyWriter& write, const Json& json) { return write(fmt::format("data: {}\n\n", to_text(json))); }

bool send_all(const BodyWriter& write, const std::vector<Json>& chunks) {
  for (const Json& chunk : chunks)
    if (!send(write, chunk)) return false;
  return true;
}

void write_stream(StreamState& state, const BodyWriter& write, const std::function<bool()>& client_gone) {
  AnswerFormat& format = *state.prepared.format;
  const size_t count = state.prepared.requests.size();
  std::vector<bool> opened(count);
  std::vector<WholeAnswer> ends(count);
  size_t open = count;
  Clock::time_point last_sent = Clock::now();
  Clock::time_point next_look = last_sent;
  while (open > 0) {
    const std::optional<AnswerEvent> event = state.run->next(kWait);
    const Clock::time_point now = Clock::now();
    if (now >= next_look) {
      if (client_gone && client_gone()) return;
      if (state.host.given_up()) {
        if (send(write, to_json(shut_down()))) write("data: [DONE]\n\n");
        return;
      }
      next_look = now + kWait;
    }
    if (!event) {
      if (now - last_sent < kSilence) continue;
      if (!write(": still working\n\n")) return;
      last_sent = now;
      continue;
    }
    if (event->end && event->end->finish_reason == engine::FinishReason::kError) {
      if (send(write, to_json(failed(*event->end)))) write("data: [DONE]\n\n");
      return;
    }
    // Not sooner: clients take the first chunk of a choice for its first token.
    if (!opened[event->choice] && !send_all(write, format.opening(event->choice))) return;
    opened[event->choice] = true;
    if (!send_all(write, format.chunks(*event))) return;
    last_sent = now;
    if (!event->end) continue;
    ends[event->choice].end = *event->end;
    --open;
  }
  if (state.prepared.include_usage) {
    Json chunk = format.head(true);
    chunk["choices"] = Json::array();
    chunk["usage"] = to_json(usage_of(ends, state.prepared.choices_per_prompt));
    if (!send(write, chunk)) return;
  }
  write("data: [DONE]\n\n");
}

}  // namespace

int32_t answer_tokens(const engine::EngineFacts& facts, size_t prompt_tokens, int32_t wanted) {
  return std::min(wanted, facts.longest_request - static_cast<int32_t>(prompt_tokens));
}

ApiResult<bool> check_context(const engine::EngineFacts& facts, size_t prompt_tokens, const std::string& field) {
  const auto context = static_cast<size_t>(facts.longest_request);
  if (prompt_tokens < context) return true;
  return refuse(
      {.message = fmt::format("the prompt has {} tokens and the context holds {}, of which one is needed for the "
                              "answer; shorten the prompt",
                              prompt_tokens, context),
       .param = field,
       .code = "context_length_exceeded",
       .details = {{"prompt_tokens", prompt_tokens}, {"context_tokens", context}}});
}

ApiResult<HttpResponse> answer(EngineHost& host, PreparedRequest prepared, const HttpRequest& http) {
  auto seats = host.admit(static_cast<int32_t>(prepared.requests.size()));
  if (!seats) {
    if (seats.error() == EngineHost::Refusal::kNotReady)
      return refuse({.status = 503, .message = host.health().reason, .code = "not_ready"});
    return refuse(
        {.status = 429,
         .message = fmt::format("the server has {} requests, as many as it takes; try again later", host.requests()),
         .code = "queue_full"});
  }
  auto run = GenerationRun::start(*host.engine(), prepared.requests, *std::move(seats));
  if (!run) {
    // What is refused here besides prompts that do not fit is a shape that cannot be had.
    const bool is_shape = run.error().code() == StatusCode::kUnsupported && prepared.requests.front().shape;
    return refuse(to_api_error(run.error(), is_shape ? "response_format" : prepared.prompt_field));
  }
  if (!prepared.stream) return answer_whole(host, **run, prepared, http);
  // Shared, because the function that writes the stream is copied.
  const auto state = std::make_shared<StreamState>(StreamState{host, *std::move(run), std::move(prepared)});
  HttpResponse response{.content_type = "text/event-stream", .body = {}};
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  response.stream = [state, gone = http.client_gone](const BodyWriter& write) {
    write_stream(*state, write, gone);
    state->run.reset();
  };
  return response;
}

}  // namespace kvant::server
