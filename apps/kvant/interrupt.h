#pragma once

#include <csignal>

namespace kvant::cli {

/// While it lives, the first SIGINT is only noted, so that work can stop cleanly; a second one ends the program.
/// One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction previous_ = {};
};

/// A SIGINT has been noted by the present or last guard.
bool interrupted();
void forget_interrupt();

}  // namespace kvant::cli
