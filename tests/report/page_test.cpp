// The page from result files made by hand: its figures carry the numbers of its inputs, and nothing
// of what comes from outside is taken for HTML.

#include "reynard/report/page.h"

#include "reynard/checkpoint/sha256.h"
#include "reynard/report/figure.h"
#include "reynard/report/verdict.h"
#include "reynard/tensor/check.h"
#include "tests/support/damaged_json.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/report_runs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

namespace reynard::report {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

TEST(Report, PageHasTheNumbersOfItsInputs) {
  const test::TempDir folder;
  const auto specs =
      test::specs_of(page(test::two_report_runs(folder), {}, "window.vegaEmbed = 1"));
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
  const auto losses = test::rows_with(specs.at("training_loss"), "loss");
  ASSERT_EQ(losses.size(), 10);
  EXPECT_EQ(losses[0].at("tokens"), 1000);
  EXPECT_EQ(losses[0].at("loss"), 4.5);

  const auto points = test::rows_with(specs.at("forgetting_curve_1"), "accuracy");
  ASSERT_EQ(points.size(), 6);
  EXPECT_EQ(points[0].at("setting"), "copy");
  EXPECT_NEAR(points[0].at("accuracy").get<double>(), 0.9, 1e-9);
  const auto regions = test::rows_with(specs.at("forgetting_curve_1"), "from");
  ASSERT_EQ(regions.size(), 3);  // fine to 32, coarse to 64, amnesia to 96
  EXPECT_EQ(regions[0].at("to"), 32);
  EXPECT_EQ(regions[1].at("to"), 64);
  EXPECT_EQ(regions[2].at("to"), 96);

  const auto shares = test::rows_with(specs.at("pruned_share_1"), "share");
  ASSERT_EQ(shares.size(), 4);
  EXPECT_EQ(shares[3].at("share"), 1.0);
  EXPECT_EQ(test::rows_with(specs.at("forget_gates_1"), "f").size(), 4);
  const auto maps = test::rows_with(specs.at("decay_maps_1"), "v");
  ASSERT_EQ(maps.size(), 2);
  EXPECT_EQ(maps[0].at("v"), json({1, 0.5, 1}));
  // Only the first head is pruned: one block, two corners.
  EXPECT_EQ(test::rows_with(specs.at("attention_maps_1"), "b").size(), 2);
}

TEST(Report, NothingFromOutsideIsTakenForHtml) {
  const test::TempDir folder;
  test::write_report_run(folder / "a", test::kEvil, 1.0, 0.6);
  const std::string text = page(read_runs({folder / "a"}), {.command = test::kEvil}, "vegaEmbed");
  EXPECT_EQ(text.find("<img"), std::string::npos);
  EXPECT_NE(text.find("&lt;img src=x onerror=alert(1)&gt;&#39;&quot;&amp;"), std::string::npos);
  // Scripts: one per figure, and the bundle and the drawing at the end.
  size_t opened = 0;
  for (size_t at = text.find("<script"); at != std::string::npos;
       at = text.find("<script", at + 1)) {
    ++opened;
  }
  EXPECT_EQ(opened, test::specs_of(text).size() + 2);
}

TEST(Report, PageLoadsNothing) {
  const test::TempDir folder;
  const std::string text = page(test::two_report_runs(folder), {}, "vegaEmbed");
  for (const char* remote : {" src=\"http", " href=\"http", "url(", "@import"}) {
    EXPECT_EQ(text.find(remote), std::string::npos) << remote;
  }
  EXPECT_NE(text.find("default-src 'none'"), std::string::npos);
}

TEST(Report, BundleCannotCloseItsElement) {
  const test::TempDir folder;
  const std::string text =
      page(test::two_report_runs(folder), {}, "vegaEmbed; x = '</script><!--'");
  EXPECT_NE(text.find("x = '\\x3c/script>\\x3c!--'"), std::string::npos);
}

TEST(Report, VerdictSaysWhoIsBetterAndWhoHasNotLearnedToCopy) {
  const test::TempDir folder;
  std::string all;
  for (const std::string& sentence :
       verdict(test::two_report_runs(folder), {.tokens_to_copy = 30000})) {
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

TEST(Report, SaysOfWhichLayersPruningIsNotKnown) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  json& summary = runs[0].evaluations.at("pruning");
  summary["series"]["pruned_share"][1] = {nullptr, nullptr};
  const auto says = [&] {
    std::string all;
    for (const std::string& sentence : verdict(runs, {})) all += sentence + "\n";
    return all;
  };
  EXPECT_NE(
      says().find("Pruning skips 41.3 % of fox's attention tiles, those of layers that read a "
                  "memory not counted, at length 64"),
      std::string::npos)
      << says();
  EXPECT_EQ(test::rows_with(pruned_share(runs[0], 0)->spec, "share").size(), 2);
  summary["series"]["pruned_share"][0] = {nullptr, nullptr};
  summary["metrics"]["pruned_share"] = nullptr;
  EXPECT_EQ(says().find("of fox's attention tiles"), std::string::npos) << says();
  EXPECT_FALSE(pruned_share(runs[0], 0));
}

TEST(Report, AChangeWithinTheErrorOfItsSlopeIsNoVerdict) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  const auto says = [&](const nlohmann::json& half_width) {
    nlohmann::json& metrics = runs[0].evaluations.at("per_position_loss")["metrics"];
    metrics["slopes"] = nlohmann::json::array(
        {{{"from", 64}, {"to", 128}, {"slope", 0.5}, {"half_width", half_width}}});
    std::string all;
    for (const std::string& sentence : verdict(runs, {})) all += sentence + "\n";
    return all;
  };
  EXPECT_NE(says(0.4).find("to 1.500: it does not extrapolate"), std::string::npos);
  EXPECT_NE(says(0.6).find("to 1.500: a change that so few rows do not tell from chance"),
            std::string::npos);
  EXPECT_NE(says(nullptr).find("do not tell from chance"), std::string::npos) << "one row";
  // A step of 0.5 at the trained length and then no slope.
  nlohmann::json& series = runs[0].evaluations.at("per_position_loss")["series"];
  series["half_width"] = std::vector<double>(128, 0.6);
  EXPECT_NE(says(0.6).find("do not tell from chance"), std::string::npos);
  series["half_width"] = std::vector<double>(128, 0.4);
  EXPECT_NE(says(0.6).find("it does not extrapolate"), std::string::npos);
}

TEST(Report, RunsOnDifferentTextAreNotCompared) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  EXPECT_EQ(paired_loss(runs[0], runs[1]).rows, 4);
  EXPECT_NEAR(paired_loss(runs[0], runs[1]).difference, -0.5, 1e-12);
  EXPECT_NEAR(paired_loss(runs[0], runs[1]).standard_error, 0, 1e-12);
  runs[1].evaluations["per_position_loss"]["identity"]["text"] = "other";
  EXPECT_EQ(paired_loss(runs[0], runs[1]).rows, 0);
}

