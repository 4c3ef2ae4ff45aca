// The page of `reynard inspect` from numbers made by hand.

#include "reynard/report/inspect_page.h"

#include "reynard/report/figure_style.h"
#include "reynard/report/figures_heads.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::report {
namespace {

json example() {
  json heads = json::array();
  for (int h = 0; h < 4; ++h) {
    heads.push_back({{"layer", 1 + h / 2},
                     {"head", 1 + h % 2},
                     {"reach", 10 * (h + 1)},
                     {"mean_distance", 5},
                     {"gate_memory", 100},
                     {"mean_gate", 0.9},
                     {"gate_histogram", {0.25, 0.75}},
                     {"pruned_tiles", 0.3 * h},
                     {"pruned_flops", 0.3 * h}});
  }
  const json triangle{1, 0.5, 0.25};
  const json piece{{"begin", 0},
                   {"end", 256},
                   {"cells", 2},
                   {"attention", triangle},
                   {"decay", triangle},
                   {"log_decay", {0, -1, 0}}};
  const json layer{{"attention", {triangle, triangle}},
                   {"decay", {triangle, triangle}},
                   {"gates", {{0.5}, {1}}},
                   {"start", {{0, 64}, {0, 0}}}};
  json points = json::array();
  for (int i = 1; i <= 20; ++i) {
    points.push_back({{"log_tolerance", -i},
                      {"loss", 1},
                      {"loss_difference", i < 3 ? 0.01 : 0.0001},
                      {"pruned_flops", 1.0 / i}});
  }
  return {{"name", "</script>fox"},
          {"command", "reynard inspect runs/fox"},
          {"texts", {{{"name", "a.txt"}, {"tokens", 256}}}},
          {"settings", {{"log_tolerance", -10}, {"window", {192, 256}}}},
          {"heads", heads},
          {"overview",
           {{"length", 256}, {"cells", 2}, {"gate_text", {"a"}}, {"layers", {layer, layer}}}},
          {"maps",
           {{{"layer", 2}, {"head", 1}, {"start", {0, 64}}, {"whole", piece}, {"window", piece}}}},
          {"sweep", {{"loss_unpruned", 1}, {"points", points}}}};
}

const Figure* figure_named(const std::vector<FigureGroup>& groups, const std::string& id) {
  for (const FigureGroup& group : groups) {
    for (const Figure& figure : group.figures) {
      if (figure.id == id) return &figure;
    }
  }
  return nullptr;
}

TEST(InspectPage, HasEveryFigureWithTitleAndWhatToLookFor) {
  const auto groups = inspection_figures(example());
  for (const char* id : {"head_reach",
                         "gate_histograms",
                         "pruned_histogram",
                         "pruned_by_layer",
                         "sweep_loss",
                         "sweep_pruning",
                         "pruned_share_1",
                         "decay_maps_1",
                         "attention_maps_1",
                         "forget_gates_1",
                         "forget_matrix_whole",
                         "decay_bias_whole",
                         "attention_matrix_whole",
                         "attention_matrix_window"}) {
    const Figure* figure = figure_named(groups, id);
    ASSERT_TRUE(figure) << id;
    EXPECT_FALSE(figure->title.empty()) << id;
    EXPECT_GT(figure->caption.size(), 60) << id;
  }
  const json& maps = figure_named(groups, "forget_matrix_whole")->spec.at("data").at("values");
  EXPECT_EQ(maps[0].at("v"), json({1, 0.5, 0.25}));
  EXPECT_NE(figure_named(groups, "forget_matrix_whole")->caption.find("One cell is 128 tokens"),
            std::string::npos);
}

// Fields of the tooltip of a map of the window.
std::vector<std::string> tooltip_of(const json& inspection) {
  const auto groups = inspection_figures(inspection);
  const json& spec = figure_named(groups, "forget_matrix_window")->spec;
  std::vector<std::string> fields;
  for (const json& field : spec.at("spec").at("layer")[0].at("encoding").at("tooltip")) {
    fields.push_back(field.at("field"));
  }
  return fields;
}

TEST(InspectPage, CellsOfFewTokensNameThem) {
  json inspection = example();
  inspection["window_text"] = {"two", "words"};
  json& window = inspection["maps"][0]["window"];
  window["end"] = 32;  // 16 tokens a cell
  EXPECT_EQ(tooltip_of(inspection), (std::vector<std::string>{"query", "q", "key", "k", "v"}));
  const auto groups = inspection_figures(inspection);
  EXPECT_EQ(figure_named(groups, "forget_matrix_window")->spec.at("params")[0].at("value"),
            (json{"two", "words"}));
  EXPECT_FALSE(figure_named(groups, "forget_matrix_whole")->spec.contains("params"));
  window["end"] = 34;
  EXPECT_EQ(tooltip_of(inspection), (std::vector<std::string>{"q", "k", "v"}));
}

TEST(InspectPage, HistogramHas20BinsAndCountsEveryHead) {
  const json spec = pruned_histogram(example())->spec;
  const json& bins = spec.at("data").at("values");
  ASSERT_EQ(bins.size(), 20);
  int heads = 0;
  for (const json& bin : bins) heads += bin.at("heads").get<int>();
  EXPECT_EQ(heads, 4);
  EXPECT_EQ(bins[6].at("heads"), 1);   // 0.3
  EXPECT_EQ(bins[18].at("heads"), 1);  // 0.9
}

TEST(InspectPage, FindingsNameTheLoosestToleranceThatChangesNothing) {
  const auto findings = inspection_findings(example());
  ASSERT_EQ(findings.size(), 3);
  EXPECT_EQ(findings[0],
            "4 heads. Half of them have nine tenths of their attention within 30 tokens; the "
            "nearest within 10, the farthest within 40.");
  EXPECT_NE(findings[1].find("skips 45 %"), std::string::npos) << findings[1];
  EXPECT_NE(findings[2].find("From ε = e^-3 on"), std::string::npos) << findings[2];
  EXPECT_NE(findings[2].find("33 %"), std::string::npos) << findings[2];
}

// Of heads that read a memory, inspections know no pruning.
TEST(InspectPage, FindingsAndFiguresAreOverHeadsWhosePruningIsKnown) {
  json inspection = example();
  for (const int h : {2, 3}) inspection["heads"][h]["pruned_flops"] = nullptr;
  const auto findings = inspection_findings(inspection);
  EXPECT_EQ(findings[1],
            "Pruning at ε = e^-10 skips 15 % of attention's work on these texts; 0 of the heads "
            "are skipped by more than half. Not counted are 2 of 4 heads, which read a memory: "
            "what pruning skips there is not known.");
  const auto groups = inspection_figures(inspection);
  EXPECT_EQ(figure_named(groups, "pruned_by_layer")->spec.at("data").at("values").size(), 1);
  EXPECT_EQ(figure_named(groups, "pruned_share_1")->spec.at("data").at("values").size(), 2);

  for (json& head : inspection["heads"]) head["pruned_flops"] = nullptr;
  for (json& point : inspection["sweep"]["points"]) point["pruned_flops"] = nullptr;
  const auto unknown = inspection_findings(inspection);
  ASSERT_EQ(unknown.size(), 3);
  EXPECT_EQ(unknown[1], "What pruning skips is not known: all heads read a memory.");
  EXPECT_EQ(unknown[2], "From ε = e^-3 on the loss is that of the unpruned model to 0.001 nats.");
  const auto without = inspection_figures(inspection);
  for (const char* id :
       {"pruned_histogram", "pruned_by_layer", "pruned_share_1", "sweep_pruning"}) {
    EXPECT_FALSE(figure_named(without, id)) << id;
  }
  EXPECT_TRUE(figure_named(without, "sweep_loss"));
}

TEST(InspectPage, IsOneFileAndEscapesNames) {
  const std::string page = inspect_page(example(), {}, "window.vegaEmbed = 1");
  EXPECT_NE(page.find("Inside &lt;/script&gt;fox"), std::string::npos);
  EXPECT_EQ(page.find("</script>fox"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_NE(page.find("spec-sweep_loss"), std::string::npos);
}

TEST(InspectPage, AModelWithoutGatesHasNoFiguresOfGates) {
  json inspection = example();
  inspection.erase("sweep");
  for (json& head : inspection["heads"]) {
    for (const char* key : {"gate_memory", "gate_histogram", "pruned_flops"}) head.erase(key);
  }
  const auto groups = inspection_figures(inspection);
  EXPECT_FALSE(figure_named(groups, "pruned_histogram"));
  EXPECT_FALSE(figure_named(groups, "gate_histograms"));
  EXPECT_TRUE(figure_named(groups, "head_reach"));
  EXPECT_NE(inspection_findings(inspection)[1].find("no forget gates"), std::string::npos);
}

// Of nothing saved the axis still is one from 0.
TEST(InspectPage, WhatPruningSavesIsShownFromZero) {
  json inspection = example();
  for (json& point : inspection["sweep"]["points"]) point["pruned_flops"] = 0;
  const json spec = sweep_pruning(inspection).value().spec;
  EXPECT_EQ(spec.at("layer")[0].at("encoding").at("y").value("scale", json()),
            (json{{"domain", {0, 0.1}}}));
}

}  // namespace
}  // namespace reynard::report
