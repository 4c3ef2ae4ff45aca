#include "reynard/evaluation/forgetting_curve.h"

#include "reynard/evaluation/python_random.h"
#include "reynard/evaluation/text_too_short.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr int64_t kShortestOfCode = 8;  // the published script's first length
constexpr double kFineAccuracy = 0.99;
constexpr double kCoarseGap = 0.01;
constexpr double kLevel = 0.05;  // of every test here

std::vector<int64_t> log_lengths(int64_t longest, int64_t count) {
  std::vector<int64_t> lengths;
  // Powers of ten and their order of operations as in numpy.geomspace, whose values are truncated.
  const double first = std::log10(static_cast<double>(kShortestOfCode));
  const double last = std::log10(static_cast<double>(longest));
  const double step = (last - first) / static_cast<double>(count - 1);
  for (int64_t i = 0; i < count; ++i) {
    if (i == 0 || i == count - 1) {
      lengths.push_back(i == 0 ? kShortestOfCode : longest);
      continue;
    }
    lengths.push_back(static_cast<int64_t>(std::pow(10, static_cast<double>(i) * step + first)));
  }
  return lengths;
}

}  // namespace

config::EnumNames<CurveGrid> enum_names(CurveGrid) {
  return {{CurveGrid::kPaper, "paper"}, {CurveGrid::kCode, "code"}, {CurveGrid::kLog, "log"}};
}