void write_result(const fs::path& folder, const std::string& task, const json& identity) {
  const json summary{{"task", task}, {"identity", identity}, {"metrics", json::object()}};
  fs::create_directories(folder);
  test::write_file(folder / (task + ".json"), summary.dump());
}

TEST(Report, ResultsOfOtherWeightsThanTheRunsAreNotUsed) {
  const test::TempDir folder;
  const fs::path run = folder / "fox";
  test::write_report_run(run, "fox", 1.0, 0.6);
  const std::string config = checkpoint::sha256_hex("config");
  const std::string weights = checkpoint::sha256_hex("weights");
  const json sums{{"config.json", {{"bytes", 1}, {"sha256", config}}},
                  {"model.safetensors", {{"bytes", 1}, {"sha256", weights}}},
                  {"tokenizer.json", {{"bytes", 1}, {"sha256", "9"}}}};
  fs::create_directory(run / "model");
  test::write_file(run / "model/checksums.json", json{{"files", sums}}.dump());
  write_result(run / "eval", "needle", {{"model", checkpoint::sha256_hex(config + weights)}});
  write_result(run / "eval", "passkey", {{"model", "those before"}});
  write_result(run / "eval", "ruler", {{"model", "fox"}, {"endpoint", "http://x"}});
  const RunResults results = read_run(run);
  EXPECT_NE(results.evaluation("needle"), nullptr);
  EXPECT_NE(results.evaluation("ruler"), nullptr);
  EXPECT_NE(results.evaluation("per_position_loss"), nullptr) << "does not say what it is of";
  EXPECT_EQ(results.evaluation("passkey"), nullptr);
  ASSERT_EQ(results.left_out.size(), 1);
  EXPECT_SAYS(results.left_out[0], "passkey.json holds results of other weights than ");
  EXPECT_SAYS(page({results}, {}, "vegaEmbed"), "Not used: passkey.json holds results of other");
}

TEST(Report, ResultsOfSeveralModelsInOneFolderAreRefused) {
  const test::TempDir folder;
  write_result(folder / "mixed", "passkey", {{"model", "a"}, {"dtype", "f32"}});
  write_result(folder / "mixed", "ruler", {{"model", "a"}, {"dtype", "bf16"}});
  EXPECT_TRUE(read_run(folder / "mixed").left_out.empty());
  write_result(folder / "mixed", "needle", {{"model", "b"}});
  EXPECT_SAYS(test::error_of([&] { read_run(folder / "mixed"); }),
              "mixed: needle.json and passkey.json are results of different weights; measure both");
}

