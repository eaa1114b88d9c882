#include "server/engine_host.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvant::server {
namespace {

constexpr int32_t kWarmUpTokens = 48;
constexpr auto kIdleWait = std::chrono::milliseconds(100);
constexpr auto kDrainPoll = std::chrono::milliseconds(20);
/// A step may take this many times the longest one so far.
constexpr int64_t kPatienceFactor = 8;

int64_t nanoseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

EngineHost::EngineHost(EngineHostOptions options, Load load) : options_(std::move(options)), load_(std::move(load)) {}

EngineHost::~EngineHost() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

EngineHost::Seats::~Seats() {
  if (host_ != nullptr) host_->requests_ -= count_;
}

void EngineHost::start() {
  thread_ = std::thread([this] { run(); });
}

void EngineHost::set_progress(std::string text) {
  const std::lock_guard lock(mutex_);
  progress_ = std::move(text);
}

Result<std::unique_ptr<engine::Engine>> EngineHost::load() {
  engine::EngineOptions options = options_.engine;
  options.progress = [this, inner = options.progress](std::string_view step, int64_t done, int64_t total) {
    set_progress(total > 0 ? fmt::format("{} ({} %)", step, done * 100 / total) : std::string(step));
    if (inner) inner(step, done, total);
  };
  KVANT_ASSIGN_OR_FAIL(auto engine, load_(options));
  set_progress("the first prompt is being read");
  KVANT_FAIL_IF_ERROR(warm_up(*engine));
  return engine;
}

Status EngineHost::warm_up(engine::Engine& engine) {
  engine::GenerateRequest request;
  const int32_t tokens = std::clamp(engine.facts().context - 2, 1, kWarmUpTokens);
  for (int32_t i = 0; i < tokens; ++i) request.prompt.push_back(i % std::max(1, engine.facts().vocabulary));
  request.max_tokens = 2;  // The first token ends the prompt's step, the second one is a decode step.
  request.ignore_end_of_turn = true;
  // Nobody else's prompts find its pages.
  request.cache_salt = "warm-up";
  const auto begin = Clock::now();
  const Result<engine::Generation> generation = engine.generate(request);
  if (!generation) return generation.error();
  longest_step_ = nanoseconds(Clock::now() - begin);
  return {};
}

void EngineHost::run() {
  Result<std::unique_ptr<engine::Engine>> engine = failure(StatusCode::kInternal, "loading ended without a word");
  try {
    engine = load();
  } catch (const std::exception& error) {
    engine = failure(StatusCode::kInternal, error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    loaded_ = true;
    if (engine) {
      engine_ = *std::move(engine);
      max_requests_ = engine_->facts().max_sequences + options_.max_queue;
      ready_ = engine_.get();
    } else {
      failed_ = engine.error();
    }
  }
  changed_.notify_all();
  if (engine_ == nullptr) return;
  while (!ending_) {
    if (!step(*engine_)) engine_->wait_for_work(kIdleWait);
  }
}

bool EngineHost::step(engine::Engine& engine) {
  const Clock::time_point begin = Clock::now();
  step_began_ = nanoseconds(begin.time_since_epoch());
  bool worked = false;
  try {
    worked = engine.step();
  } catch (const std::exception& error) {
    // Out of memory, for one. Requests go on in the next step or fail there.
    set_progress(error.what());
  }
  step_began_ = 0;
  if (!worked) return false;
  const int64_t took = nanoseconds(Clock::now() - begin);
  ++steps_;
  step_nanoseconds_ += took;
  longest_step_ = std::max<int64_t>(longest_step_, took);
  return true;
}

std::chrono::nanoseconds EngineHost::patience() const {
  return std::max<std::chrono::nanoseconds>(options_.watchdog,
                                            std::chrono::nanoseconds(kPatienceFactor * longest_step_));
}

EngineHost::Health EngineHost::health() const {
  if (draining_) return {State::kDraining, "the server is shutting down"};
  {
    const std::lock_guard lock(mutex_);
    if (!loaded_) return {State::kLoading, fmt::format("loading: {}", progress_)};
    if (!failed_.ok()) return {State::kFailed, fmt::format("the model could not be loaded: {}", failed_.message())};
  }
  const int64_t began = step_began_;
  const int64_t running = began == 0 ? 0 : nanoseconds(Clock::now().time_since_epoch()) - began;
  if (running > patience().count()) {
    return {State::kStuck,
            fmt::format("the engine has been in one step for {:.1f} s", static_cast<double>(running) * 1e-9)};
  }
  return {State::kReady, {}};
}

Status EngineHost::wait_until_loaded() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return loaded_; });
  return failed_;
}

tl::expected<EngineHost::Seats, EngineHost::Refusal> EngineHost::admit(int32_t requests) {
  if (draining_ || engine() == nullptr) return tl::unexpected(Refusal::kNotReady);
  int32_t now = requests_;
  do {
    if (now + requests > max_requests_) return tl::unexpected(Refusal::kFull);
  } while (!requests_.compare_exchange_weak(now, now + requests));
  return Seats(*this, requests);
}

void EngineHost::drain(std::chrono::milliseconds limit, const std::function<bool()>& hurry) {
  draining_ = true;
  const Clock::time_point end = Clock::now() + limit;
  while (requests_ > 0 && Clock::now() < end && !(hurry && hurry())) std::this_thread::sleep_for(kDrainPoll);
}

EngineHost::StepTimes EngineHost::step_times() const {
  return {.count = steps_,
          .seconds = static_cast<double>(step_nanoseconds_) * 1e-9,
          .longest = static_cast<double>(longest_step_) * 1e-9};
}

}  // namespace kvant::server
