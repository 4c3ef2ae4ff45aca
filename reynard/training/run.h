#pragma once
// A whole run in its folder: the loop around Trainer with metrics, progress, checkpoints, a clean
// stop, resuming, and the final model. Files: docs/formats.md.

#include "reynard/training/experiment.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
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
  std::vector<std::string> command;         // argv, for run.json
  std::string version;                      // of the program, for run.json
};

struct RunResult {
  bool finished = false;  // false: stopped from outside; --resume goes on
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t skipped_steps = 0;
  double seconds = 0;
  double loss = 0;                        // nats per token over the last tenth of the steps
  std::optional<double> validation_loss;  // nats per token
  // TokenFile::fingerprint() of data.path and validation.path; empty: none, or not recorded.
  std::string text = {}, held_out_text = {};
};

// Trains until the budget is used up. Throws Error when the folder holds another run.
RunResult run(const Experiment& experiment, const RunOptions& options);

// The result of a finished run, if the folder holds one (result.json).
std::optional<RunResult> finished_result(const std::string& folder);

// The texts that are others now than those of this result: "data.path = text/train.tokens".
std::vector<std::string> changed_texts(const Experiment& experiment, const RunResult& result);

}  // namespace reynard::training
