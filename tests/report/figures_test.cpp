// Figures from result files made by hand: what they draw, mark and say.

#include "reynard/report/figure.h"

#include "reynard/report/figure_style.h"
#include "reynard/report/page.h"
#include "reynard/report/verdict.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/report_runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace reynard::report {
namespace {

TEST(Report, LossByPositionHasBandsSlopesAndSaysWhatItsRowsAre) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  json& summary = runs[0].evaluations["per_position_loss"];
  summary["series"]["half_width"] = std::vector<double>(128, 0.05);
  summary["metrics"]["slopes"] = {{{"from", 8},
                                   {"to", 64},
                                   {"slope", -0.25},
                                   {"half_width", 0.0125},
                                   {"loss_from", 2.0},
                                   {"loss_to", 1.25}}};
  Figure figure = *loss_by_position(runs, {.smoothing_window = 1});
  const auto points = test::rows_with(figure.spec, "low");
  EXPECT_NEAR(points[0].at("loss").get<double>() - points[0].at("low").get<double>(), 0.05, 1e-9);
  const auto fitted = test::rows_with(figure.spec, "fitted");
  ASSERT_EQ(fitted.size(), 25);
  EXPECT_NEAR(fitted.back().at("fitted").get<double>(), 1.25, 1e-9);
  EXPECT_NE(figure.caption.find("fox: -0.250 ± 0.013 from 8 to 64."), std::string::npos)
      << figure.caption;
  EXPECT_NE(figure.caption.find("not rolled"), std::string::npos);
  EXPECT_NE(figure.caption.find("over 1 positions"), std::string::npos);
  EXPECT_EQ(test::marks_of(figure.spec), (std::vector<std::string>{"trained at 64", "2× longer"}));
  summary["settings"]["rolled"] = true;
  figure = *loss_by_position(runs, {});
  EXPECT_NE(figure.caption.find(", rolled (rotated"), std::string::npos) << figure.caption;
}

TEST(Report, MultiplesOfTheTrainingLengthAreMarkedInEveryFigureByLength) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  json groups = json::array();
  for (const int length : {64, 128, 256}) {
    groups.push_back({{"length", length}, {"depth", 50}, {"score", 0.5}, {"samples", 4}});
  }
  for (const char* task : {"passkey", "needle"}) {
    runs[0].evaluations[task] = {{"metrics", json::object()}, {"series", {{"groups", groups}}}};
  }
  const std::vector<std::string> expected{"trained at 64", "2× longer", "4× longer"};
  const std::vector<Figure> figures = score_figures(runs);
  ASSERT_EQ(figures.size(), 2);  // a map and lines
  EXPECT_NE(figures[0].spec.dump().find("datum.value > 64"), std::string::npos);
  EXPECT_EQ(test::marks_of(figures[1].spec), expected);
  json& curve = runs[0].evaluations["forgetting_curve"];
  curve["series"]["points"][2]["length"] = 256;
  EXPECT_EQ(test::marks_of(forgetting_curve(runs[0], 0)->spec),
            (std::vector<std::string>{"trained at 64", "2× longer", "4× longer", "half: 32"}));
  for (json& point : curve["series"]["points"]) point["lm_loss"] = point["copy_loss"] = 1.0;
  EXPECT_EQ(test::marks_of(curve_perplexity(runs[0], 0)->spec), expected);
  // A document counts with those before it.
  const json documents{{{"documents", 1}, {"context", 1}, {"perplexity", 4.0}},
                       {{"documents", 2}, {"context", 66}, {"perplexity", 5.0}},
                       {{"documents", 4}, {"context", 200}, {"perplexity", 6.0}}};
  runs[0].evaluations["perplexity"] = {{"settings", {{"length", 64}}},
                                       {"metrics", json::object()},
                                       {"series", {{"documents", documents}}}};
  EXPECT_EQ(test::marks_of(document_perplexity(runs)->spec), expected);
}

