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
  for (const json& layer : spec.at("spec").at("layer")) {
    if (layer.at("mark").at("type") == "text") return layer.at("mark");
  }
  return {};
}

// Pixels of a column where no page decides.
double column_of(const Figure& figure) {
  return figure.spec.at("spec").at("width").get<double>() /
         figure.spec.at("params").at(0).at("value").get<double>();
}

TEST(ForgetGates, LabelsOfBytesStandSideBySide) {
  const Figure figure = gates_of(json(std::vector<std::string>(128, "·")));
  const json letters = letters_of(figure.spec);
  EXPECT_FALSE(letters.contains("angle"));
  EXPECT_GE(column_of(figure), 0.61 * letters.at("fontSize").get<double>());
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
    EXPECT_GE(column_of(figure), letters.at("fontSize").get<double>() + 1) << token;
  }
}

// Nothing is cut but what is very long.
TEST(ForgetGates, LongestLabelHasRoom) {
  for (const auto& [characters, pixels] : {std::pair(5, 27), {12, 66}, {200, 90}}) {
    json text = std::vector<std::string>(8, "e");
    text[3] = std::string(characters, 'w');
    const json limit = letters_of(gates_of(text).spec).at("limit");
    EXPECT_GE(limit, pixels) << characters;
    EXPECT_LE(limit, 90) << characters;
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
