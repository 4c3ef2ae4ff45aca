#include "cli/lm_eval.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/config/json_file.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/process/child_process.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/installation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>
#include <optional>
#include <regex>
#include <system_error>
#include <thread>
#include <utility>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kInstall = "pip install 'lm_eval[api]==0.4.13'";

// What the harness calls accuracies: they make one figure, other metrics have other units.
bool is_accuracy(const std::string& metric) {
  return metric == "acc" || metric == "acc_norm" || metric == "exact_match" || metric == "em" ||
         metric == "f1";
}

std::string python_of(const evaluation::LmEvalConfig& config) {
  if (!config.python.empty()) return config.python;
  return tensor::named_in_environment("REYNARD_PYTHON", REYNARD_PYTHON);
}

// Why this Python has no harness; empty: it has one.
std::string missing_harness(const std::string& python, const fs::path& folder) {
  const std::string file = (folder / "version.txt").string();
  try {
    process::ChildProcess asked({.arguments = {python,
                                               "-c",
                                               "import importlib.metadata, lm_eval; "
                                               "print(importlib.metadata.version('lm_eval'))"},
                                 .read_errors = true,
                                 .output_file = file});
    std::string last;
    for (std::string line = asked.read_error_line(); !line.empty();
         line = asked.read_error_line()) {
      last = line.substr(0, line.find('\n'));
    }
    return asked.wait().exit_code == 0 ? "" : last.empty() ? "it ended" : last;
  } catch (const Error& error) {
    return error.what();
  }
}

void check_installed(const std::string& python, const fs::path& folder) {
  const std::string missing = missing_harness(python, folder);
  if (missing.empty()) return;
  throw Error(
      fmt::format("lm_eval: {} has no lm-evaluation-harness ({}): {}, or name another Python with "
                  "--lm_eval.python or $REYNARD_PYTHON",
                  python,
                  missing,
                  kInstall));
}

// `reynard serve` on a free port, until the end of its scope.
class Server {
 public:
  explicit Server(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {fs::read_symlink("/proc/self/exe").string(), "serve"});
    // The harness splits its arguments at commas: the name is ours.
    arguments.insert(arguments.end(), {"--port", "0", "--name", "model"});
    process_.emplace(
        process::ChildProcess::Options{.arguments = std::move(arguments), .read_errors = true});
    static const std::regex kAddress(R"((\S+) at (http://[^/]+)/)");
    std::string said;
    for (std::string line = process_->read_error_line(); !line.empty();
         line = process_->read_error_line()) {
      std::smatch match;
      if (std::regex_search(line, match, kAddress)) {
        name = match[1];
        url = match[2].str() + "/v1";
        // It must never wait for a reader.
        drain_ = std::thread([this] {
          while (!process_->read_error_line().empty()) {
          }
        });
        return;
      }
      said = line.substr(0, line.find('\n'));
    }
    throw Error(fmt::format("lm_eval: the server did not start: {}", said));
  }
  ~Server() {
    process_->end();
    drain_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  std::string name, url;

 private:
  std::optional<process::ChildProcess> process_;
  std::thread drain_;
};

std::vector<std::string> harness_command(const HarnessRun& run,
                                         const std::string& python,
                                         const std::string& url,
                                         const std::string& model,
                                         const fs::path& folder) {
  const evaluation::LmEvalConfig& config = run.config;
  std::string arguments = fmt::format(
      "base_url={}/completions,model={},tokenizer_backend={},num_concurrent=1,max_length={},"
      "timeout={}",
      url,
      model,
      config.tokenizer_backend,
      config.length,
      config.timeout);
  if (!config.model_args.empty()) arguments += "," + config.model_args;
  // Answers are kept for a run that was cut short. The harness finds them by the texts of a
  // request, so what else decides them is in the file's name.
  const json asked{{"model", run.identity},
                   {"length", config.length},
                   {"tokenizer_backend", config.tokenizer_backend},
                   {"model_args", config.model_args}};
  const std::string key = checkpoint::sha256_hex(config::json_text(asked)).substr(0, 16);
  std::vector<std::string> command{python,
                                   "-m",
                                   "lm_eval",
                                   "--model",
                                   "local-completions",
                                   "--model_args",
                                   arguments,
                                   "--tasks",
                                   fmt::format("{}", fmt::join(config.tasks, ",")),
                                   "--batch_size",
                                   std::to_string(config.batch_size),
                                   "--output_path",
                                   folder.string(),
                                   "--log_samples",
                                   "--use_cache",
                                   (folder / ("answers-" + key)).string()};
  const auto add = [&](const char* option, const std::string& value) {
    command.emplace_back(option);
    command.push_back(value);
  };
  if (config.limit > 0) add("--limit", std::to_string(config.limit));
  if (config.num_fewshot >= 0) add("--num_fewshot", std::to_string(config.num_fewshot));
  if (!config.include_path.empty()) add("--include_path", config.include_path);
  return command;
}

