#pragma once
// The checkpoints of a run folder: which are valid, which are kept. A checkpoint appears whole or
// not at all; which exist is in checkpoint/run_folder.h.

#include "reynard/data/recorded_tokenizer.h"
#include "reynard/training/trainer.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::training {

// What the run that goes on from a checkpoint reports of the steps before it, nats per token.
struct LossesSoFar {
  std::vector<double> recent = {};  // of the last tenth of the steps
  // Of the steps since the last line of metrics.jsonl: their sum over the tokens that counted, and
  // how many these are.
  double sum = 0, tokens = 0;
};

struct CheckpointOptions {
  bool permanent = false;  // never removed
  LossesSoFar losses = {};
  // The step's line of metrics where its measurement of held-out text was stopped; null: none.
  nlohmann::ordered_json open_line = nullptr;
  std::vector<tokenizer::SavedFile> tokenizer = {};  // kept beside the weights
};

// Writes checkpoints/step-N and then removes all but the newest keep_checkpoints of those that are
// not permanent. Throws Error, leaving older ones as they are, when the disk is full or a weight is
// not finite. Returns why some could not be removed, one line each.
std::vector<std::string> save_checkpoint(Trainer& trainer,
                                         const std::filesystem::path& run_folder,
                                         const CheckpointOptions& options);

struct RestoredCheckpoint {
  std::optional<std::filesystem::path> folder = {};  // empty: there was no valid one
  std::vector<std::string> rejected = {};            // why newer ones were passed over, a line each
  LossesSoFar losses = {};                           // of the steps before it
  nlohmann::ordered_json open_line = nullptr;        // as in CheckpointOptions; null: none
};
// Puts the newest checkpoint whose checksums hold into the trainer.
RestoredCheckpoint restore_newest(Trainer& trainer, const std::filesystem::path& run_folder);

}  // namespace reynard::training
