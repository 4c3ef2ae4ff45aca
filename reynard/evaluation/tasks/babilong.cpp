// BABILong as a task: the facts of a story spread in order over the sentences of other text.

#include "reynard/evaluation/babilong.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/task_files.h"
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
// 1: people of qa5 move to other places, 2: they give to those who are where they are
constexpr int64_t kGivingScoring = 2;

struct BabilongPlan {
  BabilongConfig config;
  Haystack haystack;
  std::vector<const BabiTask*> tasks;
  std::vector<std::vector<BabiStory>> stories;  // per task; empty: they are generated
  int64_t skipped = 0;                          // malformed lines
  std::vector<std::string> fingerprints;        // of the files
};

// The task's file in a user's folder: the first, in order of names, that begins with "qa1_".
std::filesystem::path file_in(const std::string& folder, std::string_view task) {
  std::vector<std::filesystem::path> files;
  constexpr const char* kWhereToGet =
      "download https://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz, unpack it "
      "and "
      "name its en-10k folder with --babilong.facts=FOLDER";
  if (!std::filesystem::is_directory(folder)) {
    throw Error(fmt::format("babilong: {} is not a folder; {}", folder, kWhereToGet));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(fmt::format("{}_", task))) {
      files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    throw Error(fmt::format("babilong: {} has no {}_*.txt; {}", folder, task, kWhereToGet));
  }
  return *std::min_element(files.begin(), files.end());
}

BabiStory story_of(const BabilongPlan& plan, size_t task, int64_t sample, int64_t most_facts) {
  // One stream per sample of a task: lengths that hold the same facts ask the same questions.
  const uint64_t seed = static_cast<uint64_t>(plan.config.seed) * 31 + task;
  PythonRandom random = sample_random(static_cast<int64_t>(seed), sample);
  if (plan.stories[task].empty()) return plan.tasks[task]->make(random, most_facts);
  const std::vector<BabiStory>& stories = plan.stories[task];
  const auto size = static_cast<int64_t>(stories.size());
  const int64_t first = random.up_to(size - 1);
  for (int64_t i = 0; i < size; ++i) {
    const BabiStory& story = stories[(first + i) % size];
    if (static_cast<int64_t>(story.facts.size()) <= most_facts) return story;
  }
  throw Error(
      fmt::format("babilong: no story of {} has at most {} facts; give longer --babilong.lengths",
                  plan.tasks[task]->name,
                  most_facts));
}

// What stands between the ends of sentences, with single blanks; the first and the last are pieces.
std::vector<std::string> published_sentences(const std::string& text) {
  std::vector<std::string> sentences;
  for (size_t start = 0; start < text.size();) {
    size_t end = text.find_first_of(".!?", start);
    end = end == std::string::npos ? text.size() : end + 1;
    std::string sentence;
    for (const char c : text.substr(start, end - start)) {
      const bool blank = c == '\n' || c == '\r' || c == ' ';
      if (blank && (sentence.empty() || sentence.back() == ' ')) continue;
      sentence += blank ? ' ' : c;
    }
    start = end;
    sentences.push_back(std::move(sentence));
  }
  return sentences;
}

