#include "reynard/report/verdict.h"

#include "reynard/report/compare.h"
#include "reynard/report/curve_words.h"
#include "reynard/report/figure_style.h"
#include "reynard/statistics/median.h"
#include "reynard/statistics/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace reynard::report {

namespace {

// Differences in loss below this are called no change.
constexpr double kSmallChange = 0.02;

double loss_metric(const RunResults& run, const std::string& pointer) {
  const json* summary = run.evaluation("per_position_loss");
  return summary ? number_at(*summary, "/metrics" + pointer) : std::nan("");
}

// Mean of a series' numbers at positions [begin, end); NaN where it has none, or ends before.
double mean_of(const RunResults& run, const std::string& series, int64_t begin, int64_t end) {
  const json* summary = run.evaluation("per_position_loss");
  if (!summary) return std::nan("");
  const json& values = list_at(*summary, "/series/" + series);
  if (begin >= end || end > static_cast<int64_t>(values.size())) return std::nan("");
  double sum = 0;
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (!values[i].is_number()) continue;
    sum += values[i].get<double>();
    ++count;
  }
  return count ? sum / static_cast<double>(count) : std::nan("");
}

// Mean loss of the second half of the trained length, and of what lies past it.
struct Extrapolation {
  double inside, beyond;
  double half_width;  // of the interval of the loss past it; NaN: unknown
  bool known() const { return !std::isnan(inside) && !std::isnan(beyond); }
};
Extrapolation extrapolation(const RunResults& run) {
  const int64_t trained = run.train_length();
  const json* summary = run.evaluation("per_position_loss");
  const double length = summary ? number_at(*summary, "/settings/length") : std::nan("");
  if (trained <= 0 || std::isnan(length)) return {std::nan(""), std::nan(""), std::nan("")};
  const int64_t end = std::min(static_cast<int64_t>(length), 2 * trained);
  return {mean_of(run, "loss", trained / 2, trained),
          mean_of(run, "loss", trained, end),
          mean_of(run, "half_width", trained, end)};
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

double pruned(const RunResults& run) {
  const json* summary = run.evaluation("pruning");
  return summary ? number_at(*summary, "/metrics/pruned_share") : std::nan("");
}

double metric_of_last(const RunResults& run, const std::string& key) {
  for (auto line = run.metrics.rbegin(); line != run.metrics.rend(); ++line) {
    const double value = number_at(*line, "/" + key);
    if (!std::isnan(value)) return value;
  }
  return std::nan("");
}

std::string loss_sentence(const RunResults& run) {
  const double loss = loss_metric(run, "/loss");
  if (std::isnan(loss)) return "";
  const double bits = loss_metric(run, "/bits_per_byte");
  const json& summary = *run.evaluation("per_position_loss");
  const double rows = number_at(summary, "/metrics/rows");
  const double length = number_at(summary, "/settings/length");
  return fmt::format("{} predicts held-out text with a loss of {:.3f} nats per token{}{}.",
                     run.name,
                     loss,
                     std::isnan(bits) ? "" : fmt::format(", {:.3f} bits per byte", bits),
                     std::isnan(rows + length)
                         ? ""
                         : fmt::format(" ({} of {})",
                                       grouped(static_cast<int64_t>(rows), "row"),
                                       grouped(static_cast<int64_t>(length), "token")));
}

std::string comparison_sentence(const RunResults& first, const RunResults& second) {
  const PairedLoss paired = paired_loss(first, second);
  if (paired.rows < 2) return "";
  const std::string evidence = fmt::format(
      "{:.4f} ± {:.4f} nats per token, mean and standard error over the same {} rows of "
      "these two models",
      std::abs(paired.difference),
      paired.standard_error,
      paired.rows);
  if (std::abs(paired.difference) <= 2 * paired.standard_error) {
    return fmt::format("{} and {} cannot be told apart by their loss (difference {}).",
                       first.name,
                       second.name,
                       evidence);
  }
  const bool first_wins = paired.difference < 0;
  return fmt::format("{} is better than {} by {}.",
                     first_wins ? first.name : second.name,
                     first_wins ? second.name : first.name,
                     evidence);
}

// The first run's loss beside each other's: as `reynard compare` judges where recipes have several
// seeds, else of these models alone.
std::vector<std::string> comparison_sentences(const Runs& runs) {
  std::vector<std::string> sentences;
  if (!seeds_are_known(runs, "per_position_loss")) {
    for (size_t i = 1; i < runs.size(); ++i) {
      sentences.push_back(comparison_sentence(runs[0], runs[i]));
    }
    return sentences;
  }
  for (const Difference& difference : compare(runs, {.task = "per_position_loss"}).differences) {
    if (difference.first != 0) continue;
    sentences.push_back(sentence_of(difference, runs[0].name, runs[difference.second].name));
  }
  return sentences;
}

// Whether the loss past the trained length rises or falls by more than rows differ: by more than
// the intervals of the losses there, or with a slope whose interval leaves out 0. Results that do
// not hold both are taken at their word.
bool beyond_chance(const RunResults& run, const Extrapolation& loss) {
  if (std::abs(loss.beyond - loss.inside) > loss.half_width) return true;
  const json* summary = run.evaluation("per_position_loss");
  if (!summary) return true;
  for (const json& fit : list_at(*summary, "/metrics/slopes")) {
    if (number_at(fit, "/from") < static_cast<double>(run.train_length())) continue;
    // NaN: of one row nothing is known.
    return std::abs(number_at(fit, "/slope")) > number_at(fit, "/half_width");
  }
  return true;
}

std::string extrapolation_sentence(const RunResults& run) {
  const Extrapolation loss = extrapolation(run);
  if (!loss.known()) return "";
  const double change = loss.beyond - loss.inside;
  const char* judgement = std::abs(change) <= kSmallChange ? "it extrapolates without harm"
                          : !beyond_chance(run, loss)
                              ? "a change that so few rows do not tell from chance"
                          : change > 0 ? "it does not extrapolate"
                                       : "it goes on using more context";
  return fmt::format(
      "Past the {} tokens that {} was trained on, its loss goes from {:.3f} to {:.3f}: {}.",
      grouped(run.train_length()),
      run.name,
      loss.inside,
      loss.beyond,
      judgement);
}

std::string pruning_sentence(const RunResults& run) {
  const json* summary = run.evaluation("pruning");
  if (!summary) return "";
  const double share = pruned(run);
  const double change = number_at(*summary, "/metrics/loss_difference");
  if (std::isnan(share) || std::isnan(change)) return "";
  constexpr double kNoChange = 1e-4;  // nats
  const json& layers = list_at(*summary, "/series/pruned_share");
  const bool all_known = std::ranges::none_of(layers, [](const json& layer) {
    return std::ranges::any_of(layer, [](const json& head) { return head.is_null(); });
  });
  return fmt::format("Pruning skips {} of {}'s attention tiles{} at length {} and {}.",
                     percent(share),
                     run.name,
                     all_known ? "" : ", those of layers that read a memory not counted,",
                     grouped(static_cast<int64_t>(number_at(*summary, "/settings/length"))),
                     std::abs(change) < kNoChange
                         ? fmt::format("leaves its loss as it is (to {:g} nats)", kNoChange)
                         : fmt::format("moves its loss by {:+.4f} nats", change));
}

// The values of the summary's rows, as text; empty where a run has none.

std::string text_unless_nan(double value, std::string (*text)(double)) {
  return std::isnan(value) ? "" : text(value);
}

std::string parameters(const RunResults& run) {
  return text_unless_nan(number_at(run.run, "/parameters"), with_unit);
}

std::string non_embedding_parameters(const RunResults& run) {
  return text_unless_nan(number_at(run.run, "/non_embedding_parameters"), with_unit);
}

std::string trained_on(const RunResults& run) {
  const double tokens = trained_tokens(run);
  if (std::isnan(tokens)) return "";
  const int64_t length = run.train_length();
  return with_unit(tokens) + (length > 0 ? fmt::format(", rows of {}", grouped(length)) : "");
}

std::string held_out_loss(const RunResults& run) {
  const double loss = loss_metric(run, "/loss");
  const double error = loss_metric(run, "/standard_error");
  if (std::isnan(loss)) return "";
  if (std::isnan(error)) return fmt::format("{:.4f}", loss);
  return fmt::format("{:.4f} ± {:.4f}", loss, error);
}

std::string bits_per_byte(const RunResults& run) {
  return text_unless_nan(loss_metric(run, "/bits_per_byte"),
                         [](double bits) { return fmt::format("{:.4f}", bits); });
}

std::string extrapolated_loss(const RunResults& run) {
  const Extrapolation loss = extrapolation(run);
  return loss.known() ? fmt::format("{:.3f} → {:.3f}", loss.inside, loss.beyond) : "";
}

std::string effective_length(const RunResults& run) {
  const json* summary = run.evaluation("ruler");
  const std::string text = summary ? text_at(*summary, "/metrics/effective_length/text") : "";
  if (text.empty()) return "";
  const bool comparable = bool_at(*summary, "/metrics/comparable", false);
  return fmt::format("{} tokens{}", text, comparable ? "" : " (own data)");
}

std::string pruned_share(const RunResults& run) {
  return text_unless_nan(pruned(run), percent);
}

std::string pruning_losses(const RunResults& run) {
  const json* summary = run.evaluation("pruning");
  if (!summary) return "";
  const double with = number_at(*summary, "/metrics/loss_pruned");
  const double without = number_at(*summary, "/metrics/loss_unpruned");
  if (std::isnan(with) || std::isnan(without)) return "";
  return fmt::format("{:.5f} / {:.5f}", with, without);
}

std::string training_speed(const RunResults& run) {
  return text_unless_nan(median_speed(run), with_unit);
}

std::string peak_memory_text(const RunResults& run) {
  return text_unless_nan(peak_memory(run), bytes_text);
}

std::string perplexity(const RunResults& run) {
  const json* summary = run.evaluation("perplexity");
  if (!summary) return "";
  const double windowed = number_at(*summary, "/metrics/windowed_perplexity");
  return text_unless_nan(windowed, [](double value) { return fmt::format("{:.2f}", value); });
}

// "87.5 % ± 2.3"
template <const char* kTask>
std::string mean_score(const RunResults& run) {
  const json* summary = run.evaluation(kTask);
  const double score = summary ? number_at(*summary, "/metrics/score") : std::nan("");
  if (std::isnan(score)) return "";
  const double error = number_at(*summary, "/metrics/standard_error");
  return std::isnan(error) ? percent(score)
                           : fmt::format("{} ± {:.1f}", percent(score), 100 * error);
}
constexpr char kNeedle[] = "needle", kPasskey[] = "passkey", kDictionary[] = "dictionary",
               kRuler[] = "ruler", kBabilong[] = "babilong", kLongbench[] = "longbench",
               kFewShot[] = "few_shot";

struct TableRow {
  const char* name;
  const char* meaning;
  std::string (*value)(const RunResults& run);
};

constexpr TableRow kTableRows[] = {
    {"Parameters", "all weights that are stored", parameters},
    {"Non-embedding parameters", "without the input embedding", non_embedding_parameters},
    {"Trained on", "tokens seen in training, and how many at once", trained_on},
    {"Held-out loss", "nats per token ± standard error over rows; lower is better", held_out_loss},
    {"Bits per byte",
     "the same loss per byte of text, comparable across vocabularies",
     bits_per_byte},
    {"Loss within → past the trained length",
     "mean of the second half of the trained length, and of what follows it",
     extrapolated_loss},
    {"Claimed length",
     "what the model was trained on at once; confirmed when twice the coarse memory, where it is "
     "more than chance, exceeds it",
     claimed_length},
    {"Fine memory",
     "longest text copied with more than 99 % accuracy; > means to the end of the test",
     fine_memory},
    {"Coarse memory",
     "longest text on which having seen it helps by more than one point and more than chance; "
     "within noise: longer ones by the published definition, which tests nothing",
     coarse_memory},
    {"RULER effective length",
     "longest context with a mean score of at least 85.6 %; own data: not comparable with "
     "published results",
     effective_length},
    {"Pruned share", "attention tiles that are neither read nor computed", pruned_share},
    {"Loss with / without pruning", "the same weights, the same rows", pruning_losses},
    {"Training speed", "tokens per second, median", training_speed},
    {"Peak memory", "of the training process", peak_memory_text},
    {"Perplexity", "of windows of the text, every token once", perplexity},
    {"Needle", "share of right answers, mean over lengths and depths", mean_score<kNeedle>},
    {"Passkey", "share of right answers, mean over lengths and depths", mean_score<kPasskey>},
    {"Dictionary", "share of right values, mean over lengths", mean_score<kDictionary>},
    {"RULER", "mean score over lengths and tasks", mean_score<kRuler>},
    {"BABILong", "share of right answers, mean over lengths and tasks", mean_score<kBabilong>},
    {"LongBench", "mean score of its tasks", mean_score<kLongbench>},
    {"Few-shot", "share of right answers, mean over lengths", mean_score<kFewShot>},
};

}  // namespace

