#include "reynard/report/head_maps.h"

#include "reynard/report/figure_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace reynard::report {

namespace {

constexpr int64_t kPruningRows = 128;  // queries that share one boundary
constexpr int kFileSize = 128;         // pixels of a map where no page decides,
constexpr int kFileColumns = 4;        // and maps in a row

// The pruning boundary as a line: query rows [row, row + 128) keep keys from `start` on.
void add_boundary(const HeadMaps& maps, const HeadMap& map, json& values) {
  if (!is_pruned(map)) return;
  int64_t block = 0;
  for (const json& start : *map.start) {
    const double key = std::max(start.is_number() ? start.get<double>() : 0, maps.begin);
    const auto top = static_cast<double>(block++ * kPruningRows);
    const double bottom = std::min(top + kPruningRows, maps.end);
    if (bottom <= maps.begin || top >= maps.end) continue;
    for (const double row : {std::max(top, maps.begin), bottom}) {
      values.push_back({{"m", map.label}, {"b", key}, {"q", row}, {"o", values.size()}});
    }
  }
}

// One list per map: a row of data per cell would be ten times as long.
json values_of(const HeadMaps& maps) {
  json values = json::array();
  for (const HeadMap& map : maps.maps) {
    values.push_back({{"m", map.label}, {"v", *map.triangle}});
    add_boundary(maps, map, values);
  }
  return values;
}

// Cell n (from 1) of a lower triangle that is written row by row: its row and column.
json cell_transforms(const HeadMaps& maps) {
  const double step = (maps.end - maps.begin) / static_cast<double>(maps.cells);
  json transforms{
      {{"filter", "isValid(datum.v)"}},
      {{"flatten", {"v"}}},
      {{"window", {{{"op", "row_number"}, {"as", "n"}}}}, {"groupby", {"m"}}},
      {{"filter", fmt::format("datum.v >= {}", maps.threshold)}},
      {{"calculate", "floor((sqrt(8 * datum.n - 7) - 1) / 2)"}, {"as", "row"}},
      {{"calculate", "datum.n - 1 - datum.row * (datum.row + 1) / 2"}, {"as", "column"}}};
  const auto calculate = [&](const char* as, const char* from, int offset) {
    transforms.push_back(
        {{"calculate", fmt::format("{} + (datum.{} + {}) * {}", maps.begin, from, offset, step)},
         {"as", as}});
  };
  calculate("q", "row", 0);
  calculate("q2", "row", 1);
  calculate("k", "column", 0);
  calculate("k2", "column", 1);
  if (!maps.text) return transforms;
  for (const auto& [as, from] : {std::pair("query", "row"), {"key", "column"}}) {
    const auto bound = [&](int offset) {
      return fmt::format(
          "floor((datum.{} + {}) * {} / {})", from, offset, maps.text->size(), maps.cells);
    };
    transforms.push_back(
        {{"calculate", fmt::format("join(slice(tokens, {}, {}), '')", bound(0), bound(1))},
         {"as", as}});
  }
  return transforms;
}

json tooltip_of(const HeadMaps& maps) {
  json tooltip = json::array();
  for (const auto& [field, name] : {std::pair("q", "query"), {"k", "key"}}) {
    if (maps.text) tooltip.push_back({{"field", name}, {"type", "nominal"}});
    tooltip.push_back(
        {{"field", field}, {"type", "quantitative"}, {"title", std::string(name) + " from"}});
  }
  tooltip.push_back(
      {{"field", "v"}, {"type", "quantitative"}, {"title", "value"}, {"format", ".3g"}});
  return tooltip;
}

json axis_of(const char* field, const char* title, const json& domain) {
  json axis = quantitative(field, title);
  axis["scale"] = {{"domain", domain}, {"nice", false}, {"zero", false}};
  axis["axis"] = {{"tickCount", 2}, {"grid", false}, {"format", "~s"}};
  return axis;
}

}  // namespace

bool is_pruned(const HeadMap& map) {
  if (!map.start || !map.start->is_array()) return false;
  return std::any_of(
      map.start->begin(), map.start->end(), [](const json& start) { return start > 0; });
}

json maps_spec(const HeadMaps& maps) {
  json spec = panels_spec();
  // The page chooses how many columns fit, and how large maps can be.
  spec["usermeta"]["cell"] = maps.least + 16;
  spec["usermeta"]["least"] = maps.least;
  spec["usermeta"]["cells"] = maps.cells;
  spec["usermeta"]["heads"] = maps.maps.size();
  spec["usermeta"]["columns"] = maps.columns ? maps.columns : maps.maps.size();
  spec["usermeta"]["largest"] = maps.largest;
  spec["data"] = {{"values", values_of(maps)}};
  json order = json::array();
  for (const HeadMap& map : maps.maps) order.push_back(map.label);
  spec["facet"] = {{"field", "m"}, {"type", "nominal"}, {"title", nullptr}, {"sort", order}};
  spec["columns"] = kFileColumns;
  // Else the axes below would stand under the places that a last row leaves empty too.
  if (std::ssize(maps.maps) > kFileColumns && std::ssize(maps.maps) % kFileColumns != 0) {
    spec["resolve"] = {{"axis", {{"x", "independent"}}}};
  }
  spec["spacing"] = 14;
  const json x = axis_of("k", "key (token)", {maps.begin, maps.end});
  const json y = axis_of("q", "query (token)", {maps.end, maps.begin});
  json boundary_x = x;
  boundary_x["field"] = "b";
  if (maps.text) spec["params"] = {{{"name", "tokens"}, {"value", *maps.text}}};
  spec["spec"] = {
      {"width", kFileSize},
      {"height", kFileSize},
      {"layer",
       {{{"transform", cell_transforms(maps)},
         {"mark", {{"type", "rect"}}},
         {"encoding",
          {{"x", x},
           {"x2", {{"field", "k2"}}},
           {"y", y},
           {"y2", {{"field", "q2"}}},
           {"color", maps.color},
           {"tooltip", tooltip_of(maps)}}}},
        {{"transform", {{{"filter", "isValid(datum.b)"}}}},
         {"mark", {{"type", "line"}, {"color", "#ff3d7f"}, {"strokeWidth", 1.6}}},
         {"encoding",
          {{"x", boundary_x}, {"y", y}, {"order", {{"field", "o"}, {"type", "quantitative"}}}}}}}}};
  return spec;
}

json log_color(const char* title, double least) {
  json values = json::array();
  for (int power = static_cast<int>(std::ceil(std::log10(least) - 1e-9)); power <= 0; ++power) {
    values.push_back(std::pow(10.0, power));
  }
  return {
      {"field", "v"},
      {"type", "quantitative"},
      {"scale", {{"type", "log"}, {"domain", {least, 1}}, {"clamp", true}, {"scheme", "magma"}}},
      {"legend",
       {{"title", title},
        {"orient", "top"},
        {"gradientLength", 240},  // 60 for each decade and its label
        {"format", "~p"},
        {"values", values}}}};
}

json linear_color(const char* title, double least, double most, const char* format) {
  return {{"field", "v"},
          {"type", "quantitative"},
          {"scale", {{"domain", {least, most}}, {"clamp", true}, {"scheme", "viridis"}}},
          {"legend",
           {{"title", title}, {"orient", "top"}, {"gradientLength", 200}, {"format", format}}}};
}

}  // namespace reynard::report
