#pragma once
// The state of a run on stderr: one line that is redrawn on a terminal, plain lines elsewhere.

#include <cstdint>
#include <string>

namespace reynard::training {

struct ProgressLine {
  double fraction = 0;  // of the budget, in [0, 1]
  int64_t step = 0;
  double loss = 0;  // nats per token
  double tokens_per_second = 0;
  double seconds_left = 0;
};

// "fox  42% step 120 loss 2.310 12.3k tokens/s ETA 1:23"
std::string progress_text(const std::string& name, const ProgressLine& line);

class ProgressBar {
 public:
  // name: what is being trained. Silent when quiet.
  explicit ProgressBar(std::string name, bool quiet = false);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(const ProgressLine& line);
  // Ends the line that is being redrawn, so that other output starts on its own.
  void finish();

 private:
  std::string name_;
  bool quiet_ = false;
  bool terminal_ = false;
  bool drawn_ = false;
  double last_plain_ = -1e9;  // monotonic seconds of the last plain line
};

}  // namespace reynard::training
