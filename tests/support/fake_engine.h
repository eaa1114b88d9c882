#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvant/engine/engine.h"

namespace kvant::testing {

/// An engine without a model: every byte is a token, and every answer is `script`, one byte per step.
class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(std::string script = "hello", int32_t context = 1024) : script_(std::move(script)) {
    facts_.context = facts_.longest_request = context;
    facts_.vocabulary = 256;
    facts_.max_sequences = 2;
    facts_.kv_format = "nvfp4:policy=search:edges=16,32";
    facts_.tool_calls = engine::ToolCallStyle::kTagged;
  }

  std::atomic<bool> frozen = false;  ///< While true a step does not end.
  std::atomic<int32_t> cancelled = 0;
  engine::GenerateRequest last_request;

  const engine::EngineFacts& facts() const override { return facts_; }
  Result<std::vector<int32_t>> encode_prompt(std::string_view text) const override { return tokenize(text); }
  Result<std::vector<int32_t>> encode_chat(std::span<const engine::ChatTurn> turns,
                                           std::string_view tools) const override {
    std::string text(tools);
    for (const engine::ChatTurn& turn : turns) text += turn.role.substr(0, 1) + turn.content + turn.tool_calls;
    return tokenize(text);
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    for (const int32_t id : ids) out += token_bytes(id);
    return out;
  }
  std::vector<int32_t> tokenize(std::string_view text) const override {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  std::string token_bytes(int32_t id) const override {
    return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
  }

  Result<engine::RequestId> submit(engine::GenerateRequest request) override {
    const std::lock_guard lock(mutex_);
    last_request = request;
    requests_.push_back({.id = ++last_id_, .request = std::move(request), .generation = {}});
    requests_.back().generation.prompt_tokens = static_cast<int32_t>(requests_.back().request.prompt.size());
    arrived_.notify_all();
    return last_id_;
  }
  void cancel(engine::RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled += static_cast<int32_t>(std::erase_if(requests_, [&](const Running& r) { return r.id == id; }));
  }
  bool step() override {
    while (frozen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex_);
    const bool worked = !requests_.empty();
    for (auto at = requests_.begin(); at != requests_.end();) at = advance(*at) ? requests_.erase(at) : std::next(at);
    return worked;
  }
  bool wait_for_work(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, timeout, [&] { return !requests_.empty(); });
  }
  engine::EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    engine::EngineStats out;
    out.running = static_cast<int32_t>(requests_.size());
    return out;
  }
  Result<engine::Generation> generate(const engine::GenerateRequest& request) override {
    std::optional<engine::Generation> out;
    engine::GenerateRequest watched = request;
    watched.on_finish = [&](const engine::Generation& generation) { out = generation; };
    KVANT_FAIL_IF_ERROR(submit(std::move(watched)));
    while (!out) step();
    return *std::move(out);
  }

 private:
  struct Running {
    engine::RequestId id;
    engine::GenerateRequest request;
    engine::Generation generation;
  };

  /// True when the answer has ended.
  bool advance(Running& running) {
    engine::Generation& generation = running.generation;
    const size_t done = generation.token_ids.size();
    const auto most = static_cast<size_t>(running.request.max_tokens);
    if (done < std::min(most, script_.size())) {
      const int32_t token = static_cast<unsigned char>(script_[done]);
      const engine::TokenLogprobs logprobs{.chosen = {token, -0.5f}, .top = {{token, -0.5f}}};
      generation.token_ids.push_back(token);
      if (running.request.on_token)
        running.request.on_token(token, running.request.logprobs >= 0 ? &logprobs : nullptr);
      if (running.request.on_text) running.request.on_text(token_bytes(token));
    }
    const size_t now = generation.token_ids.size();
    if (now < std::min(most, script_.size())) return false;
    generation.finish_reason = now == script_.size() ? engine::FinishReason::kStop : engine::FinishReason::kLength;
    if (running.request.on_finish) running.request.on_finish(generation);
    return true;
  }

  std::string script_;
  engine::EngineFacts facts_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::list<Running> requests_;
  engine::RequestId last_id_ = 0;
};

}  // namespace kvant::testing
