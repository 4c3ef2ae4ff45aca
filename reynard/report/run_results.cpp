#include "reynard/report/run_results.h"

#include "reynard/checkpoint/directory.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/config/fields.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/report/run_names.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace reynard::report {

namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;

nlohmann::json read_object(const fs::path& path, std::string_view remedy) {
  nlohmann::json json = config::parse_json_text(config::read_text_file(path, kMostBytes));
  if (!json.is_object()) {
    throw Error(fmt::format("{}: is not a JSON object; {}", path.string(), remedy));
  }
  return json;
}

// One JSON object per line, each with a number under this key, where one is named; a last line that
// is cut short is left out.
std::vector<nlohmann::json> read_lines(const fs::path& path, const std::string& key = "") {
  std::vector<nlohmann::json> lines;
  std::istringstream in(config::read_text_file(path, kMostBytes));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    nlohmann::json json = config::parse_json_text(line);
    if (json.is_object()) {
      if (!key.empty() && std::isnan(number_at(json, "/" + key))) {
        throw Error(fmt::format(
            "{}:{}: has no number \"{}\"; remove the line", path.string(), number, key));
      }
      lines.push_back(std::move(json));
    } else if (!in.eof()) {
      throw Error(fmt::format("{}:{}: is not a JSON object", path.string(), number));
    }
  }
  return lines;
}

// Whether the file's first line says that what was measured is what the summary says. A measurement
// that was stopped leaves the summary of the one before.
bool is_measured_alike(const fs::path& samples, const nlohmann::json& summary) {
  std::ifstream in(samples, std::ios::binary);
  std::string line;
  std::getline(in, line);
  const nlohmann::json header = config::parse_json_text(line);
  if (!header.is_object()) return false;
  for (const char* key : {"settings", "identity"}) {
    if (header.value(key, nlohmann::json()) != summary.value(key, nlohmann::json())) return false;
  }
  return true;
}

// Finds the samples that the summary is of.
void find_samples(const std::string& task, const fs::path& summary, RunResults& results) {
  const fs::path samples = fs::path(summary).replace_extension(".jsonl");
  results.samples.erase(task);
  if (!fs::exists(samples)) return;
  if (is_measured_alike(samples, results.evaluations.at(task))) {
    results.samples[task] = samples;
    return;
  }
  results.left_out.push_back(
      fmt::format("{} holds samples of other settings, another model or text than {}: measured "
                  "only in part; run `reynard eval` again.",
                  samples.string(),
                  summary.filename().string()));
}

// A summary of `reynard eval`, or null for what another program left there. What is no JSON is a
// summary that was cut short where its samples lie beside it.
nlohmann::json read_summary(const fs::path& path) {
  const std::string text = config::read_text_file(path, kMostBytes);
  nlohmann::json json = config::parse_json_text(text);
  if (json.contains("task") && json.contains("metrics")) return json;
  const bool is_ours = fs::exists(fs::path(path).replace_extension(".jsonl"));
  const std::string mistake = json.is_discarded() && is_ours ? config::json_mistake(text) : "";
  if (mistake.empty()) return nullptr;
  throw Error(
      fmt::format("{}: is not JSON: {}; delete it and measure it again", path.string(), mistake));
}

void read_evaluations(const fs::path& folder, RunResults& results) {
  if (!fs::is_directory(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "run.json") continue;
    if (entry.path().filename() == "published.json") continue;  // a curve's, beside its summary
    if (!entry.is_regular_file()) continue;
    nlohmann::json summary = read_summary(entry.path());
    if (summary.is_null()) continue;
    const std::string task = entry.path().stem().string();
    results.evaluations[task] = std::move(summary);
    find_samples(task, entry.path(), results);
  }
}

void read_rows(RunResults& results) {
  for (const nlohmann::json& line : read_samples(results, "per_position_loss")) {
    if (line.contains("loss") && line.at("id").is_string()) {
      results.rows[line.at("id").get<std::string>()] = line.at("loss");
    }
  }
}

// The identity of the weights in a model's folder as `reynard eval` writes it, from the digests in
// checksums.json instead of the files; empty where they are not known.
std::string identity_of(const fs::path& model) {
  if (!fs::exists(model / checkpoint::kChecksums)) return "";
  const nlohmann::json sums =
      read_object(model / checkpoint::kChecksums, "restore it or write the model again");
  const nlohmann::json files = sums.value("files", nlohmann::json::object());
  std::string digests;
  for (const auto& [name, digest] : files.items()) {
    const bool weights = name.starts_with("model") && name.ends_with(".safetensors");
    if (weights || name == "config.json") digests += text_at(digest, "/sha256");
  }
  return digests.empty() ? "" : checkpoint::sha256_hex(digests);
}

