// Metrics of a run's checkpoints by the tokens that they had seen.

#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"

#include <fmt/format.h>

#include <cmath>

namespace reynard::report {

namespace {

// What is drawn of a task; the results hold all its metrics.
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
     "/coarse_length/length",
     "Coarse memory",
     "longest text that helps (tokens)",
     "Higher is better."},
    {"pruning", "/pruned_share", "Pruned share", "share of attention tiles", "Higher is cheaper."},
    {"needle", "/score", "Needle", "score", "Higher is better."},
    {"passkey", "/score", "Passkey", "score", "Higher is better."},
    {"ruler", "/score", "RULER", "score", "Higher is better."},
    {"babilong", "/score", "BABILong", "score", "Higher is better."},
    {"dictionary", "/score", "Dictionary lookup", "score", "Higher is better."},
    {"few_shot", "/score", "Few-shot questions", "score", "Higher is better."},
    {"perplexity", "/strided_perplexity", "Perplexity", "perplexity", "Lower is better."},
};

json values_of(const Runs& runs, const DrawnMetric& metric) {
  json values = json::array();
  for (const RunResults& run : runs) {
    const json* summary = run.evaluation("checkpoints");
    const json::json_pointer path("/series/points");
    if (!summary || !summary->contains(path)) continue;
    for (const json& point : summary->at(path)) {
      if (text_at(point, "/task") != metric.task) continue;
      const double value = number_at(point, fmt::format("/metrics{}", metric.pointer));
      if (std::isnan(value)) continue;
      values.push_back(
          {{"run", run.name}, {"tokens", number_at(point, "/tokens")}, {"value", rounded(value)}});
    }
  }
  return values;
}

}  // namespace

std::vector<Figure> checkpoint_figures(const Runs& runs) {
  std::vector<Figure> figures;
  json domain = json::array();
  json range = json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    domain.push_back(runs[i].name);
    range.push_back(run_color(i));
  }
  for (const DrawnMetric& metric : kDrawn) {
    const json values = values_of(runs, metric);
    if (values.empty()) continue;
    json spec = base_spec(200);
    spec["data"] = {{"values", values}};
    json x = quantitative("tokens", "training tokens seen");
    x["axis"] = {{"format", "~s"}};
    json y = quantitative("value", metric.axis);
    y["scale"] = {{"zero", false}};
    spec["mark"] = {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}};
    spec["encoding"] = {{"x", x},
                        {"y", y},
                        {"color",
                         {{"field", "run"},
                          {"type", "nominal"},
                          {"scale", {{"domain", domain}, {"range", range}}},
                          {"legend", {{"orient", "top"}, {"title", nullptr}}}}}};
    std::string id = fmt::format("checkpoints_{}{}", metric.task, metric.pointer);
    for (char& c : id) c = c == '/' ? '_' : c;
    figures.push_back({id,
                       fmt::format("{} over training", metric.title),
                       fmt::format("{} of every checkpoint. {}", metric.title, metric.what),
                       spec});
  }
  return figures;
}

}  // namespace reynard::report
