// Colours and dashes that tell runs apart.

#include "reynard/report/page.h"
#include "tests/support/files.h"
#include "tests/support/report_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {
namespace {

using json = nlohmann::json;

std::string name_of(size_t run) {
  return fmt::format("run {}", run);
}

std::string page_of(size_t num_runs) {
  const test::TempDir folder;
  std::vector<std::filesystem::path> folders;
  for (size_t i = 0; i < num_runs; ++i) {
    folders.push_back(folder / name_of(i));
    test::write_report_run(folders.back(), name_of(i), 1.0, 0.6);
  }
  return page(read_runs(folders), {}, "vegaEmbed");
}

// What the first encoding of a figure by this channel gives the runs; empty where there is none.
json range_of(const json& spec, const std::string& channel) {
  const json::json_pointer encoded("/encoding/" + channel);
  if (spec.is_object() && spec.contains(encoded) && spec.at(encoded).value("field", "") == "run") {
    return spec.at(encoded).at("scale").at("range");
  }
  if (spec.is_structured()) {
    for (const json& child : spec) {
      if (json range = range_of(child, channel); !range.empty()) return range;
    }
  }
  return json::array();
}

TEST(RunLook, NineRunsAreToldApartInEveryFigure) {
  const auto specs = test::specs_of(page_of(9));
  for (const auto& [id, second] : {std::pair("loss_by_position", "strokeDash"),
                                   {"perplexity", "strokeDash"},
                                   {"training_loss", "strokeDash"},
                                   {"training_speed", "strokeDash"},
                                   {"gate_saturation", "opacity"}}) {
    const json colors = range_of(specs.at(id), "color"), styles = range_of(specs.at(id), second);
    ASSERT_EQ(colors.size(), 9) << id;
    ASSERT_EQ(styles.size(), 9) << id;
    std::set<json> looks;
    for (size_t i = 0; i < 9; ++i) looks.insert(json{colors[i], styles[i]});
    EXPECT_EQ(looks.size(), 9) << id;
  }
}

TEST(RunLook, NineRunsAreToldApartInTheTable) {
  const std::string text = page_of(9);
  const std::string head = text.substr(0, text.find("</thead>"));
  std::set<std::string> looks;
  for (size_t i = 0; i < 9; ++i) {
    const size_t end = head.find(name_of(i) + "</th>");
    ASSERT_NE(end, std::string::npos);
    const size_t begin = head.rfind("<th>", end);
    looks.insert(head.substr(begin, end - begin));
  }
  EXPECT_EQ(looks.size(), 9);
}

TEST(RunLook, EightRunsAreAllSolid) {
  for (const auto& [id, spec] : test::specs_of(page_of(8))) {
    EXPECT_TRUE(range_of(spec, "strokeDash").empty()) << id;
    EXPECT_TRUE(range_of(spec, "opacity").empty()) << id;
  }
}

// The legends of all channels that tell runs apart.
std::vector<json> legends_of(const json& spec) {
  std::vector<json> legends;
  if (spec.is_object() && spec.value("field", "") == "run") return {spec.at("legend")};
  if (spec.is_structured()) {
    for (const json& child : spec) {
      for (json& legend : legends_of(child)) legends.push_back(std::move(legend));
    }
  }
  return legends;
}

// A model without gates has no line among theirs; its colour is taken all the same.
TEST(RunLook, LegendsListRunsThatAreDrawn) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  for (json& line : runs[0].metrics) line.erase("gates_open");
  const auto specs = test::specs_of(page(runs, {}, "vegaEmbed"));
  const std::vector<json> gates = legends_of(specs.at("gate_saturation"));
  ASSERT_EQ(gates.size(), 1);
  EXPECT_EQ(gates[0].value("values", json()), json{"transformer"});
  EXPECT_EQ(range_of(specs.at("gate_saturation"), "color").size(), 2);
  for (const json& legend : legends_of(specs.at("training_loss"))) {
    EXPECT_FALSE(legend.contains("values"));
  }
}

}  // namespace
}  // namespace reynard::report
