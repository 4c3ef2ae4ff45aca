// Figures of what gates and attention do on one text.

#include "reynard/report/figure.h"
#include "reynard/report/head_maps.h"
#include "tests/support/report_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {
namespace {

using json = nlohmann::json;

Figure gates_of(const json& text) {
  RunResults run;
  run.name = "fox";
  json& series = run.evaluations["inside"]["series"];
  series = {{"gate_text", text},
            {"layers", {{{"gates", {std::vector<double>(text.size(), 0.5)}}}}}};
  return forget_gates(run, 0).value();
}

// The mark of the letters under the gates.
json letters_of(const json& spec) {
  for (const json& layer : spec.at("layer")) {
    if (layer.at("mark").at("type") == "text") return layer.at("mark");
  }
  return {};
}

// Pixels of a column on the narrowest page, beside names of heads.
double column_of(const Figure& figure, size_t num_tokens) {
  constexpr double kNames = 85;
  const double width = figure.spec.at("usermeta").at("minimum").get<double>();
  return (width - kNames) / static_cast<double>(num_tokens);
}

TEST(ForgetGates, LabelsOfBytesStandSideBySide) {
  const Figure figure = gates_of(json(std::vector<std::string>(128, "·")));
  const json letters = letters_of(figure.spec);
  EXPECT_FALSE(letters.contains("angle"));
  EXPECT_GE(column_of(figure, 128), 0.61 * letters.at("fontSize").get<double>());
}

// Words and pieces of them, and characters that are as wide as high.
TEST(ForgetGates, LongerLabelsAreTurnedAndDoNotTouch) {
  for (const char* token : {" that", "語"}) {
    json text = std::vector<std::string>(128, "e");
    text[7] = token;
    const Figure figure = gates_of(text);
    const json letters = letters_of(figure.spec);
    EXPECT_EQ(letters.value("angle", 0), 270) << token;
    EXPECT_EQ(letters.value("align", ""), "right") << token;  // hangs under the map
    EXPECT_GE(column_of(figure, 128), letters.at("fontSize").get<double>() + 1) << token;
  }
}

// Below them nothing is cut but what is very long.
TEST(ForgetGates, LongestLabelHasRoom) {
  for (const auto& [characters, pixels] : {std::pair(5, 30), {12, 70}, {200, 90}}) {
    json text = std::vector<std::string>(8, "e");
    text[3] = std::string(characters, 'w');
    const json spec = gates_of(text).spec;
    EXPECT_GE(spec.at("padding").at("bottom"), pixels) << characters;
    EXPECT_LE(spec.at("padding").at("bottom"), 110) << characters;
    EXPECT_GE(spec.at("padding").at("bottom"), letters_of(spec).at("limit")) << characters;
  }
}

// A row of four that is not full: no axis stands under its empty places.
TEST(HeadMaps, RowsThatAreNotFullHaveAxesOfTheirOwn) {
  const json triangle{1};
  HeadMaps maps;
  maps.end = maps.cells = 1;
  for (const auto& [heads, own] : {std::pair(3, false), {4, false}, {5, true}, {8, false}}) {
    maps.maps.resize(heads, {"head", &triangle});
    EXPECT_EQ(maps_spec(maps).contains("resolve"), own) << heads;
  }
}

}  // namespace
}  // namespace reynard::report
