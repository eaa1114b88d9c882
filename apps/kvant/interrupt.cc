#include "interrupt.h"

namespace kvant::cli {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t interrupt_noted = 0;

void note_interrupt(int /*signal*/) { interrupt_noted = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  forget_interrupt();
  struct sigaction action = {};
  action.sa_handler = note_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &previous_);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }

bool interrupted() { return interrupt_noted != 0; }

void forget_interrupt() { interrupt_noted = 0; }

}  // namespace kvant::cli
