// The forgetting curve as a task: for every length and repeat one sequence that copies and, per
// unrelated prefix, one that cannot (forgetting_curve.h).

#include "reynard/evaluation/forgetting_curve.h"

#include "reynard/config/json_file.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/evaluation/text_too_short.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr std::string_view kSamePrefix = "same";

// A text that targets are cut from.
struct Target {
  Corpus corpus;
  std::vector<std::vector<int64_t>> begins;  // [length][repeat]
};

// Accuracies and losses of one setting at one length, by repeat.
struct Answers {
  std::vector<double> accuracies;
  double loss_sum = 0;
  int64_t count = 0;
};
// (target, setting, length); the setting is "copy" or the name of a prefix.
using AnswerKey = std::tuple<std::string, std::string, int64_t>;

class ForgettingCurve final : public Task {
 public:
  ForgettingCurve(const Corpus& corpus, ForgettingCurveConfig config);

  std::string name() const override { return "forgetting_curve"; }
  nlohmann::json settings() const override;
  Requests requests() override;
  nlohmann::json sample(const Request& request, const Response& response) override;
  Measured measure(const Samples& samples) override;
  bool measures_part() const override { return true; }

 private:
  Request request(const Target& target,
                  size_t which,
                  int64_t repeat,
                  const std::string& setting) const;
  std::vector<int64_t> prefix(const Target& target, const std::string& name, int64_t length) const;
  std::vector<CurvePoint> points(const std::map<AnswerKey, Answers>& answers,
                                 const std::string& target,
                                 const std::string& prefix) const;
  nlohmann::json prefix_tests(const std::map<AnswerKey, Answers>& answers,
                              const std::string& target) const;

  ForgettingCurveConfig config_;
  std::vector<int64_t> lengths_;
  std::vector<Target> targets_;
  std::map<std::string, Corpus> prefixes_;  // all but "same"
};

ForgettingCurve::ForgettingCurve(const Corpus& corpus, ForgettingCurveConfig config)
    : config_(std::move(config)),
      lengths_(target_lengths(config_.grid, config_.length, config_.points)) {
  tensor::check_value(
      !config_.targets.empty(), "forgetting_curve", "targets", "[]", "at least one text");
  tensor::check_value(
      !config_.prefixes.empty(), "forgetting_curve", "prefixes", "[]", "at least one text");
  const auto seed = static_cast<uint64_t>(config_.seed);
  for (const std::string& name : config_.targets) {
    Target target{source_named(corpus, name, 1000 * config_.length, config_.seed), {}};
    target.begins = target_begins(lengths_, config_.repeats, target.corpus.num_tokens, seed);
    targets_.push_back(std::move(target));
  }
  for (const std::string& name : config_.prefixes) {
    if (name == kSamePrefix) continue;
    // Another seed than that of targets: unrelated random text.
    Corpus source = source_named(corpus, name, config_.length, static_cast<int64_t>(seed + 1));
    if (source.num_tokens < config_.length) {
      throw TextTooShort(
          fmt::format("forgetting_curve: tokens of prefix source '{}' = {}; expected at least the "
                      "longest length {}",
                      name,
                      source.num_tokens,
                      config_.length));
    }
    prefixes_.emplace(name, std::move(source));
  }
}

nlohmann::json ForgettingCurve::settings() const {
  const Corpus& first = targets_.front().corpus;
  nlohmann::json tokens = nlohmann::json::object();
  for (const Target& target : targets_) tokens[target.corpus.name] = target.corpus.num_tokens;
  return {{"length", config_.length},
          {"grid", config::name_of(config_.grid)},
          {"points", config_.points},
          {"repeats", config_.repeats},
          {"seed", config_.seed},
          {"targets", config_.targets},
          {"prefixes", config_.prefixes},
          {"bos", config::or_null(first.bos)},
          {"eos", config::or_null(first.eos)},
          {"tokens", std::move(tokens)}};
}

Requests ForgettingCurve::requests() {
  const auto settings = static_cast<int64_t>(1 + config_.prefixes.size());
  const auto num_targets = static_cast<int64_t>(targets_.size());
  const auto size =
      static_cast<int64_t>(lengths_.size()) * config_.repeats * num_targets * settings;
  // Lengths are outermost: where the memory ends, all curves end at the same length.
  return {
      size, [this, settings, num_targets](int64_t i) {
        const int64_t setting = i % settings;
        const int64_t target = i / settings % num_targets;
        const int64_t repeat = i / settings / num_targets % config_.repeats;
        const auto which = static_cast<size_t>(i / settings / num_targets / config_.repeats);
        return request(
            targets_[target], which, repeat, setting == 0 ? "copy" : config_.prefixes[setting - 1]);
      }};
}

// The unrelated text is the end of its source, the same for all repeats.
std::vector<int64_t> ForgettingCurve::prefix(const Target& target,
                                             const std::string& name,
                                             int64_t length) const {
  const Corpus& source = name == kSamePrefix ? target.corpus : prefixes_.at(name);
  return source.read(source.num_tokens - length, source.num_tokens);
}

Request ForgettingCurve::request(const Target& target,
                                 size_t which,
                                 int64_t repeat,
                                 const std::string& setting) const {
  const int64_t length = lengths_[which];
  const int64_t begin = target.begins[which][repeat];
  const Corpus& corpus = target.corpus;
  const std::vector<int64_t> text = corpus.read(begin, begin + length);
  const bool copy = setting == "copy";
  const CurveSequence sequence =
      curve_sequence(copy ? text : prefix(target, setting, length), text, corpus.bos, corpus.eos);
  // What follows the scored tokens (EOS) cannot change their scores and is not computed.
  const auto first = sequence.tokens.begin();
  Score score{{first, first + sequence.scored_begin},
              {first + sequence.scored_begin, first + sequence.scored_end},
              {}};
  nlohmann::json about{{"setting", copy ? "copy" : "lm"},
                       {"target", corpus.name},
                       {"length", length},
                       {"repeat", repeat},
                       {"begin", begin}};
  if (!copy) about["prefix"] = setting;
  return {fmt::format("{} {} {} {}", corpus.name, copy ? "copy" : "lm " + setting, length, repeat),
          std::move(about),
          std::move(score)};
}

