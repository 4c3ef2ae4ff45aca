#include "reynard/report/differences.h"

#include "reynard/report/escape.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace reynard::report {

namespace {

std::string pair_name(const Difference& difference, const Runs& runs) {
  return fmt::format("{} − {}", runs[difference.first].name, runs[difference.second].name);
}

// The task and each run on lines of their own, none so long that it would be cut.
std::string label_of(const Difference& difference, const Runs& runs) {
  constexpr size_t kMostCharacters = 24;
  std::vector<std::string> lines{difference.task + ":"};
  for (const std::string& name :
       {runs[difference.first].name, "− " + runs[difference.second].name}) {
    for (std::string& line : wrapped(name, kMostCharacters)) lines.push_back(std::move(line));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string number(double value, const Difference& difference) {
  return fmt::format("{:.{}f}", value, difference.unit == "nats" ? 4 : 1);
}

std::string_view verdict_of(const Difference& difference) {
  if (difference.same_recipe) return "same recipe";
  if (difference.within_margin) return "within margin";
  return difference.differs ? "differs" : "no difference";
}

// What the reader must know of the seeds before taking a difference for one of recipes.
std::string_view seeds_note(const Comparison& comparison) {
  return comparison.seeds_known
             ? "Runs of one recipe with several seeds show what the seed alone moves; other runs "
               "must lie farther apart than that (97.5 %) to differ."
             : "No recipe was trained with more than one seed here: a difference is one of these "
               "models. Whether their recipes differ shows only when each is trained with two "
               "seeds or more and all runs are given.";
}

std::string row_html(const Difference& difference, const Runs& runs) {
  const std::string interval = std::isnan(difference.of.low)
                                   ? "none"
                                   : fmt::format("{} to {}",
                                                 number(difference.of.low, difference),
                                                 number(difference.of.high, difference));
  return fmt::format(
      "<tr><th>{}<small>{}, {} samples</small></th><td "
      "class=\"pair\">{}</td><td>{}</td><td>{}</td><td>{}</td>"
      "<td>{}</td><td>{:.2g}</td><td>{}</td></tr>",
      html(difference.task),
      html(difference.quantity),
      grouped(difference.samples),
      html(pair_name(difference, runs)),
      number(difference.first_mean, difference),
      number(difference.second_mean, difference),
      number(difference.of.mean, difference),
      interval,
      difference.adjusted_p_value,
      verdict_of(difference));
}

}  // namespace

std::string differences_section(const Comparison& comparison, const Runs& runs) {
  std::string text =
      "<section id=\"compared\"><h2>Differences</h2><p class=\"intro\">The same samples of both "
      "runs, paired: mean difference with its 95 % interval (studentised bootstrap) and the chance "
      "p of one as large without any, corrected for all rows. Where many differences are alike, p "
      "is that of the exact sign test; the interval is then Tango's for answers that are right or "
      "wrong, and there is none for others or where all are alike. Only rows that say “differs” "
      "are more than chance and more than the margin; “within margin” is more than "
      "chance for these models, but no more than that.</p>";
  text += fmt::format("<p class=\"intro\">{}</p>", seeds_note(comparison));
  if (!comparison.differences.empty()) {
    text += "<div class=\"card verdict\"><ul>";
    for (const Difference& difference : comparison.differences) {
      text += fmt::format(
          "<li>{}</li>",
          html(sentence_of(difference, runs[difference.first].name, runs[difference.second].name)));
    }
    text +=
        "</ul></div><div class=\"card scroll\"><table><thead><tr><th></th><th>Pair</th><th>First"
        "</th><th>Second</th><th>Difference</th><th>95 %</th><th>p</th><th></th></tr></thead>"
        "<tbody>";
    for (const Difference& difference : comparison.differences) text += row_html(difference, runs);
    text += "</tbody></table></div>";
  }
  for (const std::string& reason : comparison.left_out) {
    text += fmt::format("<p class=\"intro\">Not compared: {}</p>", html(reason));
  }
  return text + "</section>\n";
}

namespace {

// Losses are drawn in percent of the first run's mean; scores in points, as the first may be 0.
double drawn_scale(const Difference& difference) {
  return difference.unit == "points" ? 1 : 100 / std::abs(difference.first_mean);
}

std::string axis_title(bool losses, bool scores) {
  if (losses && scores) return "difference (% or points)";
  return losses ? "difference (%)" : "difference (points)";
}

}  // namespace

std::optional<Figure> difference_figure(const Comparison& comparison, const Runs& runs) {
  json values = json::array();
  std::vector<std::string> not_drawn;
  bool losses = false;
  bool scores = false;
  int64_t most_lines = 0;
  for (const Difference& difference : comparison.differences) {
    const double scale = drawn_scale(difference);
    if (!std::isfinite(scale)) {
      not_drawn.push_back(fmt::format("{} ({})", difference.task, pair_name(difference, runs)));
      continue;
    }
    (difference.unit == "points" ? scores : losses) = true;
    const std::string label = label_of(difference, runs);
    most_lines = std::max(most_lines, 1 + std::ranges::count(label, '\n'));
    json value{{"what", label},
               {"mean", rounded(scale * difference.of.mean)},
               {"verdict", verdict_of(difference)}};
    if (!std::isnan(difference.of.low)) {
      value["low"] = rounded(scale * difference.of.low);
      value["high"] = rounded(scale * difference.of.high);
    }
    values.push_back(std::move(value));
  }
  if (values.empty()) return {};
  json spec = base_spec(static_cast<int>(60 + (14 * most_lines + 6) * std::ssize(values)));
  spec["data"] = {{"values", values}};
  json x = quantitative("mean", axis_title(losses, scores));
  x["scale"] = {{"zero", true}};
  const json y{{"field", "what"},
               {"type", "nominal"},
               {"title", nullptr},
               {"sort", nullptr},
               {"axis",
                {{"labelLimit", 220},
                 {"labelExpr", "split(datum.label, '\\n')"},
                 {"labelOffset", -6.5 * static_cast<double>(most_lines - 1)}}}};
  const json color{{"field", "verdict"},
                   {"type", "nominal"},
                   {"scale",
                    {{"domain", {"differs", "within margin", "no difference", "same recipe"}},
                     {"range", {"#d97706", "#7c3aed", "#94a3b8", "#0d9488"}}}},
                   {"legend", {{"orient", "bottom"}, {"title", nullptr}, {"columns", 1}}}};
  spec["encoding"] = {{"y", y}, {"color", color}};
  spec["layer"] = {
      {{"mark", {{"type", "point"}, {"filled", true}, {"size", 60}, {"tooltip", true}}},
       {"encoding", {{"x", x}}}},
      {{"mark", {{"type", "rule"}, {"strokeDash", {4, 4}}}},
       {"encoding", {{"x", {{"datum", 0}}}, {"y", nullptr}, {"color", nullptr}}}}};
  // Of no interval at all Vega would complain.
  if (std::ranges::any_of(values, [](const json& value) { return value.contains("low"); })) {
    const json low{{"field", "low"}, {"type", "quantitative"}};
    const json interval{{"mark", {{"type", "rule"}, {"strokeWidth", 3}}},
                        {"encoding", {{"x", low}, {"x2", {{"field", "high"}}}}}};
    spec["layer"].insert(spec["layer"].begin(), interval);
  }
  std::string caption =
      "Each bar is the 95 % interval of a paired mean difference, of scores in points, of losses "
      "in "
      "percent of the first run's mean; below zero the first is better in losses, worse in scores. "
      "A grey bar means that the runs cannot be told apart; amber bars lie wholly on one side of "
      "zero and farther from it than the margin, violet ones no farther. A point "
      "without a bar: there is no interval.";
  if (!not_drawn.empty()) caption += fmt::format(" Not drawn: {}.", fmt::join(not_drawn, ", "));
  return Figure{"differences", "Differences and their intervals", caption, spec};
}

}  // namespace reynard::report
