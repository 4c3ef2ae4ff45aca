#pragma once
// Runs a task: batches its requests, writes one JSON line per sample as it is measured, goes on
// where an earlier run stopped, and writes the summary.

#include "reynard/evaluation/scorer.h"
#include "reynard/evaluation/task.h"

#include <filesystem>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

struct EvaluateOptions {
  std::filesystem::path folder;  // TASK.jsonl and TASK.json go here; it is created
  // What the numbers depend on besides the task's settings: the identity of model and text. An
  // earlier run goes on only where it is equal; otherwise the task is measured anew.
  nlohmann::json identity = nlohmann::json::object();
  // Copied into the summary: model name, command line, training length, ...
  nlohmann::json about = nlohmann::json::object();
  // Samples of other settings, or of another identity, are an error instead of being replaced.
  bool only_resume = false;
  int64_t batch_tokens = 16384;  // tokens of the requests that are answered together
  // Called with a line for the user, without a newline; may be empty.
  std::function<void(const std::string&)> say = {};
  // Called after every batch with (done, all) samples; may be empty.
  std::function<void(int64_t, int64_t)> progress = {};
};

// What an earlier run wrote in such a file; null where there is none or it is empty. Throws
// reynard::Error where it holds something else, which nobody may write over.
nlohmann::json earlier_summary(const std::filesystem::path& path);

// Returns the summary that was written to TASK.json (docs/formats.md).
nlohmann::json evaluate(Scorer& scorer, Task& task, const EvaluateOptions& options);

}  // namespace reynard::evaluation
