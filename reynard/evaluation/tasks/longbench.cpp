// LongBench: questions, summaries, classes and lines of code after long texts, from the user's data
// files.

#include "reynard/evaluation/longbench.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

namespace reynard::evaluation {

namespace {

struct LongbenchItem {
  const LongbenchTask* task;
  LongbenchSample sample;
};

struct LongbenchPlan {
  LongbenchConfig config;
  std::vector<std::string> tasks;
  std::vector<LongbenchItem> items;
  int64_t skipped = 0;
  std::vector<std::string> fingerprints;  // of the files
};

// The tasks that were asked for, or all whose file is there.
std::vector<std::string> tasks_in(const LongbenchConfig& config) {
  if (!config.tasks.empty()) return each_once(config.tasks);
  std::vector<std::string> names;
  for (const LongbenchTask& task : longbench_tasks()) {
    const std::string name(task.name);
    if (std::filesystem::exists(std::filesystem::path(config.data) / (name + ".jsonl"))) {
      names.push_back(name);
    }
  }
  // None: the message about the first says what to do.
  if (names.empty()) names.emplace_back(longbench_tasks().front().name);
  return names;
}

LongbenchPlan read_plan(const LongbenchConfig& config) {
  LongbenchPlan plan{config, tasks_in(config), {}, 0, {}};
  for (const std::string& name : plan.tasks) {
    const LongbenchTask& task = longbench_task_named(name);
    const std::filesystem::path path = std::filesystem::path(config.data) / (name + ".jsonl");
    LongbenchFile file = read_longbench(path, task, config.skip_bad);
    plan.fingerprints.push_back(fingerprint(path, "longbench"));
    plan.skipped += file.skipped;
    if (config.samples > 0 && config.samples < static_cast<int64_t>(file.samples.size())) {
      file.samples.resize(config.samples);
    }
    for (LongbenchSample& sample : file.samples) plan.items.push_back({&task, std::move(sample)});
  }
  return plan;
}

// As published, what is longer than `length` tokens loses its middle and is tokenized again.
std::vector<int64_t> cut_tokens(const Corpus& corpus, const std::string& prompt, int64_t length) {
  std::vector<int64_t> tokens = prompt_tokens(corpus, prompt);
  if (static_cast<int64_t>(tokens.size()) <= length) return tokens;
  const int64_t half = length / 2;
  const std::vector<int64_t> head(tokens.begin() + (corpus.bos ? 1 : 0), tokens.begin() + half);
  const std::vector<int64_t> tail(tokens.end() - half, tokens.end());
  return prompt_tokens(corpus, corpus.decode(head) + corpus.decode(tail));
}

Prompt prompt_of(const Corpus& corpus, const LongbenchPlan& plan, int64_t index) {
  const auto& [task, sample] = plan.items[index];
  Prompt prompt;
  prompt.id = fmt::format("{} {}", task->name, sample.line);
  prompt.about = {{"task", task->name},
                  {"line", sample.line},
                  {"words", longbench_bucket(sample.words)},
                  {"classes", sample.classes}};
  prompt.tokens = cut_tokens(corpus, longbench_prompt(*task, sample), plan.config.length);
  prompt.answers = sample.answers;
  prompt.max_tokens = task->max_tokens;
  return prompt;
}

// Leading line ends left out, up to the next.
std::string first_line(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of('\n'), text.size());
  return text.substr(begin, text.find('\n', begin) - begin);
}

double score_of(LongbenchScoring scoring, const std::string& written, const nlohmann::json& line) {
  const LongbenchTask& task = longbench_task_named(line.at("task").get<std::string>());
  const bool cut = scoring == LongbenchScoring::kFox || task.first_line;
  const std::string judged = cut ? first_line(written) : written;
  const auto classes = line.at("classes").get<std::vector<std::string>>();
  double best = 0;
  for (const nlohmann::json& answer : line.at("answers")) {
    best = std::max(best, longbench_score(task.metric, judged, answer.get<std::string>(), classes));
  }
  return best;
}

// The score of each task and their mean, whatever the number of its samples.
void average_tasks(const LongbenchPlan& plan, Measured& result) {
  nlohmann::json tasks = nlohmann::json::object();
  double sum = 0;
  for (const std::string& name : plan.tasks) {
    double score = 0;
    double samples = 0;
    for (const nlohmann::json& group : result.series.at("groups")) {
      if (group.at("task") != name) continue;
      score += group.at("score").get<double>() * group.at("samples").get<double>();
      samples += group.at("samples").get<double>();
    }
    if (samples == 0) continue;
    tasks[name] = score / samples;
    sum += score / samples;
  }
  if (!tasks.empty()) result.metrics["score"] = sum / static_cast<double>(tasks.size());
  result.metrics.erase("standard_error");  // of the samples, not of this mean
  result.metrics["tasks"] = std::move(tasks);
  result.metrics["scoring"] = config::name_of(plan.config.scoring);
  result.metrics["skipped"] = plan.skipped;
}

}  // namespace

config::EnumNames<LongbenchScoring> enum_names(LongbenchScoring) {
  return {{LongbenchScoring::kUpstream, "upstream"}, {LongbenchScoring::kFox, "fox"}};
}

std::unique_ptr<Task> make_longbench(const Corpus& corpus,
                                     const EvaluationConfig& config,
                                     const ModelFacts& /*model*/) {
  tensor::check_value(config.longbench.length >= 2,
                      "longbench",
                      "--longbench.length",
                      config.longbench.length,
                      ">= 2: a token of either end");
  const auto plan = std::make_shared<LongbenchPlan>(read_plan(config.longbench));
  PromptSet set;
  set.name = "longbench";
  set.settings = {{"tasks", plan->tasks},
                  {"scoring", config::name_of(plan->config.scoring)},
                  {"length", plan->config.length},
                  {"samples", plan->items.size()},
                  {"skipped", plan->skipped},
                  {"data", plan->config.data},
                  {"files", plan->fingerprints}};
  set.size = static_cast<int64_t>(plan->items.size());
  set.at = [&corpus, plan](int64_t i) { return prompt_of(corpus, *plan, i); };
  set.score = [scoring = plan->config.scoring](const std::string& written,
                                               const nlohmann::json& line) {
    return score_of(scoring, written, line);
  };
  set.group_by = {"task", "words"};
  set.finish = [plan](Measured& result) { average_tasks(*plan, result); };
  return make_prompt_task(corpus, std::move(set));
}

}  // namespace reynard::evaluation
