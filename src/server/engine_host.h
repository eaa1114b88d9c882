#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "kvant/core/status.h"
#include "kvant/engine/engine.h"

namespace kvant::server {

struct EngineHostOptions {
  engine::EngineOptions engine = {};
  int32_t max_queue = 64;  ///< Requests that may wait besides those that run.
  /// A step that takes longer than this, and than several times what steps have taken so far, means that the engine
  /// hangs.
  std::chrono::milliseconds watchdog{10'000};
};

/// Loads an engine on a thread of its own and steps it there. Every other member may be called from any thread.
class EngineHost {
 public:
  using Load = std::function<Result<std::unique_ptr<engine::Engine>>(const engine::EngineOptions& options)>;

  /// `load` is Engine::load, or a double of it in tests.
  explicit EngineHost(EngineHostOptions options, Load load = engine::Engine::load);
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  /// Begins to load; then one prompt is read and one token is generated before the state becomes kReady.
  void start();

  enum class State : uint8_t { kLoading, kReady, kStuck, kFailed, kDraining };
  struct Health {
    State state = State::kLoading;
    std::string reason;  ///< Empty when ready.
  };
  Health health() const;
  /// Waits until loading has ended, well or not.
  Status wait_until_loaded() const;

  /// Null until the engine is ready.
  engine::Engine* engine() const { return ready_.load(); }

  /// Room for requests, held while they run or wait.
  class Seats {
   public:
    Seats() = default;
    Seats(EngineHost& host, int32_t count) : host_(&host), count_(count) {}
    Seats(Seats&& other) noexcept : host_(std::exchange(other.host_, nullptr)), count_(other.count_) {}
    Seats& operator=(Seats&&) = delete;
    ~Seats();

   private:
    EngineHost* host_ = nullptr;
    int32_t count_ = 0;
  };
  enum class Refusal : uint8_t { kNotReady, kFull };
  tl::expected<Seats, Refusal> admit(int32_t requests);
  int32_t max_requests() const { return max_requests_; }
  int32_t requests() const { return requests_; }

  /// From now on nothing is admitted. Waits until all requests have ended, at most so long, or until `hurry` says true.
  void drain(std::chrono::milliseconds limit, const std::function<bool()>& hurry = {});
  /// From now on nobody should wait for an answer.
  void give_up() {
    draining_ = true;
    given_up_ = true;
  }
  bool given_up() const { return given_up_; }

  struct StepTimes {
    int64_t count = 0;
    double seconds = 0;
    double longest = 0;
  };
  StepTimes step_times() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  Result<std::unique_ptr<engine::Engine>> load();
  Status warm_up(engine::Engine& engine);
  void set_progress(std::string text);
  bool step(engine::Engine& engine);
  std::chrono::nanoseconds patience() const;

  EngineHostOptions options_;
  Load load_;
  std::thread thread_;
  std::unique_ptr<engine::Engine> engine_;
  std::atomic<engine::Engine*> ready_ = nullptr;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> given_up_ = false;
  std::atomic<int32_t> requests_ = 0;
  std::atomic<int32_t> max_requests_ = 0;
  std::atomic<int64_t> step_began_ = 0;  ///< Nanoseconds of the clock; 0 between steps.
  std::atomic<int64_t> steps_ = 0;
  std::atomic<int64_t> step_nanoseconds_ = 0;
  std::atomic<int64_t> longest_step_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string progress_ = "the model is about to be loaded";
  Status failed_;
  bool loaded_ = false;  ///< Or failed.
};

}  // namespace kvant::server
