#include "reynard/report/compare.h"

#include "reynard/report/curve_words.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace reynard::report {

namespace {

constexpr double kLevel = 0.05;
// Of the margin of seeds. Losses of training runs have heavy tails (copying emerges late in one of
// ten): at the quantile of 5 % up to 9 of 100 pages called seeds of one recipe different, at this
// one at most 5 (docs/evaluation.md).
constexpr double kSeedLevel = 0.025;

constexpr std::string_view kCurve = "forgetting_curve";

double loss_of(const nlohmann::json& line) {
  return number_at(line, "/loss");
}
// Windows that overlap and streams of documents score the same text again.
double windowed_loss_of(const nlohmann::json& line) {
  return text_at(line, "/kind") == "windowed" ? loss_of(line) : std::nan("");
}
double scored_of(const nlohmann::json& line) {
  return number_at(line, "/scored");
}
double score_of(const nlohmann::json& line) {
  return number_at(line, "/score");
}

using Lines = std::vector<nlohmann::json>;
using Values = std::map<std::string, double>;  // by the sample's id

// One number of each sample line, where it has one.
template <double (*value)(const nlohmann::json&)>
Values of_each_line(const Lines& lines) {
  Values values;
  for (const nlohmann::json& line : lines) {
    const double x = value(line);
    if (!std::isnan(x)) values[text_at(line, "/id")] = x;
  }
  return values;
}

// Questions with options have a line of each option: right where the most probable one is.
Values answers_to_questions(const Lines& lines) {
  Values values = of_each_line<score_of>(lines);
  std::map<std::string, double> best;
  for (const nlohmann::json& line : lines) {
    const double logprob = number_at(line, "/logprob");
    const std::string id = text_at(line, "/id");  // "length draw item option"
    const std::string question = id.substr(0, id.rfind(' '));
    if (std::isnan(logprob) || (best.contains(question) && best[question] >= logprob)) continue;
    best[question] = logprob;
    values[question] = text_at(line, "/option") == text_at(line, "/answers/0") ? 1 : 0;
  }
  return values;
}

// What having just seen a text adds to the accuracy on it: of the copy, less the mean of that on
// the same tokens after unrelated texts. In whole hits, so that equal gains are equal to the bit.
Values gains_of_texts(const Lines& lines) {
  struct Text {
    double copied = std::nan(""), unseen = 0, num_unseen = 0, scored = 0;
  };
  std::map<std::string, Text> texts;
  for (const nlohmann::json& line : lines) {
    Text& text = texts[fmt::format("{} {} {}",
                                   text_at(line, "/target"),
                                   number_at(line, "/length"),
                                   number_at(line, "/repeat"))];
    const double hits = number_at(line, "/hits");
    text.scored = number_at(line, "/scored");
    if (text_at(line, "/setting") == "copy") {
      text.copied = hits;
    } else {
      text.unseen += hits;
      ++text.num_unseen;
    }
  }
  Values gains;
  for (const auto& [id, text] : texts) {
    const double gain =
        (text.copied * text.num_unseen - text.unseen) / (text.num_unseen * text.scored);
    if (!std::isnan(gain)) gains[id] = gain;
  }
  return gains;
}

std::string the_sample(const std::string& id) {
  return id;
}
std::string the_question(const std::string& id) {  // "length draw item"
  return id.substr(id.rfind(' ') + 1);
}
// The same story or question is asked at every length.
std::string the_story(const std::string& id) {  // "task length sample"
  return id.substr(0, id.find(' ')) + id.substr(std::min(id.rfind(' '), id.size()));
}

// A perplexity is a mean over tokens, of which the last window of a document scores fewer.
Values tokens_of_windows(const Lines& lines) {
  return of_each_line<scored_of>(lines);
}
// LongBench's score is the mean of its tasks, however many samples each has.
Values shares_of_tasks(const Lines& lines) {
  std::map<std::string, double> sizes;
  for (const nlohmann::json& line : lines) ++sizes[text_at(line, "/task")];
  Values shares;
  for (const nlohmann::json& line : lines) {
    shares[text_at(line, "/id")] = 1 / sizes[text_at(line, "/task")];
  }
  return shares;
}

// What is compared of a task: a number of each sample.
struct Quantity {
  std::string_view task, name, unit;
  bool lower_is_better;
  double scale;  // of the number in the unit
  Values (*values)(const Lines& lines);
  // Samples of one subject depend on each other: their mean counts, as one sample.
  std::string (*subject)(const std::string& id) = the_sample;
  Values (*weights)(const Lines& lines) = nullptr;  // of samples in the mean; null: all alike
  double largest = 1;  // difference of two scores, unscaled: scores are 0 to 1, gains -1 to 1
};

constexpr Quantity kQuantities[] = {
    {"per_position_loss", "loss", "nats", true, 1, of_each_line<loss_of>},
    {"perplexity",
     "windowed loss",
     "nats",
     true,
     1,
     of_each_line<windowed_loss_of>,
     the_sample,
     tokens_of_windows},
    {kCurve,
     "copy minus LM accuracy, mean over lengths",
     "points",
     false,
     100,
     gains_of_texts,
     the_sample,
     nullptr,
     2},
    {"needle", "score", "points", false, 100, of_each_line<score_of>},
    {"passkey", "score", "points", false, 100, of_each_line<score_of>},
    {"dictionary", "score", "points", false, 100, of_each_line<score_of>},
    {"ruler", "score", "points", false, 100, of_each_line<score_of>, the_story},
    {"babilong", "score", "points", false, 100, of_each_line<score_of>, the_story},
    {"longbench",
     "score",
     "points",
     false,
     100,
     of_each_line<score_of>,
     the_sample,
     shares_of_tasks},
    {"few_shot", "accuracy", "points", false, 100, answers_to_questions, the_question},
};

// The numbers of samples by their id.
Values values_of(const Lines& lines, const Quantity& quantity) {
  Values values = quantity.values(lines);
  for (auto& [id, value] : values) value *= quantity.scale;
  return values;
}

struct Pair {
  double first = 0, second = 0;
};

// What both runs have of each subject: means over the samples of it that both have, times what the
// subject weighs, so that their plain mean is the weighted one.
std::vector<Pair> pairs_of(const RunResults& first,
                           const RunResults& second,
                           const Quantity& quantity) {
  struct Total {
    double first = 0, second = 0, samples = 0, weight = 0;
  };
  std::map<std::string, Total> subjects;
  const Lines lines = read_samples(first, quantity.task);
  const Values weights = quantity.weights ? quantity.weights(lines) : Values();
  const Values values = values_of(lines, quantity);
  for (const auto& [id, other] : values_of(read_samples(second, quantity.task), quantity)) {
    const auto found = values.find(id);
    if (found == values.end()) continue;
    Total& total = subjects[quantity.subject(id)];
    total.first += found->second;
    total.second += other;
    ++total.samples;
    const auto weight = weights.find(id);
    total.weight += weight == weights.end() ? 1 : weight->second;
  }
  double all = 0;
  for (const auto& [subject, total] : subjects) all += total.weight / total.samples;
  const double mean_weight = all / static_cast<double>(subjects.size());
  std::vector<Pair> pairs;
  for (const auto& [subject, total] : subjects) {
    const double weight = total.weight / total.samples / mean_weight;
    pairs.push_back({weight * total.first / total.samples, weight * total.second / total.samples});
  }
  return pairs;
}

// Whether both are results of the same weights (and configuration), as digests say.
bool same_model(const nlohmann::json& a, const nlohmann::json& b) {
  const std::string model = text_at(a, "/identity/model");
  return !model.empty() && model == text_at(b, "/identity/model");
}

bool copies_not(const nlohmann::json& curve) {
  return copying(curve) == Copying::kNo;
}

void add_difference(const std::vector<RunResults>& runs,
                    const Quantity& quantity,
                    size_t first,
                    size_t second,
                    const CompareOptions& options,
                    Comparison& comparison) {
  const nlohmann::json* a = runs[first].evaluation(quantity.task);
  const nlohmann::json* b = runs[second].evaluation(quantity.task);
  if (!a || !b) return;
  const auto leave_out = [&](std::string_view why) {
    comparison.left_out.push_back(fmt::format("{}: {} and {} {}.",
                                              quantity.task,
                                              runs[first].folder.string(),
                                              runs[second].folder.string(),
                                              why));
  };
  if (!same_samples(*a, *b)) return leave_out("were measured with other settings or on other text");
  if (quantity.task == kCurve && copies_not(*a) && copies_not(*b)) return;  // name_without_memory()
  std::vector<double> differences;
  Difference difference;
  for (const Pair& pair : pairs_of(runs[first], runs[second], quantity)) {
    differences.push_back(pair.first - pair.second);
    difference.first_mean += pair.first;
    difference.second_mean += pair.second;
  }
  if (differences.size() < 2) {
    return leave_out(fmt::format("share fewer than two samples of the {}", quantity.name));
  }
  const auto n = static_cast<double>(differences.size());
  difference.task = quantity.task;
  difference.quantity = quantity.name;
  difference.lower_is_better = quantity.lower_is_better;
  difference.unit = quantity.unit;
  difference.first = first;
  difference.second = second;
  difference.samples = static_cast<int64_t>(differences.size());
  difference.first_mean /= n;
  difference.second_mean /= n;
  difference.same_recipe = !runs[first].recipe.empty() && runs[first].recipe == runs[second].recipe;
  if (difference.same_recipe && same_model(*a, *b)) {
    throw Error(
        fmt::format("compare: {} and {} hold the same weights (equal SHA-256), which are not two "
                    "seeds; name one of them",
                    runs[first].folder.string(),
                    runs[second].folder.string()));
  }
  BootstrapOptions bootstrap = options.bootstrap;
  if (difference.unit == "points") bootstrap.largest = quantity.scale * quantity.largest;
  difference.of = bootstrap_mean(differences, bootstrap);
  comparison.differences.push_back(std::move(difference));
}

// A task of some runs alone has no pairs with the others.
void name_unshared(const std::vector<RunResults>& runs,
                   std::string_view task,
                   Comparison& comparison) {
  std::vector<std::string> measured;
  for (const RunResults& run : runs) {
    if (run.evaluation(task)) measured.push_back(run.folder.string());
  }
  comparison.shares_task = comparison.shares_task || measured.size() > 1;
  if (measured.empty() || measured.size() == runs.size()) return;
  comparison.left_out.push_back(
      fmt::format("{}: measured for {} only.", task, fmt::join(measured, " and ")));
}

// Between models that do not copy there is no memory to compare.
void name_without_memory(const std::vector<RunResults>& runs, Comparison& comparison) {
  std::vector<std::string> none;
  for (const RunResults& run : runs) {
    const nlohmann::json* curve = run.evaluation(kCurve);
    if (curve && copies_not(*curve)) none.push_back(run.folder.string());
  }
  if (none.size() < 2) return;
  comparison.left_out.push_back(
      fmt::format("{}: {} do not copy by more than chance: there is no memory to compare.",
                  kCurve,
                  fmt::join(none, " and ")));
}

// What training with other seeds moves a quantity by, from the runs of one recipe on the page: two
// runs that differ by the seed alone lie farther apart than this in kSeedLevel of all cases, if
// what seeds do is normal. 0: not known.
double seed_margin(const std::vector<RunResults>& runs,
                   const std::vector<Difference>& differences,
                   const Difference& like) {
  // Within n runs of a recipe, the squares around their mean are the squares of all pairs over n.
  std::map<std::string, std::pair<double, std::set<size_t>>> recipes;
  for (const Difference& difference : differences) {
    const bool same_quantity = difference.task == like.task && difference.quantity == like.quantity;
    if (!difference.same_recipe || !same_quantity) continue;
    auto& [squares, members] = recipes[runs[difference.first].recipe];
    squares += difference.of.mean * difference.of.mean;
    members.insert({difference.first, difference.second});
  }
  double squares = 0;
  int64_t freedom = 0;
  for (const auto& [recipe, of] : recipes) {
    squares += of.first / static_cast<double>(of.second.size());
    freedom += static_cast<int64_t>(of.second.size()) - 1;
  }
  if (freedom == 0) return 0;
  const double deviation = std::sqrt(squares / static_cast<double>(freedom));
  return statistics::t_quantile(freedom, kSeedLevel) * deviation * std::sqrt(2.0);
}

// Holm's correction: the chance of any false difference on the page stays below the level. Runs of
// one recipe are no question.
void judge(const std::vector<RunResults>& runs, double loss_margin, Comparison& comparison) {
  std::vector<Difference>& differences = comparison.differences;
  std::vector<Difference*> questions;
  std::vector<double> p_values;
  for (Difference& difference : differences) {
    const double seeds = seed_margin(runs, differences, difference);
    comparison.seeds_known = comparison.seeds_known || difference.same_recipe;
    difference.margin = std::max(seeds, difference.unit == "nats" ? loss_margin : 0);
    if (difference.same_recipe) continue;
    questions.push_back(&difference);
    p_values.push_back(difference.of.p_value);
  }
  const std::vector<double> adjusted = statistics::holm_adjusted(p_values);
  for (size_t i = 0; i < questions.size(); ++i) {
    Difference& difference = *questions[i];
    difference.adjusted_p_value = adjusted[i];
    const bool beyond_margin = std::abs(difference.of.mean) > difference.margin;
    difference.differs = adjusted[i] < kLevel && beyond_margin;
    difference.within_margin = adjusted[i] < kLevel && !beyond_margin;
  }
}

// "95 %: 0.1000 to 0.2000; margin 0.005", the margin where there is one. "no interval: all 8
// differences are alike" where there is none. Where the interval leaves out 0 and the correction
// for all comparisons of the page does not, its p.
std::string interval_text(const Difference& difference, double low, double high, int digits) {
  std::string text = std::isnan(low)
                         ? "no interval: " + difference.of.no_interval
                         : fmt::format("95 %: {:.{}f} to {:.{}f}", low, digits, high, digits);
  if (difference.margin > 0) text += fmt::format("; margin {:.3g}", difference.margin);
  if (difference.of.p_value < kLevel && difference.adjusted_p_value >= kLevel) {
    text += fmt::format("; over all comparisons p = {:.2g}", difference.adjusted_p_value);
  }
  return text;
}

// The task, and what is compared of it where the name does not say that.
std::string subject_of(const Difference& difference) {
  if (difference.task != kCurve) return difference.task;
  return fmt::format("{} ({})", difference.task, difference.quantity);
}

}  // namespace

