#pragma once
// What a run ended with, and its file, result.json (docs/formats.md): it is there when the run is
// finished, and only then.

#include "reynard/training/experiment.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace reynard::training {

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

// Writes result.json, whole or not at all.
void write_result(const std::filesystem::path& folder, const RunResult& result);

// Removes result.json, if there is one, and returns when the disk holds none.
void remove_result(const std::filesystem::path& folder);

// The result of a finished run, if the folder holds one.
std::optional<RunResult> finished_result(const std::filesystem::path& folder);

// The texts that are others now than those of this result: "data.path = text/train.tokens".
std::vector<std::string> changed_texts(const Experiment& experiment, const RunResult& result);

}  // namespace reynard::training