TEST(Report, SummaryTableHasARowPerQuantity) {
  const test::TempDir folder;
  std::map<std::string, std::vector<std::string>> rows;
  for (const SummaryRow& row : summary_rows(test::two_report_runs(folder)))
    rows[row.quantity] = row.values;
  EXPECT_EQ(rows.at("Parameters")[0], "1.23 M");
  EXPECT_EQ(rows.at("Trained on")[0], "5 k, rows of 64");
  EXPECT_EQ(rows.at("Fine memory")[0], "32 tokens");
  EXPECT_EQ(rows.at("Coarse memory")[1], "64 tokens (within noise)");
  EXPECT_EQ(rows.at("Training speed")[0], "300");
  EXPECT_EQ(rows.at("Peak memory")[0], "5 MiB");
  EXPECT_EQ(rows.at("Loss with / without pruning")[0], "1.23456 / 1.23455");
}

TEST(Report, EqualLossesAreNoDifference) {
  const test::TempDir folder;
  Runs runs = test::two_report_runs(folder);
  runs[1].rows = runs[0].rows;
  std::string all;
  for (const std::string& sentence : verdict(runs, {})) all += sentence + "\n";
  EXPECT_SAYS(all, "fox and transformer cannot be told apart by their loss (difference 0.0000");
}

TEST(Report, ScoresAreRowsOfTheSummaryTable) {
  Runs runs(2);
  runs[0].evaluations["needle"] = {{"metrics", {{"score", 0.875}, {"standard_error", 0.023}}}};
  runs[0].evaluations["perplexity"] = {{"metrics", {{"windowed_perplexity", 12.345}}}};
  runs[1].evaluations["needle"] = {{"metrics", {{"score", 0.5}, {"standard_error", nullptr}}}};
  const std::vector<SummaryRow> rows = summary_rows(runs);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].quantity, "Perplexity");
  EXPECT_EQ(rows[0].values, (std::vector<std::string>{"12.35", ""}));
  EXPECT_EQ(rows[1].quantity, "Needle");
  EXPECT_EQ(rows[1].values, (std::vector<std::string>{"87.5 % ± 2.3", "50.0 %"}));
}

TEST(Report, SpeedOfAnEvenCountOfLinesLiesBetweenBothMiddles) {
  RunResults run;
  for (const double speed : {100, 400, 200, 300}) run.metrics.push_back({{"tokens_per_s", speed}});
  EXPECT_EQ(median_speed(run), 250);
}

TEST(Report, RunWithoutMeasurementsStillHasAPage) {
  const test::TempDir folder;
  fs::create_directories(folder / "x");
  test::write_file(folder / "x" / "metrics.jsonl", "{\"tokens\":1,\"loss\":2}\n{\"tok");
  const Runs runs = read_runs({folder / "x"});
  EXPECT_EQ(runs[0].name, "x");
  EXPECT_EQ(runs[0].metrics.size(), 1);
  EXPECT_EQ(test::specs_of(page(runs, {}, "vegaEmbed")).size(), 1);
  const std::vector<SummaryRow> rows = summary_rows(runs);
  ASSERT_EQ(rows.at(0).quantity, "Trained on");
  EXPECT_EQ(rows[0].values[0], "1") << "in rows of unknown length";
}