// Results of one model with several memories are one line; no memory is 0, all of it no number.
TEST(Report, PerplexityByMemoryIsALinePerModel) {
  Runs runs;
  const auto add = [&](const char* name, const char* model, int64_t tokens, double perplexity) {
    RunResults run;
    run.name = name;
    run.model_name = run.name.substr(0, run.name.find(' '));
    run.evaluations["perplexity"] = {
        {"identity", {{"model", model}, {"memory", {{"tokens", tokens}, {"keys", 0}}}}},
        {"metrics", {{"windowed_perplexity", perplexity}}}};
    runs.push_back(run);
  };
  add("fot (none)", "aa", -1, 40);
  EXPECT_FALSE(memory_perplexity(runs)) << "one size is no line";
  add("fot (1024)", "aa", 1024, 30);
  add("plain (none)", "bb", -1, 36);
  add("plain (1024)", "bb", 1024, 35);
  add("plain (all)", "bb", 0, 34);
  const auto points = test::rows_with(memory_perplexity(runs)->spec, "perplexity");
  ASSERT_EQ(points.size(), 4);
  const std::vector<std::tuple<std::string, double, double>> expected{
      {"fot", 0, 40}, {"fot", 1024, 30}, {"plain", 0, 36}, {"plain", 1024, 35}};
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [name, tokens, perplexity] = expected[i];
    EXPECT_EQ(points[i].at("run"), name);
    EXPECT_EQ(points[i].at("tokens"), tokens);
    EXPECT_EQ(points[i].at("perplexity"), perplexity);
  }
  const auto figures = score_figures(runs);
  ASSERT_EQ(figures.size(), 1);
  EXPECT_EQ(figures[0].id, "memory_perplexity");
}

// Labels have room, on a phone too.
TEST(Report, MarksThatWouldRunIntoEachOtherAreLeftOut) {
  const auto labels = [](int64_t trained, const LengthAxis& axis) {
    return test::marks_of(json(training_length_marks({trained}, axis)));
  };
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels(512, {.longest = 16777216, .shortest = 65536}),
            (Labels{"trained at 512", "32× longer", "1,024×", "32,768×"}));
  EXPECT_EQ(labels(1000, {.longest = 9000}),
            (Labels{"trained at 1,000", "4× longer", "8× longer"}));
  EXPECT_EQ(labels(1000, {.longest = 128000}),
            (Labels{"trained at 1,000", "16× longer", "64× longer", "128×"}));
  EXPECT_EQ(labels(1000, {.longest = 1999}), Labels{"trained at 1,000"});
  EXPECT_TRUE(labels(0, {.longest = 1000}).empty());
  EXPECT_TRUE(labels(1000, {.longest = 999}).empty());
}

// "4× longer" than which?
TEST(Report, MarksOfSeveralTrainingLengthsSayOfWhich) {
  const auto marks = training_length_marks({128, 512, 4096}, {.longest = 1024});
  EXPECT_EQ(test::marks_of(json(marks)),
            (std::vector<std::string>{
                "trained at 128", "4 × 128", "8 × 128", "trained at 512", "2 × 512"}));
}

TEST(Report, AttentionMassHasTheLineOfChance) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  EXPECT_FALSE(attention_mass(runs[0], 0));
  const json one{{"contexts", 1},
                 {"mass", {{1.0, 1.0}, {1.0, nullptr}}},
                 {"context_share", {{0.5, 0.5}, {0.5, 0.5}}}};
  json four = one;
  four["contexts"] = 4;
  four["mass"] = {{0.5, 0.25}, {0.75, nullptr}};
  runs[0].evaluations["attention_mass"] = {{"settings", {{"place", "last"}, {"length", 16}}},
                                           {"metrics", json::object()},
                                           {"series", {{"points", {one, four}}}}};
  const auto figure = attention_mass(runs[0], 0);
  ASSERT_TRUE(figure);
  const auto chance = test::rows_with(figure->spec, "chance");
  ASSERT_EQ(chance.size(), 2);
  EXPECT_EQ(chance[1].at("chance"), 0.25);
  const auto lines = test::rows_with(figure->spec, "mass");
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[2].at("mass"), 0.375);
  EXPECT_EQ(lines[2].at("best"), 0.5);
  EXPECT_EQ(test::marks_of(figure->spec),
            std::vector<std::string>{"64 tokens, as trained"});  // d = 3
  const auto heads = test::rows_with(attention_mass_heads(runs[0], 0)->spec, "times");
  ASSERT_EQ(heads.size(), 3);
  EXPECT_EQ(heads[2].at("times"), 3.0);
}