PairedLoss paired_loss(const RunResults& first, const RunResults& second) {
  const json* a = first.evaluation("per_position_loss");
  const json* b = second.evaluation("per_position_loss");
  if (!a || !b || !same_samples(*a, *b)) return {};
  std::vector<double> differences;
  for (const auto& [id, loss] : first.rows) {
    const auto other = second.rows.find(id);
    if (other == second.rows.end() || !loss.is_number() || !other->second.is_number()) continue;
    differences.push_back(loss.get<double>() - other->second.get<double>());
  }
  PairedLoss paired;
  paired.rows = static_cast<int64_t>(differences.size());
  if (paired.rows < 2) return paired;
  paired.difference = statistics::moments(differences).mean;
  paired.standard_error = statistics::standard_error(differences);
  return paired;
}

double median_speed(const RunResults& run) {
  std::vector<double> speeds;
  for (const json& line : run.metrics) {
    const double speed = number_at(line, "/tokens_per_s");
    if (speed > 0) speeds.push_back(speed);
  }
  return statistics::median(std::move(speeds));
}

double peak_memory(const RunResults& run) {
  double peak = std::nan("");
  for (const json& line : run.metrics) {
    const double bytes = number_at(line, "/peak_memory_bytes");
    if (!std::isnan(bytes) && !(peak > bytes)) peak = bytes;
  }
  return peak;
}

