// Making and running the tasks of `reynard eval`, whoever answers them.

#include "cli/eval_measurements.h"
#include "cli/message.h"
#include "cli/progress_bar.h"
#include "cli/stop_signal.h"
#include "reynard/config/json_file.h"
#include "reynard/evaluation/text_too_short.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

namespace reynard::cli {

namespace {

std::vector<std::string> tasks_for(const EvalArguments& arguments, bool forgets) {
  if (!arguments.tasks.empty()) return arguments.tasks;
  std::vector<std::string> names;
  for (const evaluation::TaskEntry& entry : evaluation::tasks()) {
    if (entry.by_default && (entry.name != "pruning" || forgets)) names.emplace_back(entry.name);
  }
  return names;
}

// By name or by a setting: what it cannot be made of is then a mistake.
bool is_asked_for(const EvalArguments& arguments, const std::string& task) {
  return !arguments.tasks.empty() ||
         std::ranges::any_of(arguments.settings, [&](const std::string& option) {
           return is_setting_of(task, option);
         });
}

using Tasks = std::vector<std::unique_ptr<evaluation::Task>>;

// What the task needs and the scorer cannot give; empty: nothing.
std::string cannot_run(evaluation::Task& task, const evaluation::Scorer& scorer) {
  const evaluation::Requests requests = task.requests();
  return requests.size == 0 ? "" : scorer.cannot_answer(requests.at(0));
}

Tasks make_tasks(const EvalArguments& arguments,
                 const evaluation::EvaluationConfig& config,
                 const evaluation::Corpus& corpus,
                 const evaluation::ModelFacts& facts,
                 const evaluation::Scorer& scorer) {
  Tasks tasks;
  const auto make = [&](const std::string& name) -> std::unique_ptr<evaluation::Task> {
    try {
      return evaluation::task_named(name).make(corpus, config, facts);
    } catch (const evaluation::TextTooShort& error) {
      if (is_asked_for(arguments, name)) throw;
      print_message("left out: {}\n", error.what());
      return nullptr;
    }
  };
  for (const std::string& name : tasks_for(arguments, facts.forgets)) {
    auto task = make(name);
    if (!task) continue;
    const std::string missing = cannot_run(*task, scorer);
    if (missing.empty()) {
      tasks.push_back(std::move(task));
    } else if (!arguments.tasks.empty()) {
      throw Error(fmt::format(
          "eval: {} needs {}, which this model cannot be asked for: {}",
          name,
          missing,
          arguments.remote.given() ? "give a MODEL on this machine" : "leave --memory out"));
    }
  }
  if (tasks.empty()) {
    throw Error(
        "eval: of the tasks that run by default none can be measured on this text; give longer "
        "text or a smaller --length, or name others with --task");
  }
  return tasks;
}

// Ctrl-C ends it after the samples that are being answered, with exit code 130.
nlohmann::json measure_task(evaluation::Task& task,
                            evaluation::Scorer& scorer,
                            evaluation::EvaluateOptions options) {
  const std::atomic<bool>& stop = stop_flag();
  std::string progress;
  try {
    options.say = [](const std::string& line) { print_message("{}\n", line); };
    ProgressBar bar(task.name(), OffTerminal::kLines);
    options.progress = [&](int64_t done, int64_t all) {
      bar.show(done, all);
      if (!stop || done == all) return;
      progress = fmt::format("{} of {}", done, counted(all, "sample"));
      throw ExitWith{kInterruptedExitCode};
    };
    return evaluation::evaluate(scorer, task, options);
  } catch (const ExitWith&) {
    print_message("stopped: {} of {} are in {}; the same command goes on from there\n",
                  progress,
                  task.name(),
                  options.folder.string());
    throw;
  }
}

// For people: six digits, the words of a value that has some, and "-" for what is not known.
std::string shown(const nlohmann::json& value) {
  if (value.is_null() || (value.is_number_float() && std::isnan(value.get<double>()))) return "-";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  const bool has_text = value.is_object() && value.contains("text");
  return has_text ? value.at("text").get<std::string>() : value.dump();
}

}  // namespace

bool is_setting_of(std::string_view task, std::string_view option) {
  return option.starts_with(fmt::format("--{}.", task));
}

std::vector<nlohmann::json> measure_tasks(const EvalArguments& arguments,
                                          const evaluation::EvaluationConfig& config,
                                          const evaluation::Corpus& corpus,
                                          const evaluation::ModelFacts& facts,
                                          evaluation::Scorer& scorer,
                                          evaluation::EvaluateOptions options) {
  const Tasks tasks = make_tasks(arguments, config, corpus, facts, scorer);
  options.only_resume = arguments.resume;
  std::vector<nlohmann::json> summaries;
  for (const auto& task : tasks) {
    summaries.push_back(measure_task(*task, scorer, options));
    print_summary(summaries.back(), arguments.json);
  }
  if (!arguments.json) fmt::print("results: {}\n", options.folder.string());
  return summaries;
}

void print_summary(const nlohmann::json& summary, bool as_json) {
  if (as_json) {
    nlohmann::json line = summary;
    line.erase("series");
    // Names of files need not be UTF-8.
    fmt::print("{}\n", config::json_text(line));
    return;
  }
  std::string lines;
  for (const auto& [key, value] : summary.at("metrics").items()) {
    if (key.rfind("val/", 0) == 0 || value.is_array()) continue;
    lines += fmt::format("  {:24} {}\n", key, shown(value));
  }
  const auto task = summary.at("task").get<std::string>();
  if (lines.empty()) {
    fmt::print("{}: measured; the report shows it\n", task);
  } else {
    fmt::print("{}:\n{}", task, lines);
  }
}

}  // namespace reynard::cli
