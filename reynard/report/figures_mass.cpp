// Positive attention mass: which share of the attention on d documents falls on the right one.

#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::report {

namespace {

json points_of(const RunResults& run) {
  const json* summary = run.evaluation("attention_mass");
  return summary ? list_at(*summary, "/series/points") : json::array();
}

// Mean over the heads of a layer; NaN where none was measured.
double mean_of(const json& heads) {
  double sum = 0;
  int count = 0;
  for (const json& head : heads) {
    if (!head.is_number()) continue;
    sum += head.get<double>();
    ++count;
  }
  return count ? sum / count : std::nan("");
}

double most_of(const json& heads) {
  double most = std::nan("");
  for (const json& head : heads) {
    if (head.is_number()) most = std::fmax(most, head.get<double>());
  }
  return most;
}

std::string place_text(const json& summary) {
  const std::string place = text_at(summary, "/settings/place");
  if (place == "first") return "the farthest of all";
  if (place == "last") return "the nearest of all";
  return "at a random place among them";
}

struct MassPoints {
  json values = json::array();  // {contexts, layer, mass, best}
  json chance = json::array();  // {contexts, chance}
  double largest = 1;           // number of documents measured
};

MassPoints mass_points(const RunResults& run) {
  MassPoints points;
  for (const json& point : points_of(run)) {
    const double d = number_at(point, "/contexts");
    points.largest = std::max(points.largest, d);
    points.chance.push_back({{"contexts", d}, {"chance", rounded(1 / d)}});
    int64_t layer = 0;
    for (const json& heads : list_at(point, "/mass")) {
      ++layer;
      if (std::isnan(mean_of(heads))) continue;
      points.values.push_back({{"contexts", d},
                               {"layer", layer},
                               {"mass", rounded(mean_of(heads))},
                               {"best", rounded(most_of(heads))}});
    }
  }
  return points;
}

}  // namespace

std::optional<Figure> attention_mass(const RunResults& run, size_t index) {
  const MassPoints points = mass_points(run);
  if (points.values.empty()) return {};
  const json& summary = *run.evaluation("attention_mass");
  json spec = base_spec(280);
  json x = quantitative("contexts", "documents d that can be seen (log scale)");
  x["scale"] = {{"type", "log"}, {"base", 2}, {"nice", false}};
  x["axis"] = {{"format", "d"}};
  json y = quantitative("mass", "share of attention on the right one");
  y["axis"] = {{"format", ".0%"}};
  y["scale"] = {{"domain", {0, 1}}};
  const json color{{"field", "layer"},
                   {"type", "ordinal"},
                   {"scale", {{"scheme", "viridis"}}},
                   {"legend", {{"orient", "top"}, {"title", "layer"}}}};
  json best = y;
  best["field"] = "best";
  json of_chance = y;
  of_chance["field"] = "chance";
  spec["layer"] = {{{"data", {{"values", points.values}}},
                    {"encoding", {{"x", x}, {"color", color}}},
                    {"layer",
                     {{{"mark", {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}}},
                       {"encoding", {{"y", y}}}},
                      {{"mark", {{"type", "line"}, {"strokeDash", {2, 3}}, {"strokeWidth", 1.2}}},
                       {"encoding", {{"y", best}}}}}}},
                   {{"data", {{"values", points.chance}}},
                    {"mark", {{"type", "line"}, {"strokeDash", {6, 4}}, {"color", "#94a3b8"}}},
                    {"encoding", {{"x", x}, {"y", of_chance}}}}};
  const double length = number_at(summary, "/settings/length");
  // One more of the same size holds the queries. What a memory holds has no such limit.
  const double fits = static_cast<double>(run.train_length()) / length - 1;
  const bool has_memory = summary.contains(json::json_pointer("/settings/memory_layers"));
  if (!has_memory && fits >= 1 && fits <= points.largest) {
    spec["layer"].push_back(marked_position(
        fits, fmt::format("{} tokens, as trained", grouped(run.train_length())), {.row = 1}));
  }
  return Figure{
      fmt::format("attention_mass_{}", index + 1),
      run.name + ": does it look at the right document?",
      fmt::format("A text goes on after d pieces of different documents, {} tokens each, one of "
                  "them its own beginning, {}. Lines: share of the attention on these pieces that "
                  "falls on its own, mean over the heads of a layer; dotted: the layer's best "
                  "head. Grey dashes are 1/d, attention that cannot tell them apart: look for "
                  "lines that stay far above them as documents are added.",
                  length,
                  place_text(summary)),
      spec};
}

std::optional<Figure> attention_mass_heads(const RunResults& run, size_t index) {
  const json points = points_of(run);
  if (points.empty()) return {};
  const json& point = points.back();
  const double d = number_at(point, "/contexts");
  json values = json::array();
  int64_t layer = 0, drawn = 0;
  for (const json& heads : list_at(point, "/mass")) {
    ++layer;
    if (!std::isnan(mean_of(heads))) ++drawn;
    for (size_t h = 0; heads.is_array() && h < heads.size(); ++h) {
      if (!heads[h].is_number()) continue;
      const json share = number_at(point, fmt::format("/context_share/{}/{}", layer - 1, h));
      values.push_back({{"layer", layer},
                        {"head", h + 1},
                        {"times", rounded(heads[h].get<double>() * d, 4)},
                        {"context", share}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(static_cast<int>(drawn) * 34 + 10);
  spec["data"] = {{"values", values}};
  const json color{{"field", "times"},
                   {"type", "quantitative"},
                   {"scale",
                    {{"type", "symlog"},
                     {"domain", {0, std::max(2.0, d)}},
                     {"domainMid", 1},
                     {"scheme", "purpleorange"},
                     {"reverse", true}}},
                   {"legend", nullptr}};
  // Cells at both ends of the scale are dark.
  const json text_color{
      {"condition",
       {{"test", fmt::format("datum.times < 0.3 || datum.times > {}", 0.6 * std::max(2.0, d))},
        {"value", "white"}}},
      {"value", "#0f172a"}};
  const json tooltip{{{"field", "times"}, {"type", "quantitative"}, {"title", "times chance"}},
                     {{"field", "context"},
                      {"type", "quantitative"},
                      {"title", "of all its attention on the documents"},
                      {"format", ".1%"}}};
  spec["encoding"] = {
      {"x",
       {{"field", "head"}, {"type", "ordinal"}, {"title", "head"}, {"axis", {{"labelAngle", 0}}}}},
      {"y", {{"field", "layer"}, {"type", "ordinal"}, {"title", "layer"}}},
      {"tooltip", tooltip}};
  spec["layer"] = {
      {{"mark", {{"type", "rect"}, {"cornerRadius", 3}}}, {"encoding", {{"color", color}}}},
      {{"mark", {{"type", "text"}, {"fontSize", 11}}},
       {"encoding",
        {{"color", text_color},
         {"text", {{"field", "times"}, {"type", "quantitative"}, {"format", ".2~f"}}}}}}};
  return Figure{
      fmt::format("attention_mass_heads_{}", index + 1),
      fmt::format("{}: which heads find it among {} documents", run.name, d),
      "How many times as much attention the right document gets as it would by chance, per head. "
      "1 is chance; look for heads far above it: they are the ones that look things up.",
      spec};
}

}  // namespace reynard::report