// What other programs leave beside results is JSON, but none of ours.
TEST(Report, FilesOfOtherProgramsAreNoResults) {
  const test::TempDir folder;
  fs::create_directories(folder / "x/eval/folder.json");
  test::write_file(folder / "x/metrics.jsonl", "{\"tokens\":5000,\"loss\":2}\n");
  const std::string deep = std::string(10'000, '[') + std::string(10'000, ']');
  for (const std::string& text :
       {std::string("[1, 2]"), std::string("7"), std::string("{}"), deep}) {
    test::write_file(folder / "x/list.json", text);
    test::write_file(folder / "x/eval/list.json", text);
    const Runs runs = read_runs({folder / "x"});
    EXPECT_TRUE(runs[0].evaluations.empty());
  }
  for (const char* text : {"{\"results\": {\"x\": NaN}}", "{}\n{}\n", "{} // a note", ""}) {
    test::write_file(folder / "x/eval/results.json", text);
    test::write_file(folder / "x/eval/needle.json", "{\"task\": \"needle\", \"metrics\": {}}");
    EXPECT_EQ(read_runs({folder / "x"})[0].evaluations.size(), 1) << text;
  }
  // Samples beside it say that it is ours.
  test::write_file(folder / "x/eval/needle.jsonl", "");
  test::write_file(folder / "x/eval/needle.json", "{\"task\": \"needle\", ");
  EXPECT_SAYS(test::error_of([&] { read_runs({folder / "x"}); }),
              "needle.json: is not JSON: line 1, column 20: ");
}

// Whatever stands where a number, a text or a list should: the page leaves it out, or an error
// names the file.
TEST(Report, PartsOfOtherTypesFailNoPage) {
  const test::TempDir folder;
  test::write_report_run(folder / "fox", "fox", 1.0, 0.6);
  std::vector<fs::path> files{folder / "fox/run.json"};
  for (const auto& entry : fs::directory_iterator(folder / "fox/eval")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  for (const fs::path& file : files) {
    const std::string text = test::read_file(file);
    json whole = json::parse(text);
    test::with_each_part_damaged(whole, [&](const std::string& place, const json& damage) {
      test::write_file(file, whole.dump());
      const auto where = [&] { return file.filename().string() + place + " = " + damage.dump(); };
      try {
        page(read_runs({folder / "fox"}), {}, "vegaEmbed");
      } catch (const Error& error) {
        EXPECT_SAYS(error.what(), file.filename().string()) << where();
      } catch (const std::exception& error) {
        ADD_FAILURE() << where() << ": " << error.what();
      }
    });
    test::write_file(file, text);
  }
}

// A value of another program's file is copied and printed by recursion.
TEST(Report, DeepJsonIsAnErrorNotAStackOverflow) {
  const test::TempDir folder;
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  fs::create_directories(folder / "x");
  test::write_file(folder / "x" / "run.json", "{\"machine\": " + deep + "}");
  EXPECT_THROW(read_runs({folder / "x"}), Error);
  test::write_file(folder / "x" / "run.json", "{}");
  test::write_file(folder / "x" / "metrics.jsonl", "{\"loss\": " + deep + "}\n{\"tokens\": 1}\n");
  EXPECT_THROW(read_runs({folder / "x"}), Error);
}

TEST(Report, NamesAreUnique) {
  const test::TempDir folder;
  test::write_report_run(folder / "a", "fox", 1.0, 0.6);
  test::write_report_run(folder / "b", "fox", 1.0, 0.6);
  const Runs runs = read_runs({folder / "a", folder / "b"});
  EXPECT_EQ(runs[0].name, "fox (a)");
  EXPECT_EQ(runs[1].name, "fox (b)");
  const Runs twice = read_runs({folder / "a", folder / "a/"});
  EXPECT_EQ(twice[0].name, "fox");
  EXPECT_EQ(twice[1].name, "fox (2)");
  // What all their paths begin and end with is left out.
  test::write_report_run(folder / "a/0/run", "deep", 1.0, 0.6);
  test::write_report_run(folder / "b/run", "deep", 1.0, 0.6);
  const Runs deep = read_runs({folder / "a/0/run", folder / "b/run"});
  EXPECT_EQ(deep[0].name, "deep (a/0)");
  EXPECT_EQ(deep[1].name, "deep (b)");
}

std::string error_of(const fs::path& folder) {
  return test::error_of([&] { read_run(folder); });
}

TEST(Report, BadInputNamesTheFile) {
  const test::TempDir folder;
  EXPECT_NE(error_of(folder / "missing").find("missing: is not a folder"), std::string::npos);
  EXPECT_NE(error_of(folder.path()).find("no run.json"), std::string::npos);
  test::write_file(folder / "run.json", "[1, 2]");
  EXPECT_NE(error_of(folder.path()).find("run.json: is not a JSON object; restore it, or"),
            std::string::npos);
  test::write_file(folder / "run.json", "{}");
  const std::string step = "{\"tokens\": 1}\n";
  for (const auto& [line, problem] : {std::pair("not json", "is not a JSON object"),
                                      {"[1]", "is not a JSON object"},
                                      {"{\"event\": 1}", "has no number \"tokens\""},
                                      {"{\"tokens\": \"x\"}", "has no number \"tokens\""}}) {
    test::write_file(folder / "metrics.jsonl", step + "\n" + line + "\n" + step);
    EXPECT_NE(error_of(folder.path()).find(std::string("metrics.jsonl:3: ") + problem),
              std::string::npos)
        << line;
  }
}

// Escape sequences, line ends and marks that turn the direction of text around.
TEST(Report, NamesArePrintable) {
  const test::TempDir folder;
  const std::string name = "\x1b[31mred\x1b]0;title\x07\n\u202E\u2066end";
  test::write_report_run(folder / "a", name, 1.0, 0.6);
  const Runs runs = read_runs({folder / "a"});
  const std::string shown = "\\x1b[31mred\\x1b]0;title\\x07\\x0a\\u202e\\u2066end";
  EXPECT_EQ(runs[0].name, shown);
  EXPECT_EQ(runs[0].model_name, shown);
  EXPECT_SAYS(page(runs, {}, "vegaEmbed"), "<h1>What " + shown + " remembers</h1>");
}

}  // namespace
}  // namespace reynard::report
