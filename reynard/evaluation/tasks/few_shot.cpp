// Few-shot questions (Tworkowski et al. 2023, section 4.3; templates of Hao et al. 2022): solved
// examples fill the context, then one more question is asked.

#include "reynard/config/json_file.h"
#include "reynard/evaluation/few_shot_items.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/shuffle.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace reynard::evaluation {

namespace {

// 1: options have the tokens of solved examples, and case is that of all letters, not of ASCII's.
// 2: a written answer may begin with line ends.
constexpr int64_t kChoiceScoring = 1, kAnswerScoring = 2;

class FewShot final : public Task {
 public:
  FewShot(const Corpus& corpus, FewShotConfig config, int64_t train_length);

  std::string name() const override { return "few_shot"; }
  nlohmann::json settings() const override {
    return {{"kind", config::name_of(config_.kind)},
            {"lengths", config_.lengths},
            {"draws", config_.draws},
            {"items", items_.size()},
            {"examples", examples_.items.size()},
            {"skipped", skipped_},
            {"train", fingerprint(config_.train, "few_shot")},
            {"test", fingerprint(config_.test, "few_shot")},
            {"options", options_},
            {"max_tokens", config_.max_tokens},
            {"seed", config_.seed},
            {"scoring", chooses() ? kChoiceScoring : kAnswerScoring}};
  }
  Requests requests() override;
  nlohmann::json sample(const Request& request, const Response& response) override;
  Measured measure(const Samples& samples) override;

 private:
  bool chooses() const { return config_.kind == FewShotKind::kChoice; }
  std::string question_text(const FewShotItem& item) const {
    return fmt::format("Question: {} {}:", item.question, chooses() ? "Type" : "Answer");
  }
  // Solved examples in the order of a draw, as many as leave room for the longest question.
  std::string examples_text(int64_t length, int64_t draw) const;
  Request request(int64_t length, int64_t draw, int64_t item, int64_t option) const;

