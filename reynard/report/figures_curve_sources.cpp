// What stands beside the forgetting curve: perplexity at its lengths, curves of several target
// texts in one figure, and whether the unrelated text matters.

#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

namespace reynard::report {

namespace {

constexpr double kTestLevel = 0.05;

json length_axis() {
  json x = quantitative("length", "length of the copied text (tokens)");
  x["axis"] = {{"format", ",d"}};
  x["scale"] = {{"nice", false}, {"zero", true}};
  return x;
}

// The list at a path of the task's summary; empty where it is missing.
json curve_list(const RunResults& run, const char* pointer) {
  const json* summary = run.evaluation("forgetting_curve");
  return summary ? list_at(*summary, pointer) : json::array();
}

json legend_on_top(std::string_view field) {
  return {
      {"field", field}, {"type", "nominal"}, {"legend", {{"orient", "top"}, {"title", nullptr}}}};
}

json colors_of(const std::vector<std::string>& names, std::string_view field) {
  json color = legend_on_top(field);
  json range = json::array();
  for (size_t i = 0; i < names.size(); ++i) range.push_back(run_color(i));
  color["scale"] = {{"domain", names}, {"range", range}};
  color["sort"] = nullptr;
  return color;
}

// The mark and encoding of a figure as its first layer, with the training length over it.
void mark_training_length(const RunResults& run, json& spec) {
  double longest = 0;
  for (const json& value : spec.at("data").at("values")) {
    longest = std::fmax(longest, number_at(value, "/length"));
  }
  const std::vector<json> marks = training_length_marks({run.train_length()}, {longest});
  if (marks.empty()) return;
  spec["layer"] = {
      {{"data", spec["data"]}, {"mark", spec["mark"]}, {"encoding", spec["encoding"]}}};
  for (const char* moved : {"data", "mark", "encoding"}) spec.erase(moved);
  for (const json& mark : marks) spec["layer"].push_back(mark);
}

json percent_axis(std::string_view field) {
  json y = quantitative(field, "greedy accuracy");
  y["axis"] = {{"format", ".0%"}};
  y["scale"] = {{"domain", {0, 1}}};
  return y;
}

void add_points(const json& points, const json& labels, json& values) {
  for (const json& point : points) {
    for (const bool copy : {true, false}) {
      json value = labels;
      value["setting"] = copy ? "copy" : "LM";
      value["length"] = number_at(point, "/length");
      value["accuracy"] = rounded(number_at(point, copy ? "/copy_mean" : "/lm_mean"));
      values.push_back(std::move(value));
    }
  }
}

// The names that stand under a key of the curves, each once, in their order.
std::vector<std::string> names_of(const json& curves, const char* key) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const json& curve : curves) {
    const std::string name = text_at(curve, fmt::format("/{}", key));
    if (!name.empty() && seen.insert(name).second) names.push_back(name);
  }
  return names;
}

// Lengths at which a test says that the prefix matters, and the longest before the first of them.
std::string prefix_verdict(const json& tests, const std::string& target) {
  int64_t lengths = 0;
  int64_t anova = 0;
  int64_t kruskal = 0;
  for (const json& test : tests) {
    if (text_at(test, "/target") != target) continue;
    ++lengths;
    anova += number_at(test, "/anova/p_value") < kTestLevel ? 1 : 0;
    kruskal += number_at(test, "/kruskal_wallis/p_value") < kTestLevel ? 1 : 0;
  }
  if (lengths == 0) return "";
  return fmt::format(
      " Between the natural texts, ANOVA sees a difference (p < 0.05) at {} of {} lengths, "
      "Kruskal-Wallis at {}; about {} would be chance.",
      anova,
      lengths,
      kruskal,
      static_cast<int64_t>(std::ceil(kTestLevel * static_cast<double>(lengths))));
}

}  // namespace