// Of a model with a memory its layers alone are drawn, and no length that it was trained at.
TEST(Report, AttentionMassOfAMemoryIsThatOfItsLayers) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  json point{{"contexts", 1},
             {"mass", {json::array(), {1.0, 1.0}, json::array()}},
             {"context_share", {json::array(), {0.5, 0.5}, json::array()}}};
  json four = point;
  four["contexts"] = 4;
  runs[0].evaluations["attention_mass"] = {
      {"settings", {{"place", "last"}, {"length", 16}, {"memory_layers", {1}}}},
      {"metrics", json::object()},
      {"series", {{"points", {point, four}}}}};
  const auto figure = attention_mass(runs[0], 0);
  ASSERT_TRUE(figure);
  EXPECT_TRUE(test::marks_of(figure->spec).empty());
  for (const json& row : test::rows_with(figure->spec, "mass")) EXPECT_EQ(row.at("layer"), 2);
  const auto heads = attention_mass_heads(runs[0], 0);
  ASSERT_TRUE(heads);
  EXPECT_EQ(test::rows_with(heads->spec, "times").size(), 2);
  EXPECT_EQ(heads->spec.at("height"), 44);  // one row
}

TEST(Report, CurvesOfSeveralTextsAndPrefixesHaveFiguresOfTheirOwn) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  EXPECT_FALSE(curve_targets(runs[0], 0));
  EXPECT_FALSE(curve_perplexity(runs[0], 0));
  json& series = runs[0].evaluations["forgetting_curve"]["series"];
  const json points{
      {{"length", 8}, {"copy_mean", 0.9}, {"lm_mean", 0.5}, {"lm_loss", 1.0}, {"copy_loss", 0.5}}};
  series["points"] = points;
  series["curves"] = json::array();
  for (const char* target : {"text", "train"}) {
    for (const char* prefix : {"same", "zh"}) {
      series["curves"].push_back({{"target", target}, {"prefix", prefix}, {"points", points}});
    }
  }
  series["prefix_tests"] = {{{"target", "text"},
                             {"length", 8},
                             {"anova", {{"p_value", 0.01}}},
                             {"kruskal_wallis", {{"p_value", nullptr}}}}};
  EXPECT_EQ(test::rows_with(curve_targets(runs[0], 0)->spec, "target").size(), 4);
  EXPECT_EQ(test::rows_with(curve_prefixes(runs[0], 0)->spec, "prefix").size(), 2);
  EXPECT_NE(curve_prefixes(runs[0], 0)->caption.find("at 1 of 1 lengths, Kruskal-Wallis at 0"),
            std::string::npos);
  const auto perplexity = test::rows_with(curve_perplexity(runs[0], 0)->spec, "perplexity");
  ASSERT_EQ(perplexity.size(), 2);
  EXPECT_NEAR(perplexity[1].at("perplexity").get<double>(), std::exp(1.0), 1e-4);
}

TEST(Report, EveryTaskOfScoresHasItsFigure) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  EXPECT_TRUE(score_figures(runs).empty());
  const json group{{"length", 128}, {"depth", 50}, {"task", "qa1"}, {"score", 0.5}, {"samples", 4}};
  json longer = group;
  longer["length"] = 256;
  for (const char* task : {"needle",
                           "ruler",
                           "babilong",
                           "passkey",
                           "dictionary",
                           "few_shot",
                           "longbench",
                           "lm_eval"}) {
    runs[0].evaluations[task] = {
        {"metrics", {{"effective_length", {{"text", ">256"}}}, {"comparable", false}}},
        {"series", {{"groups", {group, longer}}}}};
  }
  runs[0].evaluations["perplexity"] = {
      {"metrics", json::object()},
      {"series", {{"documents", {{{"documents", 1}, {"context", 1}, {"perplexity", 4.0}}}}}}};
  const auto specs = test::specs_of(page(runs, {}, "vegaEmbed"));
  for (const char* id :
       {"needle_1", "ruler_1", "babilong_1", "passkey", "dictionary", "few_shot"}) {
    ASSERT_TRUE(specs.contains(id)) << id;
    EXPECT_EQ(test::rows_with(specs.at(id), "score").size(), 2) << id;
  }
  EXPECT_TRUE(specs.contains("document_perplexity"));
  // Words and names of metrics are no numbers to be formatted.
  const json::json_pointer label("/encoding/x/axis/labelExpr");
  EXPECT_TRUE(specs.at("needle_1").contains(label));
  for (const char* id : {"longbench_1", "lm_eval_1"}) {
    ASSERT_TRUE(specs.contains(id)) << id;
    EXPECT_FALSE(specs.at(id).contains(label)) << id;
  }
  EXPECT_NE(score_figures(runs)[0].caption.find("columns from 128 on extrapolate"),
            std::string::npos);
  std::map<std::string, std::vector<std::string>> rows;
  for (const SummaryRow& row : summary_rows(runs)) rows[row.quantity] = row.values;
  EXPECT_EQ(rows.at("RULER effective length")[0], ">256 tokens (own data)");
}