  const Corpus& corpus_;
  FewShotConfig config_;
  FewShotFile examples_;
  std::vector<FewShotItem> items_;
  std::vector<std::string> options_;  // all labels; empty: answers are written
  std::vector<int64_t> line_ends_;    // that end a written answer
  int64_t skipped_ = 0;
  int64_t longest_item_ = 0;  // tokens
  mutable std::map<std::pair<int64_t, int64_t>, std::string> contexts_;
};

FewShot::FewShot(const Corpus& corpus, FewShotConfig config, int64_t train_length)
    : corpus_(corpus),
      config_(std::move(config)),
      examples_(read_few_shot(config_.train, "train", config_)) {
  FewShotFile test = read_few_shot(config_.test, "test", config_);
  skipped_ = examples_.skipped + test.skipped;
  items_ = std::move(test.items);
  if (config_.items > 0 && config_.items < static_cast<int64_t>(items_.size())) {
    items_.resize(config_.items);
  }
  if (chooses()) {
    std::set<std::string> labels;
    for (const FewShotItem& item : examples_.items) labels.insert(item.answers.front());
    for (const FewShotItem& item : items_) labels.insert(item.answers.front());
    options_.assign(labels.begin(), labels.end());
  } else {
    line_ends_ = line_ends(corpus);
  }
  for (const FewShotItem& item : items_) {
    const std::string text = question_text(item) + " " + item.answers.front();
    longest_item_ = std::max(longest_item_, static_cast<int64_t>(corpus.encode(text).size()) + 2);
  }
  if (!chooses()) longest_item_ += config_.max_tokens;
  config_.lengths = test_lengths(
      config_.lengths, train_length, [&](int64_t length) { return length > longest_item_; });
  tensor::check_value(config_.lengths.front() > longest_item_,
                      "few_shot",
                      "--few_shot.lengths",
                      config_.lengths.front(),
                      fmt::format("> {}: the longest question alone", longest_item_));
}

Requests FewShot::requests() {
  const auto options = static_cast<int64_t>(std::max<size_t>(1, options_.size()));
  const auto items = static_cast<int64_t>(items_.size());
  const int64_t per_length = config_.draws * items * options;
  return {static_cast<int64_t>(config_.lengths.size()) * per_length,
          [this, options, items, per_length](int64_t i) {
            return request(config_.lengths[i / per_length],
                           i / options / items % config_.draws,
                           i / options % items,
                           i % options);
          }};
}

std::string FewShot::examples_text(int64_t length, int64_t draw) const {
  const auto known = contexts_.find({length, draw});
  if (known != contexts_.end()) return known->second;
  std::vector<size_t> order(examples_.items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  PythonRandom random = sample_random(config_.seed, draw);
  shuffle(order, random);
  std::string text;
  int64_t room = length - longest_item_;
  for (const size_t i : order) {
    const FewShotItem& item = examples_.items[i];
    const std::string example = fmt::format("{} {}\n", question_text(item), item.answers.front());
    room -= static_cast<int64_t>(corpus_.encode(example).size());
    if (room < 0) break;
    text += example;
  }
  contexts_.clear();  // one draw after the other
  contexts_[{length, draw}] = text;
  return text;
}

Request FewShot::request(int64_t length, int64_t draw, int64_t item, int64_t option) const {
  const FewShotItem& asked = items_[item];
  nlohmann::json about{
      {"length", length}, {"draw", draw}, {"item", item}, {"answers", asked.answers}};
  const std::string text = examples_text(length, draw) + question_text(asked);
  std::vector<int64_t> prompt = prompt_tokens(corpus_, text);
  if (!chooses()) {
    Generate query;
    query.prompt = std::move(prompt);
    query.max_tokens = config_.max_tokens;
    query.stop = stop_tokens(corpus_);
    query.stop_after_text = line_ends_;
    return {fmt::format("{} {} {}", length, draw, item), std::move(about), std::move(query)};
  }
  about["option"] = options_[option];
  // In one piece with the prompt, as in solved examples: some tokenizers put a mark before a text.
  const std::vector<int64_t> whole = prompt_tokens(corpus_, text + " " + options_[option]);
  const auto begin =
      std::mismatch(whole.begin(), whole.end() - 1, prompt.begin(), prompt.end()).first;
  Score score{{whole.begin(), begin}, {begin, whole.end()}, {}};
  return {
      fmt::format("{} {} {} {}", length, draw, item, option), std::move(about), std::move(score)};
}

nlohmann::json FewShot::sample(const Request& request, const Response& response) {
  nlohmann::json line = request.about;
  if (const auto* scored = std::get_if<Scored>(&response)) {
    double sum = 0;
    for (const float logprob : scored->logprobs) sum += logprob;
    line["logprob"] = sum;
    return line;
  }
  const std::string written = first_line_of(corpus_.decode(std::get<Generated>(response).tokens));
  double score = 0;
  for (const nlohmann::json& answer : line.at("answers")) {
    if (compared_answer(written) == compared_answer(answer.get<std::string>())) score = 1;
  }
  line["answer"] = written;
  line["score"] = score;
  return line;
}

// Accuracy of every draw, then mean, deviation and 95 % interval over draws.
Measured FewShot::measure(const Samples& samples) {
  struct Best {
    double logprob = -INFINITY, score = 0;
  };
  std::map<int64_t, std::map<int64_t, std::map<int64_t, Best>>> answers;  // length, draw, item
  samples.for_each([&](const nlohmann::json& line) {
    Best& best = answers[line.at("length")][line.at("draw")][line.at("item")];
    if (!line.contains("logprob")) {
      best.score = line.at("score");
    } else if (const double logprob = line.at("logprob"); logprob > best.logprob) {
      best = {logprob, line.at("option") == line.at("answers")[0] ? 1.0 : 0.0};
    }
  });
  Measured result;
  result.series["groups"] = nlohmann::json::array();
  std::vector<double> all;
  for (const auto& [length, draws] : answers) {
    std::vector<double> accuracies;
    for (const auto& [draw, items] : draws) {
      double right = 0;
      for (const auto& [item, best] : items) right += best.score;
      accuracies.push_back(right / static_cast<double>(items.size()));
    }
    const statistics::Moments m = statistics::moments(accuracies);
    result.series["groups"].push_back(
        {{"length", length},
         {"score", m.mean},
         {"deviation", m.sample_deviation},
         {"standard_error", config::number_or_null(statistics::standard_error(accuracies))},
         {"samples", accuracies.size()}});
    all.insert(all.end(), accuracies.begin(), accuracies.end());
  }
  result.metrics = {
      {"score", statistics::moments(all).mean}, {"draws", config_.draws}, {"skipped", skipped_}};
  if (chooses()) result.metrics["chance"] = 1 / static_cast<double>(options_.size());
  return result;
}

}  // namespace

config::EnumNames<FewShotKind> enum_names(FewShotKind) {
  return {{FewShotKind::kChoice, "choice"}, {FewShotKind::kAnswer, "answer"}};
}

std::unique_ptr<Task> make_few_shot(const Corpus& corpus,
                                    const EvaluationConfig& config,
                                    const ModelFacts& model) {
  return std::make_unique<FewShot>(corpus, config.few_shot, model.train_length);
}

}  // namespace reynard::evaluation