// Leaves out results of other weights than the run has, as it had before it was prolonged. Where
// its weights are not at hand, all results must be of the same ones. Nothing is known of the
// weights of a model that runs elsewhere.
void leave_out_other_weights(RunResults& results) {
  const fs::path model = results.folder / "model";
  std::string weights = identity_of(model);
  const bool is_known = !weights.empty();
  std::string first;  // the task that the weights were measured by
  std::erase_if(results.evaluations, [&](const auto& of_task) {
    const auto& [task, summary] = of_task;
    const std::string measured = text_at(summary, "/identity/model");
    const nlohmann::json identity = summary.value("identity", nlohmann::json::object());
    const bool is_elsewhere = identity.contains("endpoint") || identity.contains("adapter");
    if (measured.empty() || is_elsewhere) return false;
    if (weights.empty()) {
      weights = measured;
      first = task;
    }
    if (measured == weights) return false;
    if (!is_known) {
      throw Error(fmt::format(
          "{}: {}.json and {}.json are results of different weights; measure both tasks again, or "
          "give each model a folder of its own (`reynard eval -o`)",
          results.folder.string(),
          first,
          task));
    }
    results.left_out.push_back(
        fmt::format("{}.json holds results of other weights than {}; run `reynard eval` again.",
                    task,
                    model.string()));
    results.samples.erase(task);
    return true;
  });
}

// Every line of the experiment but seeds and where its results lie, after what was changed on the
// way, and when.
std::string recipe_of(const fs::path& experiment, const nlohmann::json& run) {
  std::string recipe;
  for (const nlohmann::json& stretch : list_at(run, "/earlier")) {
    const nlohmann::json& changed = list_at(stretch, "/changed");
    if (changed.empty()) continue;
    recipe += fmt::format("{} after step {}\n", changed.dump(), number_at(stretch, "/until_step"));
  }
  std::istringstream in(config::read_text_file(experiment, kMostBytes));
  for (std::string line; std::getline(in, line);) {
    const std::string key = line.substr(0, line.find_first_of(" ="));
    if (key != "seed" && key != "folder") recipe += line + "\n";
  }
  return recipe;
}

std::string name_of(const RunResults& results) {
  const std::string name = text_at(results.run, "/name");
  if (!name.empty()) return name;
  for (const auto& [task, summary] : results.evaluations) {
    const std::string model = text_at(summary, "/name");
    if (!model.empty()) return model;
  }
  const fs::path folder = fs::absolute(results.folder).lexically_normal();
  return folder.filename().empty() ? folder.parent_path().filename().string()
                                   : folder.filename().string();
}

// What tells these runs' folders apart: their paths without the parts that all begin or end with;
// empty for a run alone, and for the same folder named twice.
std::vector<std::string> distinct_parts(const std::vector<RunResults>& runs,
                                        const std::vector<size_t>& which) {
  std::vector<std::vector<fs::path>> paths;
  for (const size_t run : which) {
    const fs::path path = fs::absolute(runs[run].folder / "").lexically_normal().parent_path();
    paths.emplace_back(path.begin(), path.end());
  }
  const auto take_common = [&](const auto& part, const auto& erase) {
    const auto is_shared = [&](const auto& path) {
      return !path.empty() && part(path) == part(paths.front());
    };
    while (std::ranges::all_of(paths, is_shared)) std::ranges::for_each(paths, erase);
  };
  take_common([](const auto& path) { return path.front(); },
              [](auto& path) { path.erase(path.begin()); });
  take_common([](const auto& path) { return path.back(); }, [](auto& path) { path.pop_back(); });
  std::vector<std::string> marks;
  for (const std::vector<fs::path>& path : paths) {
    fs::path mark;
    for (const fs::path& part : path) mark /= part;
    marks.push_back(mark.string());
  }
  return marks;
}

// "; it holds the runs a, b and 3 more: ..."; of a sweep, say; empty without any.
std::string runs_inside(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;  // what cannot be looked into is not named
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    if (fs::exists(entry->path() / "run.json", ignored)) {
      names.push_back(config::printable(entry->path().filename().string()));
    }
  }
  if (names.empty()) return "";
  std::ranges::sort(names);
  constexpr size_t kShown = 5;
  const size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  return fmt::format("; it holds the runs {}{}: name those, as {}/*/",
                     fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "",
                     folder.string());
}

}  // namespace

