// The page from result files made by hand: its figures carry the numbers of its inputs, and nothing
// of what comes from outside is taken for HTML.

#include "reynard/report/escape.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/page.h"
#include "reynard/report/verdict.h"
#include "reynard/tensor/check.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

namespace reynard::report {
namespace {

namespace fs = std::filesystem;

const char* const kEvil = "</script><img src=x onerror=alert(1)>'\"&";

void write_json(const fs::path& file, const json& value) {
  test::write_file(file, value.dump());
}

void write_training(const fs::path& folder, const std::string& name) {
  write_json(folder / "run.json",
             {{"name", name},
              {"command", {"reynard", "train", "configs/a b.toml"}},
              {"parameters", 1234567},
              {"train_length", 64},
              {"machine", {{"cpu", "Example CPU"}, {"cores", 2}}}});
  std::string metrics;
  for (int step = 1; step <= 5; ++step) {
    const json line{{"step", step},
                    {"tokens", 1000 * step},
                    {"loss", 5.0 - step * 0.5},
                    {"tokens_per_s", 100.0 * step},
                    {"peak_memory_bytes", 1048576 * step},
                    {"gates_open", 0.1 * step}};
    metrics += line.dump() + "\n";
  }
  test::write_file(folder / "metrics.jsonl", metrics);
}

void write_losses(const fs::path& folder, double loss) {
  json positions = json::array();
  json errors = json::array();
  std::string rows = "{\"task\":\"per_position_loss\"}\n";
  for (int i = 0; i < 128; ++i) {
    positions.push_back(loss + (i < 64 ? 0 : 0.5));
    errors.push_back(0.01);
  }
  for (int row = 0; row < 4; ++row) {
    const json line{{"id", fmt::format("row {}", row)}, {"loss", loss + 0.1 * row}};
    rows += line.dump() + "\n";
  }
  test::write_file(folder / "eval/per_position_loss.jsonl", rows);
  write_json(
      folder / "eval/per_position_loss.json",
      {{"task", "per_position_loss"},
       {"text", kEvil},
       {"command", "reynard eval runs/x --task per_position_loss"},
       {"settings", {{"length", 128}}},
       {"identity", {{"text", "same"}}},
       {"metrics", {{"loss", loss + 0.25}, {"bits_per_byte", 1.5}, {"rows", 4}}},
       {"series", {{"loss", positions}, {"standard_error", errors}, {"perplexity", positions}}}});
}

void write_forgetting_curve(const fs::path& folder, double gap) {
  json points = json::array();
  for (const int length : {32, 64, 96}) {
    const double copy = 0.3 + (length == 96 ? 0 : gap);
    points.push_back({{"length", length},
                      {"lm_mean", 0.3},
                      {"lm_std", 0.01},
                      {"copy_mean", copy},
                      {"copy_std", 0.02},
                      {"adjusted_p_value", gap > 0 ? 0.001 : 1},
                      {"noise", 0.015}});
  }
  write_json(folder / "eval/forgetting_curve.json",
             {{"task", "forgetting_curve"},
              {"settings", {{"length", 96}}},
              {"metrics",
               {{"fine_length", {{"length", 32}, {"text", "32"}}},
                {"coarse_length", {{"length", 64}, {"text", "64"}}},
                {"copies", gap > 0}}},
              {"series", {{"points", points}}}});
}

void write_pruning_and_inside(const fs::path& folder) {
  write_json(folder / "eval/pruning.json",
             {{"task", "pruning"},
              {"settings", {{"length", 64}}},
              {"metrics",
               {{"loss_pruned", 1.23456},
                {"loss_unpruned", 1.23455},
                {"loss_difference", 1e-5},
                {"pruned_share", 0.413}}},
              {"series", {{"pruned_share", {{0.25, 0.5}, {0.75, 1.0}}}}}});
  const json layer{{"attention", {{1, 0.5, 0.5}, {1, 0.9, 0.1}}},
                   {"decay", {{1, 0.5, 1}, {1, 0.1, 1}}},
                   {"gates", {{0.5, 0.25}, {0.75, 1}}},
                   {"start", {{64}, {0}}}};
  write_json(folder / "eval/inside.json",
             {{"task", "inside"},
              {"metrics", json::object()},
              {"series",
               {{"length", 128}, {"cells", 2}, {"gate_text", {"<", "b"}}, {"layers", {layer}}}}});
  write_json(folder / "eval/text_sample.json",
             {{"task", "text_sample"},
              {"metrics", json::object()},
              {"series",
               {{"samples", {{{"temperature", 0}, {"prompt", kEvil}, {"text", kEvil}}}},
                {"truth", kEvil}}}});
}

// A run folder with every kind of result. gap: what copy accuracy is above LM accuracy at the
// shortest length.
void write_run(const fs::path& folder, const std::string& name, double loss, double gap) {
  fs::create_directories(folder / "eval");
  write_training(folder, name);
  write_losses(folder, loss);
  write_forgetting_curve(folder, gap);
  write_pruning_and_inside(folder);
}

Runs two_runs(const test::TempDir& folder) {
  write_run(folder / "a", "fox", 1.0, 0.6);
  write_run(folder / "b", "transformer", 1.5, 0);
  return read_runs({folder / "a", folder / "b"});
}

// The specifications that a page embeds, by figure.
std::map<std::string, json> specs_of(const std::string& page) {
  const std::string opening = "<script type=\"application/json\" id=\"spec-";
  std::map<std::string, json> specs;
  for (size_t at = page.find(opening); at != std::string::npos; at = page.find(opening, at)) {
    at += opening.size();
    const size_t name_end = page.find("\">", at);
    const size_t begin = name_end + 2;
    specs[page.substr(at, name_end - at)] =
        json::parse(page.substr(begin, page.find('<', begin) - begin));
  }
  return specs;
}

// All rows of data anywhere in a specification that have a key.
std::vector<json> rows_with(const json& spec, const std::string& key) {
  std::vector<json> rows;
  if (spec.is_object() && spec.contains("values") && spec.at("values").is_array()) {
    for (const json& row : spec.at("values")) {
      if (row.is_object() && row.contains(key)) rows.push_back(row);
    }
  }
  if (spec.is_structured()) {
    for (const json& child : spec) {
      for (json& row : rows_with(child, key)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

TEST(Report, PageHasTheNumbersOfItsInputs) {
  const test::TempDir folder;
  const auto specs = specs_of(page(two_runs(folder), {}, "window.vegaEmbed = 1"));
  for (const char* id : {"loss_by_position",
                         "perplexity",
                         "forgetting_curve_1",
                         "forgetting_curve_2",
                         "pruned_share_1",
                         "forget_gates_1",
                         "decay_maps_1",
                         "attention_maps_1",
                         "training_loss",
                         "training_speed",
                         "gate_saturation"}) {
    EXPECT_TRUE(specs.contains(id)) << id;
  }
  const auto losses = rows_with(specs.at("training_loss"), "loss");
  ASSERT_EQ(losses.size(), 10);
  EXPECT_EQ(losses[0].at("tokens"), 1000);
  EXPECT_EQ(losses[0].at("loss"), 4.5);

  const auto points = rows_with(specs.at("forgetting_curve_1"), "accuracy");
  ASSERT_EQ(points.size(), 6);
  EXPECT_EQ(points[0].at("setting"), "copy");
  EXPECT_NEAR(points[0].at("accuracy").get<double>(), 0.9, 1e-9);
  const auto regions = rows_with(specs.at("forgetting_curve_1"), "from");
  ASSERT_EQ(regions.size(), 3);  // fine to 32, coarse to 64, amnesia to 96
  EXPECT_EQ(regions[0].at("to"), 32);
  EXPECT_EQ(regions[1].at("to"), 64);
  EXPECT_EQ(regions[2].at("to"), 96);

  const auto shares = rows_with(specs.at("pruned_share_1"), "share");
  ASSERT_EQ(shares.size(), 4);
  EXPECT_EQ(shares[3].at("share"), 1.0);
  EXPECT_EQ(rows_with(specs.at("forget_gates_1"), "f").size(), 4);
  const auto maps = rows_with(specs.at("decay_maps_1"), "v");
  ASSERT_EQ(maps.size(), 2);
  EXPECT_EQ(maps[0].at("v"), json({1, 0.5, 1}));
  // Only the first head is pruned: one block, two corners.
  EXPECT_EQ(rows_with(specs.at("attention_maps_1"), "b").size(), 2);
}

// What is marked in a figure, in its order.
std::vector<std::string> marks_of(const json& spec) {
  std::vector<std::string> labels;
  if (spec.is_object() && spec.contains(json::json_pointer("/encoding/text/value"))) {
    labels.push_back(spec.at("encoding").at("text").at("value"));
  }
  if (spec.is_structured()) {
    for (const json& child : spec) {
      for (std::string& label : marks_of(child)) labels.push_back(std::move(label));
    }
  }
  return labels;
}

TEST(Report, LossByPositionHasBandsSlopesAndSaysWhatItsRowsAre) {
  const test::TempDir folder;
  Runs runs = two_runs(folder);
  json& summary = runs[0].evaluations["per_position_loss"];
  summary["series"]["half_width"] = std::vector<double>(128, 0.05);
  summary["metrics"]["slopes"] = {{{"from", 8},
                                   {"to", 64},
                                   {"slope", -0.25},
                                   {"half_width", 0.0125},
                                   {"loss_from", 2.0},
                                   {"loss_to", 1.25}}};
  Figure figure = *loss_by_position(runs, {.smoothing_window = 1});
  const auto points = rows_with(figure.spec, "low");
  EXPECT_NEAR(points[0].at("loss").get<double>() - points[0].at("low").get<double>(), 0.05, 1e-9);
  const auto fitted = rows_with(figure.spec, "fitted");
  ASSERT_EQ(fitted.size(), 25);
  EXPECT_NEAR(fitted.back().at("fitted").get<double>(), 1.25, 1e-9);
  EXPECT_NE(figure.caption.find("fox: -0.250 ± 0.013 from 8 to 64."), std::string::npos)
      << figure.caption;
  EXPECT_NE(figure.caption.find("not rolled"), std::string::npos);
  EXPECT_NE(figure.caption.find("over 1 positions"), std::string::npos);
  EXPECT_EQ(marks_of(figure.spec), (std::vector<std::string>{"trained at 64", "2× longer"}));
  summary["settings"]["rolled"] = true;
  figure = *loss_by_position(runs, {});
  EXPECT_NE(figure.caption.find(", rolled (rotated"), std::string::npos) << figure.caption;
}

TEST(Report, MultiplesOfTheTrainingLengthAreMarkedInEveryFigureByLength) {
  const test::TempDir folder;
  Runs runs = two_runs(folder);
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
  EXPECT_EQ(marks_of(figures[1].spec), expected);
  json& curve = runs[0].evaluations["forgetting_curve"];
  curve["series"]["points"][2]["length"] = 256;
  EXPECT_EQ(marks_of(forgetting_curve(runs[0], 0)->spec),
            (std::vector<std::string>{"trained at 64", "half: 32", "2× longer", "4× longer"}));
  for (json& point : curve["series"]["points"]) point["lm_loss"] = point["copy_loss"] = 1.0;
  EXPECT_EQ(marks_of(curve_perplexity(runs[0], 0)->spec), expected);
  EXPECT_TRUE(training_length_marks(0, 1000).empty());
  EXPECT_TRUE(training_length_marks(1000, 999).empty());
}

TEST(Report, AttentionMassHasTheLineOfChance) {
  const test::TempDir folder;
  Runs runs = two_runs(folder);
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
  const auto chance = rows_with(figure->spec, "chance");
  ASSERT_EQ(chance.size(), 2);
  EXPECT_EQ(chance[1].at("chance"), 0.25);
  const auto lines = rows_with(figure->spec, "mass");
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[2].at("mass"), 0.375);
  EXPECT_EQ(lines[2].at("best"), 0.5);
  EXPECT_EQ(marks_of(figure->spec), std::vector<std::string>{"trained at 64"});  // at d = 3
  const auto heads = rows_with(attention_mass_heads(runs[0], 0)->spec, "times");
  ASSERT_EQ(heads.size(), 3);
  EXPECT_EQ(heads[2].at("times"), 3.0);
}

TEST(Report, CurvesOfSeveralTextsAndPrefixesHaveFiguresOfTheirOwn) {
  const test::TempDir folder;
  Runs runs = two_runs(folder);
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
  EXPECT_EQ(rows_with(curve_targets(runs[0], 0)->spec, "target").size(), 4);
  EXPECT_EQ(rows_with(curve_prefixes(runs[0], 0)->spec, "prefix").size(), 2);
  EXPECT_NE(curve_prefixes(runs[0], 0)->caption.find("at 1 of 1 lengths, Kruskal-Wallis at 0"),
            std::string::npos);
  const auto perplexity = rows_with(curve_perplexity(runs[0], 0)->spec, "perplexity");
  ASSERT_EQ(perplexity.size(), 2);
  EXPECT_NEAR(perplexity[1].at("perplexity").get<double>(), std::exp(1.0), 1e-4);
}

TEST(Report, EveryTaskOfScoresHasItsFigure) {
  const test::TempDir folder;
  Runs runs = two_runs(folder);
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
  const auto specs = specs_of(page(runs, {}, "vegaEmbed"));
  for (const char* id :
       {"needle_1", "ruler_1", "babilong_1", "passkey", "dictionary", "few_shot"}) {
    ASSERT_TRUE(specs.contains(id)) << id;
    EXPECT_EQ(rows_with(specs.at(id), "score").size(), 2) << id;
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
  Runs runs = two_runs(folder);
  const json point{{"checkpoint", "step-1"},
                   {"tokens", 1000},
                   {"task", "forgetting_curve"},
                   {"metrics", {{"fine_length", {{"length", 32}, {"text", "32"}}}, {"own", 0.25}}}};
  runs[0].evaluations["checkpoints"] = {{"metrics", json::object()},
                                        {"series", {{"points", {point, point}}}}};
  const auto specs = specs_of(page(runs, {}, "vegaEmbed"));
  const auto id = "checkpoints_forgetting_curve_fine_length_length";
  ASSERT_TRUE(specs.contains(id));
  const auto values = rows_with(specs.at(id), "value");
  ASSERT_EQ(values.size(), 2);
  EXPECT_EQ(values[0].at("tokens"), 1000);
  EXPECT_EQ(values[0].at("value"), 32);
  // Any other metric is there to be chosen.
  const json& chosen = specs.at("checkpoints_chosen");
  EXPECT_EQ(chosen.at("params")[0].at("bind").at("options"),
            (json{"forgetting_curve fine_length length", "forgetting_curve own"}));
  EXPECT_EQ(rows_with(chosen, "metric").size(), 4U);
}

TEST(Report, LossIsSmoothedOverTheStatedWindow) {
  const test::TempDir folder;
  const Runs runs = two_runs(folder);
  const auto raw = rows_with(loss_by_position(runs, {1})->spec, "position");
  const auto smooth = rows_with(loss_by_position(runs, {101})->spec, "position");
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

TEST(Report, NothingFromOutsideIsTakenForHtml) {
  const test::TempDir folder;
  write_run(folder / "a", kEvil, 1.0, 0.6);
  const std::string text = page(read_runs({folder / "a"}), {.command = kEvil}, "vegaEmbed");
  EXPECT_EQ(text.find("<img"), std::string::npos);
  EXPECT_NE(text.find("&lt;img src=x onerror=alert(1)&gt;&#39;&quot;&amp;"), std::string::npos);
  // Scripts: one per figure, and the bundle and the drawing at the end.
  size_t opened = 0;
  for (size_t at = text.find("<script"); at != std::string::npos;
       at = text.find("<script", at + 1)) {
    ++opened;
  }
  EXPECT_EQ(opened, specs_of(text).size() + 2);
}

TEST(Report, PageLoadsNothing) {
  const test::TempDir folder;
  const std::string text = page(two_runs(folder), {}, "vegaEmbed");
  for (const char* remote : {" src=\"http", " href=\"http", "url(", "@import"}) {
    EXPECT_EQ(text.find(remote), std::string::npos) << remote;
  }
  EXPECT_NE(text.find("default-src 'none'"), std::string::npos);
}

TEST(Report, BundleCannotCloseItsElement) {
  const test::TempDir folder;
  const std::string text = page(two_runs(folder), {}, "vegaEmbed; x = '</script><!--'");
  EXPECT_NE(text.find("x = '\\x3c/script>\\x3c!--'"), std::string::npos);
}

TEST(Report, VerdictSaysWhoIsBetterAndWhoHasNotLearnedToCopy) {
  const test::TempDir folder;
  std::string all;
  for (const std::string& sentence : verdict(two_runs(folder), {.tokens_to_copy = 30000})) {
    all += sentence + "\n";
  }
  EXPECT_NE(all.find("fox is better than transformer by 0.5000"), std::string::npos) << all;
  EXPECT_NE(all.find("fox remembers word for word over 32 tokens"), std::string::npos) << all;
  EXPECT_NE(all.find("transformer has not learned to copy yet"), std::string::npos) << all;
  EXPECT_NE(all.find("after 30,000 training tokens: on this machine, --minutes 2."),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("from 1.000 to 1.500: it does not extrapolate"), std::string::npos) << all;
  EXPECT_NE(all.find("Pruning skips 41.3 % of fox's attention tiles"), std::string::npos) << all;
}

TEST(Report, RunsOnDifferentTextAreNotCompared) {
  const test::TempDir folder;
  Runs runs = two_runs(folder);
  EXPECT_EQ(paired_loss(runs[0], runs[1]).rows, 4);
  EXPECT_NEAR(paired_loss(runs[0], runs[1]).difference, -0.5, 1e-12);
  EXPECT_NEAR(paired_loss(runs[0], runs[1]).standard_error, 0, 1e-12);
  runs[1].evaluations["per_position_loss"]["identity"]["text"] = "other";
  EXPECT_EQ(paired_loss(runs[0], runs[1]).rows, 0);
}

TEST(Report, SummaryTableHasARowPerQuantity) {
  const test::TempDir folder;
  std::map<std::string, std::vector<std::string>> rows;
  for (const SummaryRow& row : summary_rows(two_runs(folder))) rows[row.quantity] = row.values;
  EXPECT_EQ(rows.at("Parameters")[0], "1.23 M");
  EXPECT_EQ(rows.at("Trained on")[0], "5 k, rows of 64");
  EXPECT_EQ(rows.at("Fine memory")[0], "32 tokens");
  EXPECT_EQ(rows.at("Coarse memory")[1], "64 tokens (within noise)");
  EXPECT_EQ(rows.at("Training speed")[0], "300");
  EXPECT_EQ(rows.at("Peak memory")[0], "5 MiB");
  EXPECT_EQ(rows.at("Loss with / without pruning")[0], "1.23456 / 1.23455");
}

TEST(Report, RunWithoutMeasurementsStillHasAPage) {
  const test::TempDir folder;
  fs::create_directories(folder / "x");
  test::write_file(folder / "x" / "metrics.jsonl", "{\"tokens\":1,\"loss\":2}\n{\"tok");
  const Runs runs = read_runs({folder / "x"});
  EXPECT_EQ(runs[0].name, "x");
  EXPECT_EQ(runs[0].metrics.size(), 1);
  EXPECT_EQ(specs_of(page(runs, {}, "vegaEmbed")).size(), 1);
}

TEST(Report, NamesAreUnique) {
  const test::TempDir folder;
  write_run(folder / "a", "fox", 1.0, 0.6);
  write_run(folder / "b", "fox", 1.0, 0.6);
  const Runs runs = read_runs({folder / "a", folder / "b"});
  EXPECT_EQ(runs[0].name, "fox");
  EXPECT_EQ(runs[1].name, "fox (2)");
}

std::string error_of(const fs::path& folder) {
  try {
    read_run(folder);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Report, BadInputNamesTheFile) {
  const test::TempDir folder;
  EXPECT_NE(error_of(folder / "missing").find("missing is not a folder"), std::string::npos);
  EXPECT_NE(error_of(folder.path()).find("no run.json"), std::string::npos);
  test::write_file(folder / "run.json", "[1, 2]");
  EXPECT_NE(error_of(folder.path()).find("run.json is not a JSON object"), std::string::npos);
  test::write_file(folder / "run.json", "{}");
  test::write_file(folder / "metrics.jsonl", "{}\nnot json\n{}\n");
  EXPECT_NE(error_of(folder.path()).find("metrics.jsonl:2"), std::string::npos);
}

TEST(Escape, HtmlAndBrokenText) {
  EXPECT_EQ(html("a<b> & \"c\" 'd'\n\t"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\n\t");
  EXPECT_EQ(html("\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A"), "\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A");
  EXPECT_EQ(html("\xC3"), "\xEF\xBF\xBD");                          // cut short
  EXPECT_EQ(html("\xED\xA0\x80").find('\xED'), std::string::npos);  // surrogate
  EXPECT_EQ(html(std::string_view("\0\x1b", 2)), "\xE2\x90\x80\xE2\x90\x9b");
}

TEST(Escape, JsonInsideAScriptElement) {
  const json value{{"text", "</script><!-- \xFF"}};
  const std::string text = script_json(value);
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(json::parse(text).at("text"), "</script><!-- \xEF\xBF\xBD");
}

TEST(Escape, ShellWords) {
  EXPECT_EQ(shell_word("runs/fox-1.toml"), "runs/fox-1.toml");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(FigureStyle, Numbers) {
  EXPECT_EQ(grouped(16384), "16,384");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(12), "12");
  EXPECT_EQ(with_unit(2712448), "2.71 M");
  EXPECT_EQ(rounded(1.23456789, 3), 1.23);
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(thinned(3, 10), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(thinned(101, 3), (std::vector<size_t>{0, 50, 100}));
}

}  // namespace
}  // namespace reynard::report
