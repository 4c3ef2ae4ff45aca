// Metrics of a run's checkpoints by the tokens that they had seen.

#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

namespace reynard::report {

namespace {

// What has a figure of its own; in the last one the reader chooses among all metrics.
struct DrawnMetric {
  const char* task;
  const char* pointer;
  const char* title;
  const char* axis;
  const char* what;
};
constexpr DrawnMetric kDrawn[] = {
    {"per_position_loss", "/loss", "Held-out loss", "loss (nats per token)", "Lower is better."},
    {"forgetting_curve",
     "/fine_length/length",
     "Fine memory",
     "longest text copied (tokens)",
     "Higher is better; it often appears suddenly, when the model learns to copy."},
    {"forgetting_curve",
     "/significant_length/length",
     "Coarse memory",
     "longest text that helps (tokens)",
     "Where it helps by more than one point and more than chance; higher is better."},
    {"pruning", "/pruned_share", "Pruned share", "share of attention tiles", "Higher is cheaper."},
    {"needle", "/score", "Needle", "score", "Higher is better."},
    {"passkey", "/score", "Passkey", "score", "Higher is better."},
    {"ruler", "/score", "RULER", "score", "Higher is better."},
    {"babilong", "/score", "BABILong", "score", "Higher is better."},
    {"dictionary", "/score", "Dictionary lookup", "score", "Higher is better."},
    {"few_shot", "/score", "Few-shot questions", "score", "Higher is better."},
    {"perplexity", "/strided_perplexity", "Perplexity", "perplexity", "Lower is better."},
};

// All numbers of the checkpoints' metrics: {run, tokens, task, pointer, value}, where the pointer
// is that of the number in the metrics.
json metric_values(const Runs& runs) {
  json values = json::array();
  for (const RunResults& run : runs) {
    const json* summary = run.evaluation("checkpoints");
    if (!summary) continue;
    for (const json& point : list_at(*summary, "/series/points")) {
      const json metrics = point.is_object() ? point.value("metrics", json()) : json();
      if (!metrics.is_object()) continue;
      for (const auto& [key, metric] : metrics.items()) {
        if (is_token_id(key)) continue;
        const json parts = metric.is_object() ? metric : json{{"", metric}};
        for (const auto& [part, value] : parts.items()) {
          if (!value.is_number()) continue;
          const std::string name =
              fmt::format("{} {}{}{}", text_at(point, "/task"), key, part.empty() ? "" : " ", part);
          values.push_back({{"run", run.name},
                            {"tokens", number_at(point, "/tokens")},
                            {"task", text_at(point, "/task")},
                            {"pointer", fmt::format("/{}{}{}", key, part.empty() ? "" : "/", part)},
                            {"metric", name},
                            {"value", rounded(value.get<double>())}});
        }
      }
    }
  }
  return values;
}

json values_of(const json& values, const DrawnMetric& metric) {
  json chosen = json::array();
  for (const json& value : values) {
    if (value.at("task") != metric.task || value.at("pointer") != metric.pointer) continue;
    chosen.push_back(
        {{"run", value.at("run")}, {"tokens", value.at("tokens")}, {"value", value.at("value")}});
  }
  return chosen;
}

json lines_by_tokens(const Runs& runs, const json& values, const char* axis) {
  json spec = base_spec(200);
  spec["data"] = {{"values", values}};
  json x = quantitative("tokens", "training tokens seen");
  x["axis"] = {{"format", "~s"}};
  json y = quantitative("value", axis);
  y["scale"] = {{"zero", false}};
  spec["mark"] = {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}};
  spec["encoding"] = {{"x", x}, {"y", y}};
  spec["encoding"].update(line_channels(names_of(runs)));
  return spec;
}

// What the figure of any metric shows at first: the first that is drawn anyway, loss before all.
std::string first_chosen(const json& values) {
  for (const DrawnMetric& metric : kDrawn) {
    for (const json& value : values) {
      if (value.at("task") == metric.task && value.at("pointer") == metric.pointer) {
        return value.at("metric");
      }
    }
  }
  return values.front().at("metric");
}

// One figure for whatever else was measured: the reader chooses.
std::optional<Figure> chosen_metric(const Runs& runs, json values) {
  if (values.empty()) return {};
  const std::string first = first_chosen(values);
  std::set<std::string> names;
  for (json& value : values) {
    names.insert(value.at("metric").get<std::string>());
    value.erase("task");
    value.erase("pointer");
  }
  json spec = lines_by_tokens(runs, values, "value");
  spec["params"] = {{{"name", "metric"},
                     {"value", first},
                     {"bind", {{"input", "select"}, {"options", names}, {"name", "metric "}}}}};
  spec["transform"] = {{{"filter", "datum.metric == metric"}}};
  return Figure{"checkpoints_chosen",
                "Any metric over training",
                fmt::format("Choose one of the {} numbers that were measured of every checkpoint "
                            "below the figure; at first it shows {}.",
                            names.size(),
                            first),
                spec};
}

}  // namespace

std::vector<Figure> checkpoint_figures(const Runs& runs) {
  std::vector<Figure> figures;
  const json all = metric_values(runs);
  for (const DrawnMetric& metric : kDrawn) {
    const json values = values_of(all, metric);
    if (values.empty()) continue;
    std::string id = fmt::format("checkpoints_{}{}", metric.task, metric.pointer);
    for (char& c : id) c = c == '/' ? '_' : c;
    figures.push_back({id,
                       fmt::format("{} over training", metric.title),
                       fmt::format("{} of every checkpoint. {}", metric.title, metric.what),
                       lines_by_tokens(runs, values, metric.axis)});
  }
  if (auto figure = chosen_metric(runs, all)) figures.push_back(std::move(*figure));
  return figures;
}

}  // namespace reynard::report