// Sentences of other text from a random place on, `budget` tokens together: as published, short
// ones are left out and the last is cut. Fewer tokens where the text hardly has sentences.
std::vector<std::string> background(const Corpus& corpus,
                                    const Haystack& haystack,
                                    PythonRandom& random,
                                    int64_t budget) {
  std::vector<std::string> chosen;
  int64_t place = random.up_to(haystack.num_tokens() - 1);
  for (int barren = 0; budget > 0 && barren < 8;) {
    const int64_t count = budget + 512;  // the pieces at both ends are left out
    std::vector<std::string> sentences =
        published_sentences(corpus.decode(haystack.read(place, count)));
    place = (place + count) % haystack.num_tokens();
    const size_t before = chosen.size();
    for (size_t i = 1; i + 1 < sentences.size() && budget > 0; ++i) {
      std::vector<int64_t> tokens = corpus.encode(" " + sentences[i]);  // joined by blanks
      if (static_cast<int64_t>(tokens.size()) < kShortestSentence) continue;
      if (static_cast<int64_t>(tokens.size()) > budget) {
        tokens.resize(budget);
        const std::string cut = corpus.decode(tokens);
        sentences[i] = cut.substr(std::min(cut.find_first_not_of(' '), cut.size()));
      }
      budget -= static_cast<int64_t>(tokens.size());
      chosen.push_back(std::move(sentences[i]));
    }
    barren = chosen.size() == before ? barren + 1 : 0;
  }
  return chosen;
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
  const auto [task, length, sample] =
      cell_of(request, plan.config.lengths, plan.tasks.size(), plan.config.samples);
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
  PythonRandom random = sample_random(plan.config.seed, request);
  int64_t budget = length - frame - tokens_of(story);
  Prompt prompt;
  do {  // joined sentences may have a few tokens more
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

// Tokens of the task's prompt without other text.
int64_t least_tokens(const Corpus& corpus, const BabiTask& task) {
  // Two sentences and a question have some 40 words; in bytes, 250.
  PythonRandom random(0);
  const BabiStory story = task.make(random, 2);
  const std::string facts = fmt::format("{}", fmt::join(story.facts, " "));
  return static_cast<int64_t>(
      prompt_tokens(corpus, babilong_prompt(task, facts, story.question)).size());
}

// Sets the lengths; those that were asked for must leave room for other text.
void choose_lengths(const Corpus& corpus, BabilongPlan& plan, int64_t train_length) {
  int64_t least = 0;
  std::string_view longest;
  for (const BabiTask* task : plan.tasks) {
    const int64_t tokens = 2 * least_tokens(corpus, *task);
    if (tokens > least) longest = task->name;
    least = std::max(least, tokens);
  }
  plan.config.lengths = test_lengths(
      plan.config.lengths, train_length, [&](int64_t length) { return length >= least; });
  tensor::check_value(
      plan.config.lengths.front() >= least,
      "babilong",
      "--babilong.lengths",
      plan.config.lengths.front(),
      fmt::format(">= {}: twice the prompt of {} without other text", least, longest));
}

}  // namespace

std::unique_ptr<Task> make_babilong(const Corpus& corpus,
                                    const EvaluationConfig& config,
                                    const ModelFacts& model) {
  const auto plan = std::make_shared<BabilongPlan>(
      BabilongPlan{config.babilong, Haystack(corpus, "babilong"), {}, {}, 0, {}});
  plan->config.tasks = each_once(plan->config.tasks);
  for (const std::string& name : plan->config.tasks) {
    plan->tasks.push_back(&babi_task_named(name));
    plan->stories.emplace_back();
    if (plan->config.facts.empty()) continue;
    const std::filesystem::path path = file_in(plan->config.facts, name);
    BabiFile file = read_babi(path, plan->config.skip_bad);
    plan->fingerprints.push_back(fingerprint(path, "babilong"));
    plan->stories.back() = std::move(file.stories);
    plan->skipped += file.skipped;
  }
  tensor::check_value(!plan->tasks.empty(), "babilong", "tasks", "[]", "at least one");
  choose_lengths(corpus, *plan, model.train_length);

  PromptSet set;
  set.name = "babilong";
  set.settings = {{"tasks", plan->config.tasks},
                  {"lengths", plan->config.lengths},
                  {"samples", plan->config.samples},
                  {"max_tokens", plan->config.max_tokens},
                  {"seed", plan->config.seed},
                  {"skipped", plan->skipped},
                  {"facts", plan->config.facts},
                  {"files", plan->fingerprints}};
  const auto& names = plan->config.tasks;
  const bool gives = std::find(names.begin(), names.end(), "qa5") != names.end();
  if (gives && plan->config.facts.empty()) set.settings["scoring"] = kGivingScoring;
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
