#include "reynard/report/curve_words.h"
#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::report {

namespace {

constexpr const char* kFine = "#16a34a";
constexpr const char* kCoarse = "#2563eb";
constexpr const char* kAmnesia = "#dc2626";
constexpr const char* kUnknown = "#64748b";
constexpr double kNarrow = 0.07;  // share of the axis below which a region has no room for its name

json region(double from, double to, const char* color, const char* label) {
  return {{"data", {{"values", {{{"from", from}, {"to", to}, {"label", label}}}}}},
          {"layer",
           {{{"mark", {{"type", "rect"}, {"color", color}, {"opacity", 0.10}}},
             {"encoding",
              {{"x", {{"field", "from"}, {"type", "quantitative"}}}, {"x2", {{"field", "to"}}}}}},
            {{"mark",
              {{"type", "text"},
               {"align", "left"},
               {"baseline", "bottom"},
               {"dx", 5},
               {"y", {{"expr", "height - 5"}}},
               {"fontSize", 11},
               {"fontWeight", 600},
               {"color", color}}},
             {"encoding",
              {{"x", {{"field", "from"}, {"type", "quantitative"}}},
               {"text", {{"field", "label"}}}}}}}}};
}

// Regions from the shortest length to the longest; without a difference that a test can see there
// is no memory to shade.
json regions_of(const json& summary, double longest) {
  json layers = json::array();
  const Copying copies = copying(summary);
  if (copies != Copying::kYes) {
    layers.push_back(
        region(0,
               longest,
               kUnknown,
               copies == Copying::kNo ? "has not learned to copy yet" : "too few repeats to tell"));
    return layers;
  }
  const auto limit = [&](double length, double least) {
    return std::clamp(std::isnan(length) ? 0 : length, least, longest);
  };
  const double fine = limit(number_at(summary, "/metrics/fine_length/length"), 0);
  const double coarse = limit(tested_coarse_length(summary).length, fine);
  const auto add = [&](double from, double to, const char* color, const char* name) {
    if (to <= from) return;
    layers.push_back(region(from, to, color, to - from < kNarrow * longest ? "" : name));
  };
  add(0, fine, kFine, "fine");
  add(fine, coarse, kCoarse, "coarse");
  add(coarse, longest, kAmnesia, "amnesia");
  return layers;
}

json color_of_settings() {
  return {{"field", "setting"},
          {"type", "nominal"},
          {"scale",
           {{"domain", {"copy", "LM", "noise"}}, {"range", {kCopyColor, kLmColor, "#94a3b8"}}}},
          {"legend", {{"orient", "top"}, {"title", nullptr}}}};
}

json curve_values(const json& points) {
  json values = json::array();
  for (const json& point : points) {
    for (const bool copy : {true, false}) {
      const double mean = number_at(point, copy ? "/copy_mean" : "/lm_mean");
      const double deviation = number_at(point, copy ? "/copy_std" : "/lm_std");
      values.push_back({{"setting", copy ? "copy" : "LM"},
                        {"length", number_at(point, "/length")},
                        {"accuracy", rounded(mean)},
                        {"low", rounded(std::max(0.0, mean - deviation))},
                        {"high", rounded(std::min(1.0, mean + deviation))},
                        {"p", rounded(number_at(point, "/adjusted_p_value"), 3)}});
    }
    const double noise = number_at(point, "/noise");
    if (std::isnan(noise)) continue;
    const double mean = number_at(point, "/lm_mean");
    values.push_back({{"setting", "noise"},
                      {"length", number_at(point, "/length")},
                      {"low", rounded(std::max(0.0, mean - noise))},
                      {"high", rounded(std::min(1.0, mean + noise))}});
  }
  return values;
}

json band_layer(const char* filter, double opacity) {
  return {{"transform", {{{"filter", filter}}}},
          {"mark", {{"type", "area"}, {"opacity", opacity}}},
          {"encoding",
           {{"y", quantitative("low", "greedy accuracy")},
            {"y2", {{"field", "high"}}},
            {"color", color_of_settings()}}}};
}

json curve_layers(const json& points) {
  json accuracy = quantitative("accuracy", "greedy accuracy");
  json x = quantitative("length", "length of the copied text (tokens)");
  x["axis"] = {{"format", ",d"}, {"grid", false}};
  x["scale"] = {{"nice", false}, {"zero", true}};
  const char* curves = "datum.setting != 'noise'";
  json line{{"transform", {{{"filter", curves}}}},
            {"mark", {{"type", "line"}, {"point", {{"size", 26}, {"filled", true}}}}},
            {"encoding",
             {{"y", accuracy},
              {"color", color_of_settings()},
              {"tooltip",
               {{{"field", "setting"}, {"type", "nominal"}},
                {{"field", "length"}, {"type", "quantitative"}, {"format", ",d"}},
                {{"field", "accuracy"}, {"type", "quantitative"}, {"format", ".1%"}},
                {{"field", "p"}, {"type", "quantitative"}, {"title", "p (copy = LM)"}}}}}}};
  return {
      {"data", {{"values", curve_values(points)}}},
      {"encoding", {{"x", x}}},
      {"layer", {band_layer("datum.setting == 'noise'", 0.30), band_layer(curves, 0.15), line}}};
}

std::string caption(const json& summary) {
  switch (copying(summary)) {
    case Copying::kNo:
      return "Amber stays in the grey band: having seen the text does not help this model yet.";
    case Copying::kTooFewRepeats:
      return "There are too few repeats to tell whether having seen the text helps this model: no "
             "test separates amber from blue.";
    case Copying::kYes:
      break;
  }
  std::string text = fmt::format(
      "Fine memory {}, coarse memory {}: look for where amber leaves 100 % and where it meets "
      "blue.",
      fine_memory(summary),
      coarse_memory(summary));
  const json::json_pointer bos("/metrics/bos");
  if (summary.contains(bos) && summary.at(bos).is_null()) {
    text += " The model has no BOS token; sequences are without it.";
  }
  return text;
}

}  // namespace

std::optional<Figure> forgetting_curve(const RunResults& run, size_t index) {
  const json* summary = run.evaluation("forgetting_curve");
  if (!summary) return {};
  const json& points = list_at(*summary, "/series/points");
  if (points.empty()) return {};

  const double longest = number_at(points.back(), "/length");
  json spec = base_spec(300);
  spec["layer"] = regions_of(*summary, longest);
  spec["layer"].push_back(curve_layers(points));
  for (json& mark : training_length_marks({run.train_length()}, {longest})) {
    spec["layer"].push_back(std::move(mark));
  }
  const int64_t half = run.train_length() / 2;
  if (half > 0 && static_cast<double>(half) <= longest) {
    const auto at = static_cast<double>(half);
    constexpr int kAboveTheRegions = 18;  // below the lines, where the label would hide points
    spec["layer"].push_back(
        marked_position(at,
                        fmt::format("half: {}", grouped(half)),
                        {.label_left = at > 0.7 * longest, .row = kAboveTheRegions}));
  }
  spec["encoding"] = {
      {"y",
       {{"type", "quantitative"}, {"axis", {{"format", ".0%"}}}, {"scale", {{"domain", {0, 1}}}}}}};
  return Figure{fmt::format("forgetting_curve_{}", index + 1),
                run.name + ": accuracy by length",
                caption(*summary),
                spec};
}

}  // namespace reynard::report