nlohmann::json ForgettingCurve::sample(const Request& request, const Response& response) {
  const Scored& scored = std::get<Scored>(response);
  int64_t hits = 0;
  for (const uint8_t hit : scored.hits) hits += hit;
  double loss = 0;
  int64_t counted = 0;  // a target of one token may stand at the very beginning
  for (const float logprob : scored.logprobs) {
    if (std::isnan(logprob)) continue;
    loss -= logprob;
    ++counted;
  }
  nlohmann::json line = request.about;
  line["hits"] = hits;
  line["scored"] = scored.hits.size();
  line["loss"] = counted ? nlohmann::json(loss / static_cast<double>(counted)) : nlohmann::json();
  return line;
}

std::vector<CurvePoint> ForgettingCurve::points(const std::map<AnswerKey, Answers>& answers,
                                                const std::string& target,
                                                const std::string& prefix) const {
  std::vector<CurvePoint> points;
  for (const int64_t length : lengths_) {
    const auto copy = answers.find({target, "copy", length});
    const auto lm = answers.find({target, prefix, length});
    if (copy == answers.end() || lm == answers.end()) break;
    // Out of memory: the curve ends before the first length that is not whole.
    if (copy->second.count < config_.repeats || lm->second.count < config_.repeats) break;
    CurvePoint point = curve_point(length, lm->second.accuracies, copy->second.accuracies);
    const auto repeats = static_cast<double>(config_.repeats);
    point.lm_loss = lm->second.loss_sum / repeats;
    point.copy_loss = copy->second.loss_sum / repeats;
    if (std::isnan(*point.lm_loss)) point.lm_loss = point.copy_loss = {};
    points.push_back(std::move(point));
  }
  compare_over_lengths(points);
  return points;
}

// Per length: do the accuracies without help depend on which natural text stands before?
nlohmann::json ForgettingCurve::prefix_tests(const std::map<AnswerKey, Answers>& answers,
                                             const std::string& target) const {
  nlohmann::json tests = nlohmann::json::array();
  for (const int64_t length : lengths_) {
    std::vector<std::vector<double>> groups;
    for (const std::string& prefix : config_.prefixes) {
      const auto found = answers.find({target, prefix, length});
      const bool whole = found != answers.end() && found->second.count == config_.repeats;
      if (prefix != kRandomSource && whole) groups.push_back(found->second.accuracies);
    }
    if (groups.size() < 2 || config_.repeats < 2) continue;
    nlohmann::json test = group_tests(groups);
    test["target"] = target;
    test["length"] = length;
    tests.push_back(std::move(test));
  }
  return tests;
}

Measured ForgettingCurve::measure(const Samples& samples) {
  std::map<AnswerKey, Answers> answers;
  samples.for_each([&](const nlohmann::json& line) {
    const bool copy = line.at("setting") == "copy";
    Answers& at =
        answers[{line.at("target"), copy ? "copy" : line.at("prefix"), line.at("length")}];
    at.accuracies.resize(config_.repeats);
    // As f32, like the published results.
    at.accuracies.at(line.at("repeat").get<size_t>()) =
        line.at("hits").get<float>() / line.at("scored").get<float>();
    at.loss_sum += line.at("loss").is_number() ? line.at("loss").get<double>() : std::nan("");
    ++at.count;
  });

  Measured result;
  const std::string& first = config_.targets.front();
  const std::vector<CurvePoint> main = points(answers, first, config_.prefixes.front());
  const auto list_of = [](const std::vector<CurvePoint>& points) {
    nlohmann::json list = nlohmann::json::array();
    for (const CurvePoint& point : points) list.push_back(to_json(point));
    return list;
  };
  result.metrics = curve_metrics(main);
  result.metrics["bos"] = config::or_null(targets_.front().corpus.bos);
  result.metrics["eos"] = config::or_null(targets_.front().corpus.eos);
  result.series["points"] = list_of(main);
  if (config_.targets.size() * config_.prefixes.size() == 1) return result;

  result.series["curves"] = nlohmann::json::array();
  result.series["prefix_tests"] = nlohmann::json::array();
  for (const std::string& target : config_.targets) {
    for (const std::string& prefix : config_.prefixes) {
      const std::vector<CurvePoint> curve = points(answers, target, prefix);
      nlohmann::json entry{{"target", target}, {"prefix", prefix}, {"points", list_of(curve)}};
      entry.update(curve_metrics(curve));
      result.series["curves"].push_back(std::move(entry));
    }
    for (nlohmann::json& test : prefix_tests(answers, target)) {
      result.series["prefix_tests"].push_back(std::move(test));
    }
  }
  return result;
}

}  // namespace

std::unique_ptr<Task> make_forgetting_curve(const Corpus& corpus,
                                            const EvaluationConfig& config,
                                            const ModelFacts& model) {
  ForgettingCurveConfig settings = config.forgetting_curve;
  if (settings.length == 0) settings.length = model.train_length ? model.train_length : 1024;
  settings.targets = each_once(settings.targets);
  settings.prefixes = each_once(settings.prefixes);
  return std::make_unique<ForgettingCurve>(corpus, settings);
}

}  // namespace reynard::evaluation