TEST(Report, CheckpointsAreDrawnByTokensSeen) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  const json point{{"checkpoint", "step-1"},
                   {"tokens", 1000},
                   {"task", "forgetting_curve"},
                   {"metrics",
                    {{"bos", 256},
                     {"adjusted", 0.25},
                     {"fine_length", {{"length", 32}, {"text", "32"}}},
                     {"coarse_length", {{"length", 512}, {"text", ">512"}}},
                     {"significant_length", {{"length", 64}, {"text", "64"}}}}}};
  runs[0].evaluations["checkpoints"] = {{"metrics", json::object()},
                                        {"series", {{"points", {point, point}}}}};
  const auto specs = test::specs_of(page(runs, {}, "vegaEmbed"));
  const auto id = "checkpoints_forgetting_curve_fine_length_length";
  ASSERT_TRUE(specs.contains(id));
  const auto values = test::rows_with(specs.at(id), "value");
  ASSERT_EQ(values.size(), 2);
  EXPECT_EQ(values[0].at("tokens"), 1000);
  EXPECT_EQ(values[0].at("value"), 32);
  // Of coarse memory what is more than chance.
  const auto coarse =
      test::rows_with(specs.at("checkpoints_forgetting_curve_significant_length_length"), "value");
  ASSERT_FALSE(coarse.empty());
  EXPECT_EQ(coarse[0].at("value"), 64);
  EXPECT_FALSE(specs.contains("checkpoints_forgetting_curve_coarse_length_length"));
  // Any other metric is there to be chosen.
  const json& chosen = specs.at("checkpoints_chosen");
  EXPECT_EQ(chosen.at("params")[0].at("bind").at("options"),
            (json{"forgetting_curve adjusted",
                  "forgetting_curve coarse_length length",
                  "forgetting_curve fine_length length",
                  "forgetting_curve significant_length length"}));
  EXPECT_EQ(chosen.at("params")[0].at("value"), "forgetting_curve fine_length length");
  EXPECT_EQ(test::rows_with(chosen, "metric").size(), 8U);
}

TEST(Report, ShortRunsStayBesideLongOnes) {
  Runs runs(2);
  runs[0].name = "short", runs[1].name = "long";
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<double> ones(i == 0 ? 128 : 4096, 1.0);
    runs[i].evaluations["per_position_loss"] = {{"metrics", {{"rows", 2}}},
                                                {"series", {{"loss", ones}, {"perplexity", ones}}}};
  }
  for (const Figure& figure : {*loss_by_position(runs, {1}), *perplexity_by_length(runs)}) {
    std::map<std::string, int> points;
    for (const json& point : test::rows_with(figure.spec, "run")) ++points[point.at("run")];
    EXPECT_EQ(points["short"], 128 - 8) << figure.id;
    EXPECT_GT(points["long"], 128) << figure.id;
  }
  EXPECT_SAYS(loss_by_position(runs, {1})->caption, "from position 9; ");
}