const nlohmann::json* RunResults::evaluation(std::string_view task) const {
  const auto found = evaluations.find(std::string(task));
  return found == evaluations.end() ? nullptr : &found->second;
}

int64_t RunResults::train_length() const {
  constexpr double kMost = int64_t{1} << 40;  // a damaged file may say anything
  const double of_run = number_at(run, "/train_length");
  if (of_run > 0 && of_run <= kMost) return static_cast<int64_t>(of_run);
  for (const auto& [task, summary] : evaluations) {
    const double of_task = number_at(summary, "/train_length");
    if (of_task > 0 && of_task <= kMost) return static_cast<int64_t>(of_task);
  }
  return 0;
}

RunResults read_run(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw Error(
        fmt::format("{}: is not a folder; give the folder of a run or of results "
                    "written by `reynard eval -o`",
                    folder.string()));
  }
  RunResults results;
  results.folder = folder;
  if (fs::exists(folder / "run.json")) {
    results.run = read_object(folder / "run.json", "restore it, or delete it to report without it");
  }
  if (fs::exists(folder / "experiment.toml")) {
    results.recipe = recipe_of(folder / "experiment.toml", results.run);
  }
  if (fs::exists(folder / "metrics.jsonl")) {
    results.metrics = read_lines(folder / "metrics.jsonl", "tokens");
  }
  read_evaluations(folder, results);
  read_evaluations(folder / "eval", results);
  if (results.run.empty() && results.metrics.empty() && results.evaluations.empty()) {
    throw Error(
        fmt::format("{}: has no run.json, no metrics.jsonl and no results of `reynard eval`{}",
                    folder.string(),
                    runs_inside(folder)));
  }
  leave_out_other_weights(results);
  read_rows(results);
  results.model_name = config::printable(name_of(results));
  results.name = results.model_name;
  return results;
}

std::vector<RunResults> read_runs(const std::vector<fs::path>& folders) {
  std::vector<RunResults> runs;
  std::map<std::string, std::vector<size_t>> of_name;
  for (const fs::path& folder : folders) {
    runs.push_back(read_run(folder));
    of_name[runs.back().name].push_back(runs.size() - 1);
  }
  std::set<std::string> names;
  for (const auto& [name, alike] : of_name) {
    const std::vector<std::string> marks = distinct_parts(runs, alike);
    for (size_t i = 0; i < alike.size(); ++i) {
      std::string& own = runs[alike[i]].name;
      if (!marks[i].empty()) own = fmt::format("{} ({})", name, config::printable(marks[i]));
      const std::string marked = own;
      for (int n = 2; !names.insert(own).second; ++n) own = fmt::format("{} ({})", marked, n);
    }
  }
  std::vector<std::string> whole;
  for (const RunResults& run : runs) whole.push_back(run.name);
  const ShortNames shortened = short_names(whole);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].name = shortened.names[i];
    if (runs[i].name != whole[i]) runs[i].shared = shortened.shared;
  }
  return runs;
}

std::vector<nlohmann::json> read_samples(const RunResults& run, std::string_view task) {
  const auto found = run.samples.find(std::string(task));
  if (found == run.samples.end()) return {};
  std::vector<nlohmann::json> lines = read_lines(found->second);
  // The first line says what was measured.
  std::erase_if(lines, [](const nlohmann::json& line) { return !line.contains("id"); });
  return lines;
}

double number_at(const nlohmann::json& json, const std::string& pointer) {
  const nlohmann::json::json_pointer path(pointer);
  if (!json.contains(path) || !json.at(path).is_number()) return std::nan("");
  return json.at(path).get<double>();
}

std::string text_at(const nlohmann::json& json, const std::string& pointer) {
  const nlohmann::json::json_pointer path(pointer);
  if (!json.contains(path) || !json.at(path).is_string()) return "";
  return json.at(path).get<std::string>();
}

bool bool_at(const nlohmann::json& json, const std::string& pointer, bool otherwise) {
  const nlohmann::json::json_pointer path(pointer);
  if (!json.contains(path) || !json.at(path).is_boolean()) return otherwise;
  return json.at(path).get<bool>();
}

const nlohmann::json& list_at(const nlohmann::json& json, const std::string& pointer) {
  static const nlohmann::json kNone = nlohmann::json::array();
  const nlohmann::json::json_pointer path(pointer);
  return json.contains(path) && json.at(path).is_array() ? json.at(path) : kNone;
}

bool is_token_id(std::string_view metric) {
  return metric == "bos" || metric == "eos";
}

}  // namespace reynard::report
