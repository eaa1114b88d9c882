#include "progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace kvant::cli {
namespace {

constexpr int64_t kBarWidth = 30;
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

std::string render(std::string_view step, int64_t done, int64_t total) {
  if (total <= 0) return fmt::format("\r{}: {}\x1b[K", step, done);
  const int64_t clamped = std::clamp<int64_t>(done, 0, total);
  const int64_t filled = clamped * kBarWidth / total;
  return fmt::format("\r{} [{:<{}}] {:3d} %\x1b[K", step, std::string(static_cast<size_t>(filled), '='), kBarWidth,
                     clamped * 100 / total);
}

}  // namespace

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() { erase(); }

void ProgressBar::update(std::string_view step, int64_t done, int64_t total) {
  if (!terminal_) return;
  if (total > 0 && done >= total) return erase();
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedrawInterval;
  drawn_ = true;
  std::fputs(render(step, done, total).c_str(), stderr);
}

void ProgressBar::erase() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

}  // namespace kvant::cli
