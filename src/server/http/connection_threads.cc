#include "server/http/connection_threads.h"

#include <system_error>
#include <utility>

namespace kvant::server {

void ConnectionThreads::enqueue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(work));
  if (waiting_.size() > idle_ && threads_.size() < limit_) {
    try {
      threads_.emplace_back([this] { loop(); });
    } catch (const std::system_error&) {
      // No further thread to be had: those that run take the connection later.
    }
  }
  arrived_.notify_one();
}

void ConnectionThreads::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    arrived_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    {
      const auto work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
  }
}

void ConnectionThreads::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  arrived_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

}  // namespace kvant::server
