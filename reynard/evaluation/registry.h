#pragma once
// The evaluations that `reynard eval --task` knows: a new one is a file in tasks/ and a line in
// registry.cpp.

#include "reynard/evaluation/corpus.h"
#include "reynard/evaluation/evaluation_config.h"
#include "reynard/evaluation/task.h"

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

// What a task may know of the model besides asking it.
struct ModelFacts {
  int64_t train_length = 0;  // 0: unknown
  double log_pruning_tolerance = 0;
  bool forgets = false;       // has forget gates
  int64_t local_context = 0;  // tokens that a model with a memory reads alone; 0: it has none
  std::vector<int64_t> memory_layers = {};  // from 0
  int64_t memory_capacity = 0;              // tokens; 0: all, -1: none
  int64_t vocab_size = 0;                   // token ids that the model knows; 0: unknown
};

// Cuts the samples of a task from the corpus, which must outlive it. Throws TextTooShort where the
// corpus is too small for the settings, reynard::Error for settings that no text helps.
using MakeTask = std::unique_ptr<Task>(const Corpus& corpus,
                                       const EvaluationConfig& config,
                                       const ModelFacts& model);

struct TaskEntry {
  std::string_view name;
  std::string_view description;
  bool by_default;  // measured when no task is named; others may take hours
  MakeTask* make;
};

std::span<const TaskEntry> tasks();

// Throws reynard::Error, listing the known names, when there is no such task.
const TaskEntry& task_named(std::string_view name);

}  // namespace reynard::evaluation
