#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace reynard::cli {

std::string bar_text(const std::string& label, double share, double seconds_left) {
  constexpr int kWidth = 30;
  const double clamped = std::clamp(share, 0.0, 1.0);
  const int filled = static_cast<int>(clamped * kWidth);
  const std::string bar = std::string(static_cast<size_t>(filled), '=') +
                          (filled < kWidth ? ">" : "") +
                          std::string(static_cast<size_t>(std::max(kWidth - filled - 1, 0)), ' ');
  const auto seconds = static_cast<int64_t>(std::clamp(seconds_left, 0.0, 359999.0));
  const std::string left =
      seconds >= 3600
          ? fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
          : fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{} [{}] {:3.0f}%  ETA {}", label, bar, 100 * clamped, left);
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && drawn_ != Clock::time_point{}) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::show(int64_t done, int64_t total) {
  const auto now = Clock::now();
  if (!terminal_ || total <= 0 || now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double left = share > 0 ? seconds * (1 - share) / share : 0;
  fmt::print(stderr, "\r\033[K{}", bar_text(label_, share, left));
  std::fflush(stderr);
}

}  // namespace reynard::cli
