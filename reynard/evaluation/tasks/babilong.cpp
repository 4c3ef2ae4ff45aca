// BABILong as a task: the facts of a story spread in order over the sentences of other text.

#include "reynard/evaluation/babilong.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr int64_t kShortestSentence = 10;  // tokens, as published

struct BabilongPlan {
  BabilongConfig config;
  Haystack haystack;
  std::vector<const BabiTask*> tasks;
  std::vector<std::vector<BabiStory>> stories;  // per task; empty: they are generated
  int64_t skipped = 0;                          // malformed lines
};

// The stories of a user's folder: the first file, in order of names, that begins with "qa1_".
BabiFile stories_in(const std::string& folder, std::string_view task, bool skip_bad) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) {
    throw Error(fmt::format(
        "babilong: {} is not a folder; download "
        "https://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz, unpack it "
        "and name its en-10k folder with --babilong.facts",
        folder));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(fmt::format("{}_", task))) {
      files.push_back(entry.path());
    }
  }
  if (files.empty()) throw Error(fmt::format("babilong: {} has no {}_*.txt", folder, task));
  return read_babi(*std::min_element(files.begin(), files.end()), skip_bad);
}

BabiStory story_of(const BabilongPlan& plan, size_t task, int64_t sample, int64_t most_facts) {
  // One stream per sample of a task: lengths that hold the same facts ask the same questions.
  PythonRandom random = sample_random(plan.config.seed * 31 + static_cast<int64_t>(task), sample);
  if (plan.stories[task].empty()) return plan.tasks[task]->make(random, most_facts);
  const std::vector<BabiStory>& stories = plan.stories[task];
  const auto size = static_cast<int64_t>(stories.size());
  const int64_t first = random.up_to(size - 1);
  for (int64_t i = 0; i < size; ++i) {
    const BabiStory& story = stories[(first + i) % size];
    if (static_cast<int64_t>(story.facts.size()) <= most_facts) return story;
  }
  throw Error(fmt::format("babilong: no story of {} has at most {} facts; give longer lengths",
                          plan.tasks[task]->name,
                          most_facts));
}

// Sentences of other text with at most `budget` tokens together, from a random place.
std::vector<std::string> background(const Corpus& corpus,
                                    const Haystack& haystack,
                                    PythonRandom& random,
                                    int64_t budget) {
  std::vector<std::string> sentences;
  if (budget <= 0) return sentences;
  const int64_t begin = random.up_to(haystack.num_tokens() - 1);
  const std::string text = corpus.decode(haystack.read(begin, budget));
  size_t start = 0;
  while (start < text.size()) {
    size_t end = text.find_first_of(".!?", start);
    end = end == std::string::npos ? text.size() : end + 1;
    std::string sentence;
    for (const char c : text.substr(start, end - start)) {
      const bool blank = c == '\n' || c == '\r' || c == ' ';
      if (blank && (sentence.empty() || sentence.back() == ' ')) continue;
      sentence += blank ? ' ' : c;
    }
    start = end;
    const auto tokens = static_cast<int64_t>(corpus.encode(sentence).size());
    if (tokens >= kShortestSentence) sentences.push_back(std::move(sentence));
  }
  return sentences;
}

std::string mixed(const std::vector<std::string>& facts,
                  const std::vector<std::string>& sentences,
                  PythonRandom& random) {
  std::vector<int64_t> gaps;  // ascending, so that facts keep their order
  for (size_t i = 0; i < facts.size(); ++i) {
    gaps.push_back(random.up_to(static_cast<int64_t>(sentences.size())));
  }
  std::sort(gaps.begin(), gaps.end());
  std::vector<std::string> all;
  for (size_t i = 0, fact = 0; i <= sentences.size(); ++i) {
    while (fact < facts.size() && gaps[fact] == static_cast<int64_t>(i)) {
      all.push_back(facts[fact++]);
    }
    if (i < sentences.size()) all.push_back(sentences[i]);
  }
  return fmt::format("{}", fmt::join(all, " "));
}

