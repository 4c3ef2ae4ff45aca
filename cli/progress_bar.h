#pragma once
// A bar with the time left on stderr, for work whose size is known. Nothing is shown where stderr
// is no terminal.

#include <chrono>
#include <cstdint>
#include <string>

namespace reynard::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // removes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Redraws at most ten times a second.
  void show(int64_t done, int64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool terminal_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_{};
};

// "preparing [=====>    ]  52%  ETA 1:05"
std::string bar_text(const std::string& label, double share, double seconds_left);

}  // namespace reynard::cli
