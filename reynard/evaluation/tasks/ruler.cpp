// RULER as a task: samples sized to every length, scored as published, and the effective length.

#include "reynard/evaluation/ruler.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr double kEffective = 0.856;  // Llama-2-7B-chat at 4096 tokens, the published threshold
// 2: words of the text are whole, answers are compared as published; case is that of all letters.
constexpr int64_t kRulerScoring = 2;
constexpr int64_t kEssayTokens = 2'000'000;
constexpr size_t kMostWords = 10'000;

struct RulerPlan {
  RulerConfig config;
  RulerSources sources;
  std::vector<const RulerTask*> tasks;
  std::map<std::pair<size_t, int64_t>, int64_t> sizes;  // (task, length) -> parts of the haystack
};

// Each sample has a stream of its own, so that any of them can be made alone.
PythonRandom random_of(const RulerConfig& config, size_t task, int64_t length, int64_t sample) {
  uint64_t seed = static_cast<uint64_t>(config.seed) * 1009 + task;
  seed = seed * 1'000'003 + static_cast<uint64_t>(length);
  return PythonRandom(seed * 10'007 + static_cast<uint64_t>(sample));
}

struct SizedSample {
  RulerSample sample;
  std::vector<int64_t> tokens;
};

SizedSample sample_of(const Corpus& corpus,
                      const RulerPlan& plan,
                      size_t task,
                      int64_t length,
                      int64_t index,
                      int64_t size) {
  PythonRandom random = random_of(plan.config, task, length, index);
  SizedSample made{plan.tasks[task]->make(plan.sources, random, size, length, index), {}};
  made.tokens = prompt_tokens(corpus, made.sample.text);
  return made;
}

// Of a prompt and its answer.
int64_t num_tokens(const SizedSample& made, const RulerTask& task) {
  return static_cast<int64_t>(made.tokens.size()) + task.max_tokens;
}

// The most tokens that a sample of a length has with the least haystack, and of which task it is.
struct Need {
  std::string_view task;
  int64_t tokens = 0;
};

// Of all samples: they differ, in the documents of their questions a lot.
Need need_of(const Corpus& corpus, const RulerPlan& plan, int64_t length) {
  Need most;
  for (size_t task = 0; task < plan.tasks.size(); ++task) {
    const RulerTask& kind = *plan.tasks[task];
    for (int64_t index = 0; index < plan.config.samples; ++index) {
      const SizedSample made = sample_of(corpus, plan, task, length, index, kind.least);
      const int64_t tokens = num_tokens(made, kind);
      if (tokens > most.tokens) most = {kind.name, tokens};
    }
  }
  return most;
}

// Sets the lengths; throws where the samples of one do not fit, naming one at which all do. Samples
// of another length are others, which may need more.
void choose_lengths(const Corpus& corpus, RulerPlan& plan, int64_t train_length) {
  std::map<int64_t, Need> needs;
  const auto need = [&](int64_t length) {
    const auto known = needs.find(length);
    if (known != needs.end()) return known->second;
    return needs[length] = need_of(corpus, plan, length);
  };
  plan.config.lengths = test_lengths(plan.config.lengths, train_length, [&](int64_t length) {
    return need(length).tokens <= length;
  });
  for (const int64_t length : plan.config.lengths) {
    const Need first = need(length);
    if (first.tokens <= length) continue;
    int64_t least = first.tokens;
    while (need(least).tokens > least) least = need(least).tokens;
    throw Error(
        fmt::format("ruler: --ruler.lengths = {}; expected >= {}: prompt and answer of {} alone",
                    length,
                    least,
                    first.task));
  }
}

// The most parts with which the first sample fits, and at least the least.
int64_t largest_size(const Corpus& corpus, const RulerPlan& plan, size_t task, int64_t length) {
  const RulerTask& kind = *plan.tasks[task];
  const auto fits_with = [&](int64_t size) {
    return size <= kind.least ||
           num_tokens(sample_of(corpus, plan, task, length, 0, size), kind) <= length;
  };
  int64_t good = 0;
  int64_t bad = kind.unit;
  // A word list or a set of documents may end before the length does.
  while (bad <= length && fits_with(bad)) {
    good = bad;
    bad *= 2;
  }
  while (bad - good > kind.unit) {
    const int64_t middle = good + (bad - good) / 2;
    (fits_with(middle) ? good : bad) = middle;
  }
  return good;
}

Prompt prompt_of(const Corpus& corpus, const RulerPlan& plan, int64_t request) {
  const auto [task, length, index] =
      cell_of(request, plan.config.lengths, plan.tasks.size(), plan.config.samples);
  const RulerTask& kind = *plan.tasks[task];
  int64_t size = plan.sizes.at({task, length});
  SizedSample made = sample_of(corpus, plan, task, length, index, size);
  while (num_tokens(made, kind) > length && size > kind.least) {
    size = std::max(kind.least, size - kind.unit);
    made = sample_of(corpus, plan, task, length, index, size);
  }
  TORCH_INTERNAL_ASSERT(num_tokens(made, kind) <= length);  // choose_lengths
  Prompt prompt;
  prompt.id = fmt::format("{} {} {}", kind.name, length, index);
  prompt.about = {{"task", kind.name}, {"length", length}, {"sample", index}, {"size", size}};
  prompt.tokens = std::move(made.tokens);
  prompt.answers = std::move(made.sample.answers);
  prompt.max_tokens = kind.max_tokens;
  return prompt;
}

// As published: control characters become line ends, white space around is cut.
std::string compared(std::string written) {
  for (char& c : written) {
    if (static_cast<unsigned char>(c) < ' ') c = '\n';
  }
  const size_t begin = written.find_first_not_of(" \n");
  if (begin == std::string::npos) return "";
  return written.substr(begin, written.find_last_not_of(" \n") + 1 - begin);
}

double score_ruler(const std::string& answer, const nlohmann::json& line) {
  const std::string written = compared(answer);
  const nlohmann::json& answers = line.at("answers");
  if (!ruler_task_named(line.at("task").get<std::string>()).any_answer_counts) {
    return share_contained(written, answers);
  }
  return std::any_of(answers.begin(), answers.end(), [&](const nlohmann::json& right) {
    return contains_folded(written, right.get<std::string>());
  });
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string text_of(const Corpus& corpus) {
  const Haystack haystack(corpus, "ruler");
  return corpus.decode(haystack.read(0, std::min(haystack.num_tokens(), kEssayTokens)));
}

std::string essays_of(const RulerConfig& config) {
  return read_task_text(config.essays,
                        "ruler",
                        "the published essays are those of Paul Graham: download them with "
                        "scripts/data/synthetic/json of https://github.com/NVIDIA/RULER and join "
                        "them in one text file");
}

constexpr std::array kWordLists = {"adjectivelist.txt", "nounlist.txt", "verblist.txt"};
constexpr const char* kWhereToGetWords =
    "the published words are the lists of the Python package wonderwords: name its folder of "
    "adjectivelist.txt, nounlist.txt and verblist.txt with --ruler.words=FOLDER, or a file of your "
    "own with one word per line";

// The lists of the package, a word or two in each line, or one file for all.
void read_words(const std::string& path, RulerSources& sources) {
  const auto read = [](const std::filesystem::path& file) {
    std::vector<std::string> words;
    std::istringstream in(read_task_text(file, "ruler", kWhereToGetWords));
    for (std::string line; std::getline(in, line);) {
      line = fmt::format("{}", fmt::join(split_words(line), " "));
      if (!line.empty()) words.push_back(std::move(line));
    }
    if (words.empty()) throw Error(fmt::format("ruler: {} has no words", file.string()));
    return words;
  };
  const std::filesystem::path folder(path);
  if (!std::filesystem::is_directory(folder)) {
    sources.words = split_words(read_task_text(folder, "ruler", kWhereToGetWords));
    return;
  }
  sources.adjectives = read(folder / kWordLists[0]);
  sources.nouns = read(folder / kWordLists[1]);
  std::set<std::string> all(sources.adjectives.begin(), sources.adjectives.end());
  all.insert(sources.nouns.begin(), sources.nouns.end());
  for (std::string& verb : read(folder / kWordLists[2])) all.insert(std::move(verb));
  sources.words.assign(all.begin(), all.end());
}

// As published: other lines of the solved example as long as its prompt has at most 500 tokens.
int64_t example_lines(const Corpus& corpus) {
  constexpr size_t kMostTokens = 500;
  int64_t lines = RulerSources().example_lines;
  const auto tokens = [&](int64_t count) {
    PythonRandom random(0);
    return corpus.encode(ruler_variables(random, count, 3).text).size();
  };
  while (tokens(lines + 1) <= kMostTokens) ++lines;
  return lines;
}

RulerSources sources_of(const Corpus& corpus, const RulerConfig& config) {
  RulerSources sources;
  const std::string text = text_of(corpus);
  const std::string essays = config.essays.empty() ? text : essays_of(config);
  sources.essay_words = split_words(essays);
  if (sources.essay_words.empty()) throw Error("ruler: the essays have no words");
  if (config.words.empty()) {
    sources.words = words_of(text, kMostWords);
  } else {
    read_words(config.words, sources);
  }
  tensor::check_value(sources.words.size() >= 40,
                      "ruler",
                      "distinct words",
                      static_cast<int64_t>(sources.words.size()),
                      "at least 40: give more text or a list as --ruler.words");
  sources.example_lines = example_lines(corpus);
  if (!config.squad.empty()) sources.squad = read_squad(config.squad, config.skip_bad);
  if (!config.hotpot.empty()) sources.hotpot = read_hotpot(config.hotpot, config.skip_bad);
  return sources;
}

// The tasks asked for; by default all whose data is there.
std::vector<const RulerTask*> tasks_of(const RulerConfig& config, const RulerSources& sources) {
  std::vector<const RulerTask*> tasks;
  const auto has_data = [&](const RulerTask& task) {
    if (task.name == "qa_1") return !sources.squad.questions.empty();
    if (task.name == "qa_2") return !sources.hotpot.questions.empty();
    return true;
  };
  if (config.tasks.empty()) {
    for (const RulerTask& task : ruler_tasks()) {
      if (has_data(task)) tasks.push_back(&task);
    }
    return tasks;
  }
  for (const std::string& name : config.tasks) {
    const RulerTask& task = ruler_task_named(name);
    if (!has_data(task)) {
      throw Error(fmt::format("ruler: {} needs question data: {}",
                              name,
                              name == "qa_1" ? kWhereToGetSquad : kWhereToGetHotpot));
    }
    if (std::find(tasks.begin(), tasks.end(), &task) == tasks.end()) tasks.push_back(&task);
  }
  return tasks;
}

// Of the user's files, the essays first.
std::vector<std::string> fingerprints_of(const RulerConfig& config) {
  std::vector<std::filesystem::path> paths{config.essays, config.squad, config.hotpot};
  if (std::filesystem::is_directory(config.words)) {
    for (const char* name : kWordLists) paths.push_back(config.words / std::filesystem::path(name));
  } else {
    paths.emplace_back(config.words);
  }
  std::vector<std::string> prints;
  for (const std::filesystem::path& path : paths) {
    if (!path.empty()) prints.push_back(fingerprint(path, "ruler"));
  }
  return prints;
}

// Mean over the tasks at every length of which all have all their samples: those of the easier
// tasks alone would flatter the model. The effective length is the longest that reaches the
// threshold.
void finish(const RulerPlan& plan, Measured& result) {
  std::map<int64_t, std::pair<double, int64_t>> by_length;  // sum of scores, samples
  for (const nlohmann::json& group : result.series.at("groups")) {
    auto& [sum, samples] = by_length[group.at("length").get<int64_t>()];
    sum += group.at("score").get<double>();
    samples += group.at("samples").get<int64_t>();
  }
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
  std::erase_if(by_length, [&](const auto& at_length) {
    return at_length.second.second < num_tasks * plan.config.samples;
  });
  int64_t effective = 0;  // of none
  nlohmann::json averages = nlohmann::json::array();
  for (const auto& [length, total] : by_length) {
    const double mean = total.first / static_cast<double>(num_tasks);
    averages.push_back({{"length", length}, {"score", mean}});
    if (mean >= kEffective) effective = length;
  }
  result.series["averages"] = std::move(averages);
  if (by_length.empty()) return;  // nothing is known
  const bool open = effective == by_length.rbegin()->first;
  result.metrics["effective_length"] = {{"length", effective},
                                        {"open", open},
                                        {"text", fmt::format("{}{}", open ? ">" : "", effective)}};
}

std::shared_ptr<const RulerPlan> make_plan(const Corpus& corpus,
                                           const RulerConfig& config,
                                           int64_t train_length) {
  const auto plan = std::make_shared<RulerPlan>();
  plan->config = config;
  plan->sources = sources_of(corpus, plan->config);
  plan->tasks = tasks_of(plan->config, plan->sources);
  choose_lengths(corpus, *plan, train_length);
  for (const int64_t length : plan->config.lengths) {
    for (size_t task = 0; task < plan->tasks.size(); ++task) {
      plan->sizes[{task, length}] = largest_size(corpus, *plan, task, length);
    }
  }
  return plan;
}

}  // namespace

std::unique_ptr<Task> make_ruler(const Corpus& corpus,
                                 const EvaluationConfig& config,
                                 const ModelFacts& model) {
  const std::shared_ptr<const RulerPlan> plan = make_plan(corpus, config.ruler, model.train_length);
  std::vector<std::string_view> names;
  for (const RulerTask* task : plan->tasks) names.push_back(task->name);
  const bool comparable = !config.ruler.essays.empty() && !plan->sources.nouns.empty() &&
                          names.size() == ruler_tasks().size();

  PromptSet set;
  set.name = "ruler";
  set.settings = {{"tasks", names},
                  {"lengths", plan->config.lengths},
                  {"samples", plan->config.samples},
                  {"seed", plan->config.seed},
                  {"essays", plan->config.essays},
                  {"words", plan->config.words},
                  {"num_words", plan->sources.words.size()},
                  {"example_lines", plan->sources.example_lines},
                  {"num_essay_words", plan->sources.essay_words.size()},
                  {"skipped", plan->sources.squad.skipped + plan->sources.hotpot.skipped},
                  {"squad", plan->config.squad},
                  {"hotpot", plan->config.hotpot},
                  {"files", fingerprints_of(plan->config)},
                  {"scoring", kRulerScoring}};
  set.size =
      static_cast<int64_t>(plan->config.lengths.size() * plan->tasks.size()) * plan->config.samples;
  set.at = [&corpus, plan](int64_t i) { return prompt_of(corpus, *plan, i); };
  set.score = score_ruler;
  set.group_by = {"task", "length"};
  set.finish = [plan, comparable](Measured& result) {
    finish(*plan, result);
    result.metrics["comparable"] = comparable;
  };
  return make_prompt_task(corpus, std::move(set));
}

}  // namespace reynard::evaluation
