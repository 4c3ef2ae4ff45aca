#include "reynard/training/progress_bar.h"

#include <fmt/format.h>

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

namespace reynard::training {

namespace {

constexpr double kPlainLineSeconds = 10;  // a log file gets a line this often
constexpr int kBarWidth = 24;

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string rate_text(double rate) {
  return rate >= 1e6   ? fmt::format("{:.2f}M", rate / 1e6)
         : rate >= 1e3 ? fmt::format("{:.1f}k", rate / 1e3)
                       : fmt::format("{:.0f}", rate);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

std::string progress_text(const std::string& name, const ProgressLine& line) {
  return fmt::format("{} {:3.0f}% step {} loss {:.3f} {} tokens/s ETA {}",
                     name,
                     100 * line.fraction,
                     line.step,
                     line.loss,
                     rate_text(line.tokens_per_second),
                     duration_text(line.seconds_left));
}

ProgressBar::ProgressBar(std::string name, bool quiet)
    : name_(std::move(name)), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  finish();
}

void ProgressBar::show(const ProgressLine& line) {
  if (quiet_) return;
  const std::string text = progress_text(name_, line);
  if (terminal_) {
    const auto filled = static_cast<int>(std::lround(kBarWidth * line.fraction));
    fmt::print(stderr, "\r\x1b[K[{:=>{}}{: >{}}] {}", "", filled, "", kBarWidth - filled, text);
    drawn_ = true;
  } else if (monotonic_seconds() - last_plain_ >= kPlainLineSeconds || line.fraction >= 1) {
    fmt::print(stderr, "{}\n", text);
    last_plain_ = monotonic_seconds();
  }
  std::fflush(stderr);
}

void ProgressBar::finish() {
  if (drawn_) fmt::print(stderr, "\n");
  drawn_ = false;
}

}  // namespace reynard::training