// The newest results_*.json that was written since `begin`.
json read_results(const fs::path& folder, fs::file_time_type begin) {
  fs::path newest;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("results_") || entry.path().extension() != ".json") continue;
    if (entry.last_write_time() < begin) continue;
    if (newest.empty() || entry.last_write_time() > fs::last_write_time(newest)) {
      newest = entry.path();
    }
  }
  if (newest.empty()) throw Error("lm_eval: the harness wrote no results_*.json");
  json results = config::json_object_or_null(newest);
  if (!results.contains("results") || !results["results"].is_object()) {
    throw Error(fmt::format("lm_eval: {} holds no \"results\"", newest.string()));
  }
  return results;
}

// The harness writes "metric,filter" and "metric_stderr,filter" beside each other.
std::vector<json> groups_of(const std::string& task, const json& values) {
  std::vector<json> groups;
  for (const auto& [key, value] : values.items()) {
    const size_t comma = key.find(',');
    if (comma == std::string::npos || !value.is_number()) continue;
    const std::string metric = key.substr(0, comma);
    const std::string filter = key.substr(comma + 1);
    if (metric.ends_with("_stderr")) continue;
    const std::string label = filter == "none" ? metric : fmt::format("{} ({})", metric, filter);
    json group{{"task", task}, {"metric", label}, {"value", value}};
    const json error = values.value(fmt::format("{}_stderr,{}", metric, filter), json());
    if (error.is_number()) group["standard_error"] = error;
    if (is_accuracy(metric)) group["score"] = value;
    groups.push_back(std::move(group));
  }
  return groups;
}

json summary_of(const HarnessRun& run, const json& results) {
  json metrics = json::object();
  json groups = json::array();
  for (const auto& [task, values] : results["results"].items()) {
    if (!values.is_object()) continue;
    for (const json& group : groups_of(task, values)) {
      metrics[fmt::format("{}/{}", task, group["metric"].get<std::string>())] = group["value"];
      groups.push_back(group);
    }
  }
  if (groups.empty()) throw Error("lm_eval: the harness's results hold no number");
  json summary = run.about;
  summary["task"] = kLmEval;
  summary["identity"] = run.identity;
  summary["settings"] = {{"tasks", run.config.tasks},
                         {"limit", run.config.limit},
                         {"num_fewshot", run.config.num_fewshot},
                         {"length", run.config.length},
                         {"harness", results.value("lm_eval_version", json())},
                         {"versions", results.value("versions", json())}};
  summary["metrics"] = std::move(metrics);
  summary["series"] = {{"groups", std::move(groups)}};
  return summary;
}

}  // namespace

json run_harness(const HarnessRun& run) {
  if (run.config.tasks.empty()) {
    throw Error("lm_eval: no tasks; name the harness's own as --lm_eval.tasks=piqa,arc_easy");
  }
  const fs::path file = run.output / "lm_eval.json";
  evaluation::earlier_summary(file);
  const fs::path folder = run.output / kLmEval;
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw Error(fmt::format("lm_eval: cannot create {}: {}; give another folder with -o",
                            folder.string(),
                            failed.message()));
  }
  const std::string python = python_of(run.config);
  check_installed(python, folder);
  std::unique_ptr<Server> server;
  if (run.url.empty()) server = std::make_unique<Server>(run.serve);
  const auto begin = fs::file_time_type::clock::now() - std::chrono::seconds(1);
  process::ChildProcess harness(
      {.arguments = harness_command(
           run, python, server ? server->url : run.url, server ? server->name : run.model, folder),
       .output_file = (folder / "harness.log").string()});
  if (const int status = harness.wait().exit_code; status != 0) {
    throw Error(
        fmt::format("lm_eval: the harness ended with status {} (run by {}); what it answered is "
                    "kept, the same command goes on from there",
                    status,
                    python));
  }
  json summary = summary_of(run, read_results(folder, begin));
  checkpoint::write_atomically(file, config::json_text(summary, 1) + "\n");
  return summary;
}

}  // namespace reynard::cli