Prompt prompt_of(const Corpus& corpus, const BabilongPlan& plan, int64_t request) {
  const int64_t sample = request % plan.config.samples;
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
  const auto task = static_cast<size_t>(request / plan.config.samples % num_tasks);
  const int64_t length = plan.config.lengths[request / plan.config.samples / num_tasks];
  const BabiTask& kind = *plan.tasks[task];
  const auto frame =
      static_cast<int64_t>(prompt_tokens(corpus, babilong_prompt(kind, "", "")).size());
  const auto tokens_of = [&](const BabiStory& story) {
    const std::string text = fmt::format("{} {}", fmt::join(story.facts, " "), story.question);
    return static_cast<int64_t>(corpus.encode(text).size());
  };
  // As published, at most a fact per eight tokens; fewer where facts have more tokens (bytes).
  int64_t most_facts = std::max<int64_t>(2, (length - frame) / 8);
  BabiStory story = story_of(plan, task, sample, most_facts);
  while (tokens_of(story) > length - frame && most_facts > 2) {
    most_facts = std::max<int64_t>(2, most_facts / 2);
    story = story_of(plan, task, sample, most_facts);
  }
  const int64_t told = tokens_of(story);
  PythonRandom random = sample_random(plan.config.seed, request);
  int64_t budget = length - frame - told - static_cast<int64_t>(story.facts.size());
  Prompt prompt;
  do {  // text in whole sentences may have a few tokens more when it is cut anew
    const auto sentences = background(corpus, plan.haystack, random, budget);
    prompt.tokens = prompt_tokens(
        corpus, babilong_prompt(kind, mixed(story.facts, sentences, random), story.question));
    budget -= 16;
  } while (static_cast<int64_t>(prompt.tokens.size()) > length && budget > 0);
  prompt.id = fmt::format("{} {} {}", kind.name, length, sample);
  prompt.about = {{"task", kind.name},
                  {"length", length},
                  {"sample", sample},
                  {"question", story.question},
                  {"facts", story.facts.size()}};
  prompt.answers = {story.answer};
  prompt.max_tokens = plan.config.max_tokens;
  return prompt;
}

void check_lengths(const Corpus& corpus, const BabilongPlan& plan) {
  for (const BabiTask* task : plan.tasks) {
    // Two sentences and a question have some 40 words; in bytes, 250.
    PythonRandom random(0);
    const BabiStory story = task->make(random, 2);
    const std::string facts = fmt::format("{}", fmt::join(story.facts, " "));
    const auto least = static_cast<int64_t>(
        prompt_tokens(corpus, babilong_prompt(*task, facts, story.question)).size());
    tensor::check_value(
        plan.config.lengths.front() >= 2 * least,
        "babilong",
        "lengths",
        plan.config.lengths.front(),
        fmt::format(">= {}: twice the prompt of {} without other text", 2 * least, task->name));
  }
}

}  // namespace

std::unique_ptr<Task> make_babilong(const Corpus& corpus,
                                    const EvaluationConfig& config,
                                    const ModelFacts& model) {
  const auto plan = std::make_shared<BabilongPlan>(
      BabilongPlan{config.babilong, Haystack(corpus, "babilong"), {}, {}});
  plan->config.lengths = test_lengths(config.babilong.lengths, model.train_length);
  for (const std::string& name : plan->config.tasks) {
    plan->tasks.push_back(&babi_task_named(name));
    plan->stories.emplace_back();
    if (plan->config.facts.empty()) continue;
    BabiFile file = stories_in(plan->config.facts, name, plan->config.skip_bad);
    plan->stories.back() = std::move(file.stories);
    plan->skipped += file.skipped;
  }
  tensor::check_value(!plan->tasks.empty(), "babilong", "tasks", "[]", "at least one");
  check_lengths(corpus, *plan);

  PromptSet set;
  set.name = "babilong";
  set.settings = {{"tasks", plan->config.tasks},
                  {"lengths", plan->config.lengths},
                  {"samples", plan->config.samples},
                  {"max_tokens", plan->config.max_tokens},
                  {"seed", plan->config.seed},
                  {"skipped", plan->skipped},
                  {"facts", plan->config.facts}};
  set.size =
      static_cast<int64_t>(plan->config.lengths.size() * plan->tasks.size()) * plan->config.samples;
  set.at = [&corpus, plan](int64_t i) { return prompt_of(corpus, *plan, i); };
  set.score = [](const std::string& written, const nlohmann::json& line) {
    const BabiTask& task = babi_task_named(line.at("task").get<std::string>());
    const std::string question = line.at("question").get<std::string>();
    return babilong_correct(task, written, question, line.at("answers")[0]) ? 1.0 : 0.0;
  };
  set.group_by = {"task", "length"};
  return make_prompt_task(corpus, std::move(set));
}

}  // namespace reynard::evaluation
