#include "reynard/report/figure_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace reynard::report {

namespace {

// Of a label beside a mark, as a share of a figure on a phone.
constexpr double kLabelWidth = 0.27;

json theme(std::string_view text) {
  const json axis{{"labelColor", text},
                  {"titleColor", text},
                  {"gridColor", "#8884"},
                  {"domainColor", "#8888"},
                  {"tickColor", "#8888"},
                  {"labelFontSize", 11},
                  {"titleFontSize", 12},
                  {"titleFontWeight", 500},
                  {"titlePadding", 8},
                  {"labelSeparation", 6},  // on a phone ticks of log scales lie close
                  {"labelFlush", false}};
  return {
      {"background", nullptr},
      {"font", "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"},
      {"view", {{"stroke", nullptr}}},
      {"axis", axis},
      {"header",
       {{"labelColor", text}, {"titleColor", text}, {"labelFontSize", 11}, {"titleFontSize", 12}}},
      {"legend",
       {{"labelColor", text},
        {"titleColor", text},
        {"labelFontSize", 12},
        {"titleFontSize", 12},
        {"titleFontWeight", 500},
        {"symbolStrokeWidth", 3},
        {"symbolOpacity", 1},
        {"labelLimit", 260}}},
      {"title", {{"color", text}, {"fontSize", 13}, {"fontWeight", 500}}},
      {"text", {{"color", text}}},
      {"rule", {{"color", text}}},
      {"line", {{"strokeWidth", 2}}}};
}

// Marks of one training length, in this row, and of its multiples, in the next one.
template <class Label>
std::vector<json> marks_of_length(int64_t trained,
                                  const LengthAxis& axis,
                                  int row,
                                  const Label& label) {
  const auto length = static_cast<double>(trained);
  // Where on the axis, from 0 to 1. The mark itself may be what a log scale begins with.
  const auto place = [&](double x) {
    if (axis.shortest <= 0) return x / axis.longest;
    const double begin = std::min(axis.shortest, length);
    return std::log(x / begin) / std::max(std::log(axis.longest / begin), 1e-9);
  };
  std::vector<json> marks;
  const auto largest =
      static_cast<int64_t>(std::exp2(std::floor(std::log2(axis.longest / length))));
  double taken = 1 + kLabelWidth;  // where the label to the right begins
  for (int64_t times = largest; times >= 2; times /= 2) {
    const double at = place(length * static_cast<double>(times));
    if (at > taken - kLabelWidth) continue;
    taken = at;
    const MarkStyle style{.color = "#94a3b8", .label_left = at > 0.8, .row = row + 1};
    marks.push_back(marked_position(length * static_cast<double>(times), label(times), style));
  }
  marks.push_back(marked_position(length,
                                  fmt::format("trained at {}", grouped(trained)),
                                  {.label_left = place(length) > 0.7, .row = row}));
  std::reverse(marks.begin(), marks.end());
  return marks;
}

}  // namespace

json base_spec(int height) {
  return {{"$schema", "https://vega.github.io/schema/vega-lite/v6.json"},
          {"width", "container"},
          {"height", height},
          {"autosize", {{"type", "fit-x"}, {"contains", "padding"}}},
          {"config", theme("currentColor")},
          {"usermeta", {{"embedOptions", {{"actions", false}, {"renderer", "svg"}}}}}};
}

json panels_spec() {
  json spec = base_spec(0);
  for (const char* of_one : {"width", "height", "autosize"}) spec.erase(of_one);
  spec["config"] = theme("#7c8494");
  spec["usermeta"]["embedOptions"]["renderer"] = "canvas";
  return spec;
}

json quantitative(std::string_view field, std::string_view title) {
  return {{"field", field}, {"type", "quantitative"}, {"title", title}};
}

json marked_position(double x, std::string_view label, const MarkStyle& style) {
  json rule{{"type", "rule"}, {"strokeDash", {5, 4}}, {"strokeWidth", 1.2}};
  json text{{"type", "text"},
            {"align", style.label_left ? "right" : "left"},
            {"baseline", "top"},
            {"dx", style.label_left ? -4 : 4},
            {"y", 2 + 14 * style.row},
            {"fontSize", 11}};
  if (!style.color.empty()) {
    rule["color"] = style.color;
    text["color"] = style.color;
  }
  const json at{{"datum", x}, {"type", "quantitative"}};
  return {{"layer",
           {{{"mark", rule}, {"encoding", {{"x", at}}}},
            {{"mark", text}, {"encoding", {{"x", at}, {"text", {{"value", label}}}}}}}},
          {"data", {{"values", {json::object()}}}}};
}

std::vector<json> training_length_marks(const std::set<int64_t>& trained, const LengthAxis& axis) {
  std::vector<json> marks;
  int row = 0;
  for (const int64_t length : trained) {
    if (length <= 0 || static_cast<double>(length) > axis.longest) continue;
    const auto label = [&](int64_t times) {
      if (trained.size() > 1) return fmt::format("{} × {}", grouped(times), grouped(length));
      return times < 100 ? fmt::format("{}× longer", times) : grouped(times) + "×";
    };
    for (json& mark : marks_of_length(length, axis, row, label)) marks.push_back(std::move(mark));
    row += 2;
  }
  return marks;
}

double rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return value;
  return std::stod(fmt::format("{:.{}g}", value, digits));
}

std::vector<size_t> thinned(size_t size, size_t most) {
  std::vector<size_t> indices;
  if (size == 0) return indices;
  const size_t count = size < most ? size : most;
  for (size_t i = 0; i < count; ++i) {
    indices.push_back(count == 1 ? size - 1 : i * (size - 1) / (count - 1));
  }
  return indices;
}

std::string grouped(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const int64_t begin = value < 0 ? 1 : 0;
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > begin; i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

std::string grouped(int64_t value, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(value), noun, value == 1 ? "" : "s");
}

std::string with_unit(double value) {
  static constexpr std::array<const char*, 5> kUnits{"", " k", " M", " G", " T"};
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

}  // namespace reynard::report