std::optional<Figure> curve_perplexity(const RunResults& run, size_t index) {
  json values = json::array();
  for (const json& point : curve_list(run, "/series/points")) {
    for (const bool copy : {true, false}) {
      const double loss = number_at(point, copy ? "/copy_loss" : "/lm_loss");
      if (std::isnan(loss)) continue;
      values.push_back({{"setting", copy ? "copy" : "LM"},
                        {"length", number_at(point, "/length")},
                        {"perplexity", rounded(std::exp(loss))}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(180);
  spec["data"] = {{"values", values}};
  json y = quantitative("perplexity", "perplexity of the scored tokens");
  y["scale"] = {{"type", "log"}};
  json color = legend_on_top("setting");
  color["scale"] = {{"domain", {"copy", "LM"}}, {"range", {kCopyColor, kLmColor}}};
  spec["mark"] = {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 20}}}};
  spec["encoding"] = {{"x", length_axis()}, {"y", y}, {"color", color}};
  mark_training_length(run, spec);
  return Figure{
      fmt::format("curve_perplexity_{}", index + 1),
      fmt::format("{}: perplexity at the same lengths", run.name),
      "Perplexity of the tokens that the curve above scores (log scale): 1 means certain. A model "
      "whose perplexity stays low while its copy accuracy falls predicts well without remembering.",
      spec};
}

std::optional<Figure> curve_targets(const RunResults& run, size_t index) {
  const json curves = curve_list(run, "/series/curves");
  const std::vector<std::string> targets = names_of(curves, "target");
  const std::vector<std::string> prefixes = names_of(curves, "prefix");
  if (targets.size() < 2 || prefixes.empty()) return {};
  json values = json::array();
  for (const json& curve : curves) {
    if (text_at(curve, "/prefix") != prefixes.front()) continue;
    add_points(list_at(curve, "/points"), {{"target", text_at(curve, "/target")}}, values);
  }
  json spec = base_spec(280);
  spec["data"] = {{"values", values}};
  json dash = legend_on_top("setting");
  dash["scale"] = {{"domain", {"copy", "LM"}}, {"range", {{1, 0}, {6, 4}}}};
  spec["mark"] = {{"type", "line"}, {"tooltip", true}};
  spec["encoding"] = {{"x", length_axis()},
                      {"y", percent_axis("accuracy")},
                      {"color", colors_of(targets, "target")},
                      {"strokeDash", dash}};
  mark_training_length(run, spec);
  return Figure{
      fmt::format("curve_targets_{}", index + 1),
      fmt::format("{}: does it remember the text or its training data?", run.name),
      "The forgetting curve on several texts: solid where the text was seen just before (copy), "
      "dashed where it was not (LM). Solid lines that coincide for training and held-out text mean "
      "that the curve measures memory of the context, not leaked training data.",
      spec};
}

std::optional<Figure> curve_prefixes(const RunResults& run, size_t index) {
  const json curves = curve_list(run, "/series/curves");
  const std::vector<std::string> targets = names_of(curves, "target");
  const std::vector<std::string> prefixes = names_of(curves, "prefix");
  if (prefixes.size() < 2 || targets.empty()) return {};
  json values = json::array();
  for (const json& curve : curves) {
    if (text_at(curve, "/target") != targets.front()) continue;
    for (const json& point : list_at(curve, "/points")) {
      values.push_back({{"prefix", text_at(curve, "/prefix")},
                        {"length", number_at(point, "/length")},
                        {"accuracy", rounded(number_at(point, "/lm_mean"))}});
    }
  }
  json spec = base_spec(240);
  spec["data"] = {{"values", values}};
  json y = quantitative("accuracy", "LM accuracy");
  y["axis"] = {{"format", ".0%"}};
  spec["mark"] = {{"type", "line"}, {"tooltip", true}};
  spec["encoding"] = {{"x", length_axis()}, {"y", y}, {"color", colors_of(prefixes, "prefix")}};
  mark_training_length(run, spec);
  return Figure{
      fmt::format("curve_prefixes_{}", index + 1),
      fmt::format("{}: does the unrelated text matter?", run.name),
      "Accuracy without help, by the source of the unrelated text before. Lines that coincide mean "
      "that the choice does not matter; random tokens are expected to lie apart." +
          prefix_verdict(curve_list(run, "/series/prefix_tests"), targets.front()),
      spec};
}

}  // namespace reynard::report
