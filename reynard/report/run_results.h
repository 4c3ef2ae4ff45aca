#pragma once
// Reads what a run left behind: run.json, metrics.jsonl and eval/*.json (docs/formats.md), whatever
// JSON of other programs lies beside them. Nothing but these files is needed, so results of earlier
// versions stay readable; what is missing is missing on the page too.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

struct RunResults {
  std::string name;        // of the run, unique on the page; printable, as the next
  std::string model_name;  // as its files name it; other runs may have the same
  std::string shared;      // settings in the names of all runs of a sweep, which `name` leaves out
  std::filesystem::path folder;
  nlohmann::json run = nlohmann::json::object();         // run.json, or empty
  std::vector<nlohmann::json> metrics;                   // metrics.jsonl, one per logged step
  std::map<std::string, nlohmann::json> evaluations;     // task -> summary
  std::map<std::string, std::filesystem::path> samples;  // task -> file that its summary is of
  std::map<std::string, nlohmann::json>
      rows;                           // per_position_loss: row id -> mean loss, to compare runs
  std::vector<std::string> left_out;  // what is there and is not used, and why, one sentence each
  // experiment.toml without seeds and the run's folder, and what was changed on the way: equal for
  // runs that differ by the seed alone. Empty: not known.
  std::string recipe;

  // The summary of a task, or nullptr.
  const nlohmann::json* evaluation(std::string_view task) const;
  // Tokens that the model was trained on at once; 0 when unknown.
  int64_t train_length() const;
};

// folder: a run folder, or a folder with the results of `reynard eval`. Throws reynard::Error
// naming the file when there is nothing to report or a file is not what it should be.
RunResults read_run(const std::filesystem::path& folder);

// Reads all and makes their names unique: those of one name are told apart by their folders
// ("fox (seed-0)", "fox (seed-1)"), a folder named twice by numbers ("fox", "fox (2)"). Those of a
// sweep are shortened (run_names.h).
std::vector<RunResults> read_runs(const std::vector<std::filesystem::path>& folders);

// The sample lines of a task; empty where there are none that its summary is of.
std::vector<nlohmann::json> read_samples(const RunResults& run, std::string_view task);

// The number at a path of keys ("/metrics/loss"), NaN when absent or not a number.
double number_at(const nlohmann::json& json, const std::string& pointer);
// The text at a path of keys, empty when absent or no text.
std::string text_at(const nlohmann::json& json, const std::string& pointer);
// The truth at a path of keys, `otherwise` when absent or neither true nor false.
bool bool_at(const nlohmann::json& json, const std::string& pointer, bool otherwise);
// The list at a path of keys, empty when absent or no list. Refers to `json`.
const nlohmann::json& list_at(const nlohmann::json& json, const std::string& pointer);
// Whether an entry among a task's metrics names a token ("bos", "eos") and measures nothing.
bool is_token_id(std::string_view metric);

}  // namespace reynard::report
