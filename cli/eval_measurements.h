#pragma once
// What `reynard eval` was asked for and the ways to measure it: a model run here, its checkpoints,
// a model that is asked elsewhere, the installed lm-evaluation-harness.

#include "cli/evaluation_inputs.h"
#include "cli/memory_options.h"
#include "cli/remote_model.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/evaluation_config.h"
#include "reynard/evaluation/registry.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::cli {

struct EvalArguments {
  std::string model;
  RemoteArguments remote;
  std::vector<std::string> tasks;
  std::vector<std::string> settings;  // of tasks: --task.key=value
  std::vector<std::string> texts;
  std::string tokenizer;
  std::string output;
  std::string dtype = "f32";
  std::string device = "auto";
  int64_t length = 0;
  int64_t train_length = 0;
  int64_t extrapolate = 0;
  bool published_lengths = false;
  int64_t batch_tokens = 16384;
  MemoryArguments memory;
  std::string checkpoints;
  bool resume = false;
  bool skip_bad = false;
  bool json = false;
};

// Whether an option sets something of the task, as --TASK.key=value does.
bool is_setting_of(std::string_view task, std::string_view option);

// Makes all tasks before the first runs, so that a text too short for the last shows at once, and
// runs them into options.folder. A task that was named and needs what the scorer or the text cannot
// give is an error, and so is one with a setting that the text cannot give; others that run by
// default are left out. Returns the summaries, which are printed.
std::vector<nlohmann::json> measure_tasks(const EvalArguments& arguments,
                                          const evaluation::EvaluationConfig& config,
                                          const evaluation::Corpus& corpus,
                                          const evaluation::ModelFacts& facts,
                                          evaluation::Scorer& scorer,
                                          evaluation::EvaluateOptions options);

// One model run here; results go into the folder. Returns the summaries.
std::vector<nlohmann::json> measure_model(const EvalArguments& arguments,
                                          const evaluation::EvaluationConfig& config,
                                          const ModelFolder& folder,
                                          const std::filesystem::path& output);
// Every checkpoint of the run into a folder of its own, and all metrics by the tokens seen.
void measure_checkpoints(const EvalArguments& arguments,
                         const evaluation::EvaluationConfig& config);
// A model behind an endpoint or an adapter.
void measure_remote(const EvalArguments& arguments,
                    const evaluation::EvaluationConfig& config,
                    const RemoteModel& model);
// The harness asks the endpoint, or a server of the model.
void measure_with_harness(const EvalArguments& arguments,
                          const evaluation::EvaluationConfig& config);

void print_summary(const nlohmann::json& summary, bool as_json);

}  // namespace reynard::cli
