#pragma once
// A whole run in its folder: the loop around Trainer with metrics, progress, checkpoints, a clean
// stop, resuming, and the final model. Files: docs/formats.md.

#include "reynard/training/experiment.h"
#include "reynard/training/run_result.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace reynard::training {

// How far a run is.
struct RunProgress {
  double fraction = 0;  // of the budget, in [0, 1]
  int64_t step = 0;
  double loss = 0;  // nats per token
  double tokens_per_second = 0;
  double seconds_left = 0;
};

struct RunOptions {
  bool resume = false;  // go on from the newest valid checkpoint; without one begin
  std::function<void(const RunProgress&)> progress = {};  // called with every line of metrics
  std::function<void(const std::string&)> say = {};       // a line: where the run goes on
  // A line that a user must not miss: a damaged checkpoint, settings that are other than before.
  std::function<void(const std::string&)> warn = {};
  const std::atomic<bool>* stop = nullptr;  // set from outside: checkpoint and return
  std::vector<std::string> command = {};    // argv, for run.json
  std::string version = {};                 // of the program, for run.json
};

// Trains until the budget is used up. Throws Error when the folder holds another run, and Diverged
// (trainer.h) when the last step or the held-out loss at the end is not finite.
RunResult run(const Experiment& experiment, const RunOptions& options);

}  // namespace reynard::training