Comparison compare(const std::vector<RunResults>& runs, const CompareOptions& options) {
  Comparison comparison;
  for (const RunResults& run : runs) {
    comparison.left_out.insert(comparison.left_out.end(), run.left_out.begin(), run.left_out.end());
  }
  for (const Quantity& quantity : kQuantities) {
    if (!options.task.empty() && options.task != quantity.task) continue;
    name_unshared(runs, quantity.task, comparison);
    if (quantity.task == kCurve) name_without_memory(runs, comparison);
    for (size_t second = 1; second < runs.size(); ++second) {
      for (size_t first = 0; first < second; ++first) {
        add_difference(runs, quantity, first, second, options, comparison);
      }
    }
  }
  judge(runs, options.loss_margin, comparison);
  return comparison;
}

bool same_samples(const nlohmann::json& a, const nlohmann::json& b) {
  return a.value("settings", nlohmann::json()) == b.value("settings", nlohmann::json()) &&
         text_at(a, "/identity/text") == text_at(b, "/identity/text");
}

bool seeds_are_known(const std::vector<RunResults>& runs, std::string_view task) {
  bool known = false;
  for (size_t second = 1; second < runs.size(); ++second) {
    for (size_t first = 0; first < second; ++first) {
      const nlohmann::json* a = runs[first].evaluation(task);
      const nlohmann::json* b = runs[second].evaluation(task);
      if (!a || !b || runs[first].recipe.empty()) continue;
      if (runs[first].recipe != runs[second].recipe || !same_samples(*a, *b)) continue;
      if (same_model(*a, *b)) return false;
      known = true;
    }
  }
  return known;
}