std::vector<int64_t> target_lengths(CurveGrid grid, int64_t longest, int64_t count) {
  const bool paper = grid == CurveGrid::kPaper;
  tensor::check_value(count >= (paper ? 1 : 2),
                      "forgetting_curve",
                      "points",
                      count,
                      paper ? ">= 1" : ">= 2 with grid = code or log");
  tensor::check_value(longest >= (paper ? 2 : kShortestOfCode),
                      "forgetting_curve",
                      "length",
                      longest,
                      paper ? ">= 2" : ">= 8 with grid = code or log");
  std::vector<int64_t> lengths;
  if (grid == CurveGrid::kLog) {
    lengths = log_lengths(longest, count);
  } else if (paper) {
    for (int64_t i = 1; i <= count; ++i) {
      lengths.push_back(std::max(int64_t{1}, longest * i / count));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      lengths.push_back(kShortestOfCode + i * (longest - kShortestOfCode) / (count - 1));
    }
  }
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

std::vector<std::vector<int64_t>> target_begins(std::span<const int64_t> lengths,
                                                int64_t repeats,
                                                int64_t corpus_tokens,
                                                uint64_t seed) {
  PythonRandom random(seed);
  std::vector<std::vector<int64_t>> begins;
  for (const int64_t length : lengths) {
    if (corpus_tokens < 3 * length) {
      throw TextTooShort(fmt::format(
          "forgetting_curve: the text has {}; length {} needs at least {} (target, distance "
          "and irrelevant text): give more text or a smaller --length",
          counted(corpus_tokens, "token"),
          length,
          3 * length));
    }
    std::vector<int64_t> drawn;
    for (int64_t i = 0; i < repeats; ++i) drawn.push_back(random.up_to(corpus_tokens - 3 * length));
    begins.push_back(std::move(drawn));
  }
  return begins;
}

CurveSequence curve_sequence(std::span<const int64_t> prefix,
                             std::span<const int64_t> target,
                             std::optional<int64_t> bos,
                             std::optional<int64_t> eos) {
  CurveSequence sequence;
  std::vector<int64_t>& tokens = sequence.tokens;
  tokens.reserve(prefix.size() + target.size() + 3);
  if (bos) tokens.push_back(*bos);
  tokens.insert(tokens.end(), prefix.begin(), prefix.end());
  if (bos) tokens.push_back(*bos);
  tokens.insert(tokens.end(), target.begin(), target.end());
  sequence.scored_end = static_cast<int64_t>(tokens.size());
  sequence.scored_begin = sequence.scored_end - static_cast<int64_t>((target.size() + 1) / 2);
  if (eos) tokens.push_back(*eos);
  return sequence;
}

CurvePoint curve_point(int64_t length, std::vector<double> lm_accs, std::vector<double> copy_accs) {
  CurvePoint point;
  point.length = length;
  const statistics::Moments lm = statistics::moments(lm_accs);
  const statistics::Moments copy = statistics::moments(copy_accs);
  point.lm_mean = lm.mean;
  point.lm_std = lm.deviation;
  point.copy_mean = copy.mean;
  point.copy_std = copy.deviation;
  if (lm_accs.size() >= 2) {
    point.p_value = statistics::paired_t_test(lm_accs, copy_accs).p_value;
    point.variance_homogeneity = statistics::levene(lm_accs, copy_accs).p_value > kLevel;
    point.noise = statistics::paired_half_width(copy_accs, lm_accs, kLevel);
  }
  if (lm_accs.size() >= 3) {
    point.normality = statistics::shapiro_wilk(lm_accs).p_value > kLevel &&
                      statistics::shapiro_wilk(copy_accs).p_value > kLevel;
  }
  point.adjusted_p_value = point.p_value;
  point.lm_accs = std::move(lm_accs);
  point.copy_accs = std::move(copy_accs);
  return point;
}

namespace {

// The t-test is certain (p = 0) where all repeats gain the same, even two of them. There p is that
// of repeats one of which gains one token less: the smallest spread that accuracies can show.
double cautious_p_value(const CurvePoint& point) {
  std::vector<double> gains = point.copy_accs;
  for (size_t i = 0; i < gains.size(); ++i) gains[i] -= point.lm_accs[i];
  const statistics::Moments gain = statistics::moments(gains);
  constexpr double kRounding = 1e-6;  // accuracies are quotients in f32
  const bool spreads = gain.deviation >= kRounding * std::abs(gain.mean);
  if (gains.size() < 2 || spreads) return point.p_value;
  const int64_t num_tokens = (point.length + 1) / 2;
  gains.front() -= std::copysign(1 / static_cast<double>(num_tokens), gain.mean);
  return statistics::paired_t_test(gains, std::vector<double>(gains.size(), 0)).p_value;
}

}  // namespace

void compare_over_lengths(std::vector<CurvePoint>& points) {
  std::vector<CurvePoint*> tested;
  std::vector<double> p_values;
  for (CurvePoint& point : points) {
    const double p_value = cautious_p_value(point);
    if (std::isnan(p_value)) continue;  // one repeat
    tested.push_back(&point);
    p_values.push_back(p_value);
  }
  const std::vector<double> adjusted = statistics::holm_adjusted(p_values);
  for (size_t i = 0; i < tested.size(); ++i) {
    tested[i]->adjusted_p_value = adjusted[i];
    tested[i]->differs = adjusted[i] < kLevel && tested[i]->copy_mean > tested[i]->lm_mean;
  }
}

MemoryLengths memory_lengths(std::span<const CurvePoint> points) {
  MemoryLengths lengths;
  for (size_t i = 0; i < points.size(); ++i) {
    const CurvePoint& point = points[i];
    const MemoryLength here{point.length, i + 1 == points.size()};
    const bool coarse = point.copy_mean - point.lm_mean > kCoarseGap;
    if (point.copy_mean > kFineAccuracy) lengths.fine = here;
    if (coarse) lengths.coarse = here;
    if (coarse && point.differs) lengths.significant = here;
  }
  return lengths;
}

std::string to_string(const MemoryLength& length) {
  return fmt::format("{}{}", length.open ? ">" : "", length.length);
}

std::optional<bool> copies(std::span<const CurvePoint> points) {
  if (std::ranges::any_of(points, &CurvePoint::differs)) return true;
  constexpr size_t kFewestRepeats = 3;
  const bool can_tell = std::ranges::any_of(
      points, [](const CurvePoint& point) { return point.lm_accs.size() >= kFewestRepeats; });
  return can_tell ? std::optional(false) : std::nullopt;
}

nlohmann::json curve_metrics(std::span<const CurvePoint> points) {
  const MemoryLengths lengths = memory_lengths(points);
  const auto json_of = [](const MemoryLength& length) -> nlohmann::json {
    return {{"length", length.length}, {"open", length.open}, {"text", to_string(length)}};
  };
  const std::optional<bool> copying = copies(points);
  return {{"fine_length", json_of(lengths.fine)},
          {"coarse_length", json_of(lengths.coarse)},
          {"significant_length", json_of(lengths.significant)},
          {"copies", copying ? nlohmann::json(*copying) : nlohmann::json()}};
}

nlohmann::json published_json(const CurvePoint& point) {
  return {{"length", point.length},
          {"lm_mean", point.lm_mean},
          {"lm_std", point.lm_std},
          {"copy_mean", point.copy_mean},
          {"copy_std", point.copy_std},
          {"lm_accs", point.lm_accs},
          {"copy_accs", point.copy_accs},
          {"p_value", point.p_value},
          {"normality",
           {{"normality", point.normality}, {"variance_homogeneity", point.variance_homogeneity}}}};
}

nlohmann::json to_json(const CurvePoint& point) {
  nlohmann::json json = published_json(point);
  json["adjusted_p_value"] = point.adjusted_p_value;
  json["differs"] = point.differs;
  json["noise"] = point.noise;
  if (point.lm_loss) json["lm_loss"] = *point.lm_loss;
  if (point.copy_loss) json["copy_loss"] = *point.copy_loss;
  return json;
}

nlohmann::ordered_json group_tests(std::span<const std::vector<double>> groups) {
  const auto json_of = [](const statistics::TestResult& test) -> nlohmann::ordered_json {
    return {{"statistic", test.statistic}, {"p_value", test.p_value}};
  };
  return {{"anova", json_of(statistics::one_way_anova(groups))},
          {"kruskal_wallis", json_of(statistics::kruskal_wallis(groups))}};
}

}  // namespace reynard::evaluation
