#pragma once
// How far a piece of work is, on stderr: one line that is redrawn on a terminal; elsewhere, and
// where $TERM is dumb, nothing, or a plain line from time to time.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace reynard::cli {

struct Progress {
  double share = 0;                         // of the work, in [0, 1]
  std::optional<double> seconds_left = {};  // none: not known yet
  std::string note = {};                    // shown before the time left; empty: nothing
};

enum class OffTerminal { kSilent, kLines };  // kLines: the first, the last and one every 10 s

class ProgressBar {
 public:
  explicit ProgressBar(std::string label, OffTerminal off_terminal = OffTerminal::kSilent);
  ~ProgressBar();  // removes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Redraws at most ten times a second.
  void show(const Progress& progress);
  // The time left follows from the time since the bar was made.
  void show(int64_t done, int64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool terminal_;
  bool silent_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_{};
};

}  // namespace reynard::cli