TEST(Report, RowsThatDifferBetweenRunsAreDescribedForEach) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  EXPECT_SAYS(loss_by_position(runs, {1})->caption,
              "; bands are 95 % intervals over rows. 4 held-out rows, each a piece");
  json& other = runs[1].evaluations["per_position_loss"];
  other["metrics"]["rows"] = 1;
  other["settings"]["across_documents"] = true;
  other["series"].erase("standard_error");
  const std::string caption = loss_by_position(runs, {1})->caption;
  EXPECT_SAYS(caption,
              "bands are 95 % intervals over rows (transformer has none). fox: 4 held-out");
  EXPECT_SAYS(caption, ", not rolled; transformer: 1 held-out row, cut from the whole text across");
  EXPECT_SAYS(perplexity_by_length(runs)->caption, "without intervals over rows");
}

TEST(Report, SlopesOfOneRowHaveNoInterval) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  json slope{{"from", 8},
             {"to", 64},
             {"slope", -0.25},
             {"half_width", nullptr},
             {"loss_from", 2.0},
             {"loss_to", 1.25}};
  runs[0].evaluations["per_position_loss"]["metrics"]["slopes"] = {slope};
  EXPECT_SAYS(loss_by_position(runs, {1})->caption,
              "slopes in nats per doubling of the context. fox: -0.250 from 8 to 64.");
  slope["half_width"] = 0.0125;
  runs[1].evaluations["per_position_loss"]["metrics"]["slopes"] = {slope};
  EXPECT_SAYS(
      loss_by_position(runs, {1})->caption,
      "of the context, with 95 % intervals. fox: -0.250 from 8 to 64. transformer: -0.250 ± "
      "0.013 from 8 to 64.");
}

// Bands are of the mean over the positions that were measured so.
TEST(Report, OtherSmoothingHasNoBands) {
  Runs runs(1);
  runs[0].evaluations["per_position_loss"] = {{"metrics", {{"rows", 2}}},
                                              {"series",
                                               {{"loss", std::vector<double>(512, 1.0)},
                                                {"half_width", std::vector<double>(512, 0.1)},
                                                {"standard_error_window", 101}}}};
  EXPECT_FALSE(test::rows_with(loss_by_position(runs, {101})->spec, "low").empty());
  EXPECT_SAYS(loss_by_position(runs, {101})->caption, "; bands are 95 % intervals over rows.");
  EXPECT_TRUE(test::rows_with(loss_by_position(runs, {1})->spec, "low").empty());
  EXPECT_SAYS(loss_by_position(runs, {1})->caption, "; without intervals over rows.");
}

TEST(Report, LossIsSmoothedOverTheStatedWindow) {
  const test::TempDir folder;
  const Runs runs = test::two_report_runs(folder);
  const auto raw = test::rows_with(loss_by_position(runs, {1})->spec, "position");
  const auto smooth = test::rows_with(loss_by_position(runs, {101})->spec, "position");
  const auto at = [](const std::vector<json>& rows, int position) {
    for (const json& row : rows) {
      if (row.at("position") == position) return row.at("loss").get<double>();
    }
    return std::nan("");
  };
  EXPECT_DOUBLE_EQ(at(raw, 65), 1.5);
  // Positions 15 to 115 around 65 (1-based): 50 of them lie in the first half.
  EXPECT_NEAR(at(smooth, 65), 1.0 + 0.5 * 51 / 101, 1e-4);
  EXPECT_NE(loss_by_position(runs, {101})->caption.find("101 positions"), std::string::npos);
}

TEST(Report, SmoothingShrinksAtTheEndsAndSkipsWhatIsMissing) {
  const std::vector<double> x{1, std::nan(""), 3, 5};
  const std::vector<double> s = smoothed(x, 3);
  EXPECT_DOUBLE_EQ(s[0], 1);
  EXPECT_DOUBLE_EQ(s[1], 2);
  EXPECT_DOUBLE_EQ(s[2], 4);
  EXPECT_DOUBLE_EQ(s[3], 4);
  EXPECT_EQ(smoothed({2, 4}, 1), (std::vector<double>{2, 4}));
}

// A mean over an even number of positions has no centre.
TEST(Report, SmoothingIsOverAnOddNumberOfPositions) {
  for (const int64_t window : {-1, 0, 2, 100}) {
    EXPECT_SAYS(test::error_of([&] {
                  smoothed({1, 2, 3}, window);
                }),
                "smoothed: window = " + std::to_string(window) + "; expected an odd number");
  }
}

}  // namespace
}  // namespace reynard::report
