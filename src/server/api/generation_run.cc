#include "server/api/generation_run.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <utility>

namespace kvant::server {

/// The queue between the engine's thread and the one that waits.
class GenerationRun::Channel {
 public:
  void push(AnswerEvent event) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      events_.push_back(std::move(event));
    }
    arrived_.notify_one();
  }
  std::optional<AnswerEvent> next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, timeout, [&] { return !events_.empty(); })) return std::nullopt;
    AnswerEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  /// Nobody waits any more.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    events_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<AnswerEvent> events_;
  bool closed_ = false;
};

namespace {

/// Gives tokens to the text that shows them. Tokens whose text is never shown, such as those of a stop string, are
/// given to nobody. Used on the engine's thread only.
class TokenPairing {
 public:
  void add(const engine::TokenLogprobs& logprobs, size_t bytes) { waiting_.push_back({logprobs, bytes}); }

  std::vector<engine::TokenLogprobs> take(size_t shown_bytes) {
    std::vector<engine::TokenLogprobs> out;
    size_t left = shown_bytes - std::min(shown_bytes, last_shown_);
    last_shown_ -= std::min(last_shown_, shown_bytes);
    while (!waiting_.empty() && (left > 0 || waiting_.front().bytes == 0)) {
      const size_t bytes = waiting_.front().bytes;
      out.push_back(std::move(waiting_.front().logprobs));
      waiting_.pop_front();
      last_shown_ = bytes - std::min(bytes, left);
      left -= std::min(bytes, left);
    }
    return out;
  }

 private:
  struct Waiting {
    engine::TokenLogprobs logprobs;
    size_t bytes;
  };
  std::deque<Waiting> waiting_;
  size_t last_shown_ = 0;  ///< Bytes still to come of the last token taken.
};

}  // namespace

GenerationRun::GenerationRun(engine::Engine& engine, EngineHost::Seats seats)
    : engine_(engine), seats_(std::move(seats)), channel_(std::make_shared<Channel>()) {}

GenerationRun::~GenerationRun() {
  channel_->close();
  for (const engine::RequestId id : ids_) engine_.cancel(id);
}

Result<std::unique_ptr<GenerationRun>> GenerationRun::start(engine::Engine& engine,
                                                            std::vector<engine::GenerateRequest> requests,
                                                            EngineHost::Seats seats) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is private
  std::unique_ptr<GenerationRun> run(new GenerationRun(engine, std::move(seats)));
  for (size_t choice = 0; choice < requests.size(); ++choice) {
    engine::GenerateRequest& request = requests[choice];
    const std::shared_ptr<Channel>& channel = run->channel_;
    // Shared by two callbacks, which are copied.
    const auto pairing = std::make_shared<TokenPairing>();
    if (request.logprobs >= 0) {
      request.on_token = [pairing, &engine](int32_t token, const engine::TokenLogprobs* logprobs) {
        const int32_t ids[] = {token};
        if (logprobs != nullptr) pairing->add(*logprobs, engine.decode(ids).size());
      };
    }
    request.on_text = [channel, pairing, choice](std::string_view text) {
      channel->push({.choice = choice, .text = std::string(text), .tokens = pairing->take(text.size()), .end = {}});
      return true;
    };
    request.on_finish = [channel, choice](const engine::Generation& generation) {
      channel->push({.choice = choice, .text = {}, .tokens = {}, .end = generation});
    };
    Result<engine::RequestId> id = engine.submit(std::move(request));
    if (!id) return failure(id.error());
    run->ids_.push_back(*id);
  }
  return run;
}

std::optional<AnswerEvent> GenerationRun::next(std::chrono::milliseconds timeout) { return channel_->next(timeout); }

}  // namespace kvant::server
