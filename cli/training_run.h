#pragma once
// A training run as the program does it: stopped by signals, with its progress on stderr.

#include "reynard/training/run.h"

#include <string>
#include <vector>

namespace reynard::cli {

struct TrainingRun {
  bool resume = false;               // go on from the newest valid checkpoint, if there is one
  bool quiet = false;                // no progress on stderr
  std::vector<std::string> command;  // argv, for run.json
};

training::RunResult run_training(const training::Experiment& experiment, const TrainingRun& run);

}  // namespace reynard::cli