std::string sentence_of(const Difference& difference,
                        const std::string& first,
                        const std::string& second) {
  const int digits = difference.unit == "nats" ? 4 : 1;
  if (difference.same_recipe) {
    return fmt::format(
        "{}: no difference between {} and {}: one recipe with two seeds, {:.{}f} {} apart.",
        subject_of(difference),
        first,
        second,
        std::abs(difference.of.mean),
        digits,
        difference.unit);
  }
  if (!difference.differs) {
    const std::string judgement =
        difference.within_margin
            ? fmt::format("{} and {} differ by no more than the margin", first, second)
            : fmt::format("no difference between {} and {}", first, second);
    return fmt::format("{}: {} ({:.{}f} {}, {}).",
                       subject_of(difference),
                       judgement,
                       difference.of.mean,
                       digits,
                       difference.unit,
                       interval_text(difference, difference.of.low, difference.of.high, digits));
  }
  const bool first_wins = (difference.of.mean < 0) == difference.lower_is_better;
  const double sign = difference.of.mean < 0 ? -1 : 1;
  const double low = sign < 0 ? -difference.of.high : difference.of.low;
  const double high = sign < 0 ? -difference.of.low : difference.of.high;
  return fmt::format("{}: {} is better than {} by {:.{}f} {} ({}).",
                     subject_of(difference),
                     first_wins ? first : second,
                     first_wins ? second : first,
                     sign * difference.of.mean,
                     digits,
                     difference.unit,
                     interval_text(difference, low, high, digits));
}

}  // namespace reynard::report