double trained_tokens(const RunResults& run) {
  return metric_of_last(run, "tokens");
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::vector<SummaryRow> summary_rows(const Runs& runs) {
  std::vector<SummaryRow> rows;
  for (const TableRow& shown : kTableRows) {
    SummaryRow row{shown.name, shown.meaning, {}};
    for (const RunResults& run : runs) row.values.push_back(shown.value(run));
    const bool any = std::any_of(
        row.values.begin(), row.values.end(), [](const std::string& v) { return !v.empty(); });
    if (any) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> verdict(const Runs& runs, const VerdictOptions& options) {
  std::vector<std::string> sentences;
  const auto add = [&](std::string sentence) {
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  };
  for (const RunResults& run : runs) add(loss_sentence(run));
  if (options.compares) {
    for (std::string& sentence : comparison_sentences(runs)) add(std::move(sentence));
  }
  for (const RunResults& run : runs) {
    add(memory_sentence(run, options.tokens_to_copy, median_speed(run)));
  }
  for (const RunResults& run : runs) add(extrapolation_sentence(run));
  for (const RunResults& run : runs) add(pruning_sentence(run));
  for (const RunResults& run : runs) {
    for (const std::string& reason : run.left_out) add("Not used: " + reason);
  }
  return sentences;
}

}  // namespace reynard::report
