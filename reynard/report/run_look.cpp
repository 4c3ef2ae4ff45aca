#include "reynard/report/run_look.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

namespace reynard::report {

namespace {

using json = nlohmann::json;

constexpr std::array<const char*, 8> kColors = {
    "#e4572e", "#17807e", "#7c3aed", "#ca8a04", "#db2777", "#2563eb", "#65a30d", "#64748b"};
constexpr size_t kRounds = 4;
constexpr size_t kPaperWidth = 780;  // pixels of a figure in a file, less its axis
// Drawn and left out in turns, in pixels; unlike the finer dashes of fitted lines and marks.
const std::array<std::vector<int>, kRounds> kDashes = {{{1, 0}, {10, 4}, {2, 3}, {10, 3, 2, 3}}};
constexpr std::array<double, kRounds> kOpacities = {1, 0.5, 0.3, 0.15};

size_t round_of(size_t index) {
  return index / kColors.size() % kRounds;
}

// How many names fit beside each other, with a mark and the space between them.
size_t legend_columns(const std::vector<std::string>& names) {
  constexpr size_t kCharacterWidth = 7;
  constexpr size_t kMarkWidth = 54;
  size_t longest = 1;
  for (const std::string& name : names) longest = std::max(longest, name.size());
  return std::clamp<size_t>(
      kPaperWidth / (kCharacterWidth * longest + kMarkWidth), 1, std::max<size_t>(1, names.size()));
}

// The field "run" with what each name gets.
template <class OfRun>
json channel(const std::vector<std::string>& names, const OfRun& of_run) {
  json range = json::array();
  for (size_t i = 0; i < names.size(); ++i) range.push_back(of_run(i));
  json legend{{"orient", "top"},
              {"title", nullptr},
              {"columns", legend_columns(names)},  // on paper; the page measures its own width
              {"labelLimit", kPaperWidth}};
  if (names.size() > kColors.size()) {
    // Lines of 30 pixels, on which dashes can be seen.
    legend.update({{"symbolType", "stroke"}, {"symbolSize", 900}});
  }
  return {{"field", "run"},
          {"type", "nominal"},
          {"scale", {{"domain", names}, {"range", range}}},
          {"legend", legend}};
}

// The runs of all rows of data in a specification.
void collect_runs(const json& spec, std::set<json>& runs) {
  if (!spec.is_structured()) return;
  if (spec.is_object() && spec.contains("run")) runs.insert(spec.at("run"));
  for (const json& child : spec) collect_runs(child, runs);
}

void list_runs(const std::set<json>& drawn, json& spec) {
  if (!spec.is_structured()) return;
  const auto field = spec.is_object() ? spec.find("field") : spec.end();
  if (field == spec.end() || *field != "run" || !spec.value("legend", json()).is_object()) {
    for (json& child : spec) list_runs(drawn, child);
    return;
  }
  json listed = json::array();
  for (const json& name : spec.at("scale").at("domain")) {
    if (drawn.contains(name)) listed.push_back(name);
  }
  if (listed.size() < spec.at("scale").at("domain").size()) spec["legend"]["values"] = listed;
}

}  // namespace

std::string run_color(size_t index) {
  return kColors[index % kColors.size()];
}

std::string run_swatch(size_t index) {
  const std::string color = run_color(index);
  if (round_of(index) == 0) {
    return fmt::format("<span class=\"run\" style=\"background:{}\"></span>", color);
  }
  return fmt::format(
      "<svg class=\"run line\"><path d=\"M0 5h28\" stroke=\"{}\" stroke-width=\"3\" "
      "stroke-dasharray=\"{}\"/></svg>",
      color,
      fmt::join(kDashes[round_of(index)], " "));
}

json color_encoding(const std::vector<std::string>& names) {
  return channel(names, run_color);
}

json line_channels(const std::vector<std::string>& names, SecondChannel second) {
  json channels{{"color", color_encoding(names)}};
  if (names.size() <= kColors.size()) return channels;
  if (second == SecondChannel::kDash) {
    channels["strokeDash"] = channel(names, [](size_t i) { return json(kDashes[round_of(i)]); });
  } else {
    json& opacity = channels["opacity"];
    opacity = channel(names, [](size_t i) { return json(kOpacities[round_of(i)]); });
    opacity["type"] = "ordinal";           // as Vega-Lite wants it
    opacity["scale"]["type"] = "ordinal";  // else what lies evenly between the first two
  }
  return channels;
}

void list_drawn_runs(json& spec) {
  std::set<json> drawn;
  collect_runs(spec, drawn);
  list_runs(drawn, spec);
}

}  // namespace reynard::report
