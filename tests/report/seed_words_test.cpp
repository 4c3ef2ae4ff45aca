// What pages say of runs whose losses differ by no more than another seed would move them, the
// margin.

#include "reynard/report/compare.h"
#include "reynard/report/differences.h"
#include "reynard/report/page.h"
#include "reynard/report/verdict.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <utility>

namespace reynard::report {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

// A run of a recipe with these losses of 32 rows, give or take 0.03.
void write_seed(const fs::path& folder, const char* recipe, int seed, double loss) {
  fs::create_directories(folder);
  const std::string name = fmt::format("{} {}", recipe, seed);
  json summary{{"task", "per_position_loss"},
               {"settings", 1},
               {"identity", {{"model", name}}},
               {"name", name},
               {"metrics", {{"loss", loss}, {"rows", 32}}}};
  test::write_file(folder / "per_position_loss.json", summary.dump());
  std::string rows = R"({"settings":1,"identity":{"model":")" + name + "\"}}\n";
  for (int i = 0; i < 32; ++i) {
    const double of_row = loss + 0.03 * std::sin(7 * i * loss);
    rows += json{{"id", fmt::format("row {}", i)}, {"loss", of_row}}.dump() + "\n";
  }
  test::write_file(folder / "per_position_loss.jsonl", rows);
  test::write_file(folder / "experiment.toml",
                   fmt::format("[run]\nseed = {}\n[model]\nname = \"{}\"\n", seed, recipe));
}

// Three seeds of one recipe up to 0.1 apart, and one run of another that lies among them.
Runs close_runs(const test::TempDir& folder) {
  const std::pair<const char*, double> runs[] = {{"a", 1}, {"a", 1.05}, {"a", 0.95}, {"b", 1.15}};
  std::vector<fs::path> folders;
  for (const auto& [recipe, loss] : runs) {
    folders.push_back(folder / fmt::format("{}{}", recipe, folders.size()));
    write_seed(folders.back(), recipe, static_cast<int>(folders.size()) - 1, loss);
  }
  return read_runs(folders);
}

TEST(SeedWords, AnIntervalThatLeavesOutZeroIsNotCalledNoDifference) {
  const test::TempDir folder;
  const Runs runs = close_runs(folder);
  const Comparison comparison = compare(runs);
  const Difference& difference = comparison.differences.at(3);  // of runs 0 and 3
  EXPECT_LT(difference.of.high, 0);
  EXPECT_FALSE(difference.differs);
  EXPECT_TRUE(difference.within_margin);
  const std::string sentence = sentence_of(difference, "a 0", "b 3");
  EXPECT_EQ(sentence.find("per_position_loss: a 0 and b 3 differ by no more than the margin (-0.1"),
            0)
      << sentence;
  const auto figure = difference_figure(comparison, runs);
  EXPECT_SAYS(figure->spec.dump(), "\"within margin\"");
  // Seeds of one recipe are no question, whatever their intervals.
  EXPECT_FALSE(comparison.differences.at(0).within_margin);
}

TEST(SeedWords, NoPageJudgesOnePairTwice) {
  const test::TempDir folder;
  const Runs runs = close_runs(folder);
  const Comparison comparison = compare(runs);
  const std::string compared = page(runs, {.comparison = &comparison}, "vegaEmbed");
  const std::string reported = page(runs, {}, "vegaEmbed");
  for (const std::string& text : {compared, reported}) {
    EXPECT_SAYS(text, "a 0 and b 3 differ by no more than the margin");
    EXPECT_EQ(text.find("is better than"), std::string::npos);
    EXPECT_EQ(text.find("told apart by their loss"), std::string::npos);
  }
}

// One run of each recipe, or two copies of one: what seeds move is not known.
TEST(SeedWords, WithoutSeedsTheReportSpeaksOfTheseModels) {
  const test::TempDir folder;
  Runs runs = close_runs(folder);
  runs.erase(runs.begin() + 1, runs.begin() + 3);
  EXPECT_SAYS(fmt::format("{}", fmt::join(verdict(runs, {}), "\n")), "a 0 is better than b 3 by");
  EXPECT_SAYS(fmt::format("{}", fmt::join(verdict(runs, {}), "\n")), "rows of these two models");
  const Runs copies{runs[0], runs[0], runs[1]};
  EXPECT_SAYS(fmt::format("{}", fmt::join(verdict(copies, {}), "\n")), "a 0 is better than b 3 by");
}

// Seeds whose losses are of other samples tell nothing of each other.
TEST(SeedWords, SeedsMeasuredOtherwiseDoNotMakeThemKnown) {
  const test::TempDir folder;
  Runs runs = close_runs(folder);
  runs[1].evaluations["per_position_loss"]["identity"]["text"] = "other";
  runs[2].evaluations["per_position_loss"]["settings"] = 2;
  EXPECT_FALSE(seeds_are_known(runs, "per_position_loss"));
  EXPECT_SAYS(fmt::format("{}", fmt::join(verdict(runs, {}), "\n")), "rows of these two models");
  // Nor are the same weights on other samples in the way of seeds that are known.
  Runs known = close_runs(folder);
  known.push_back(runs[0]);
  known.back().evaluations["per_position_loss"]["settings"] = 2;
  EXPECT_TRUE(seeds_are_known(known, "per_position_loss"));
}

// Results may lack how long their rows are.
TEST(SeedWords, WhatIsNotKnownOfALossIsNotCounted) {
  const test::TempDir folder;
  Runs runs = close_runs(folder);
  const auto sentence = [&] { return verdict({runs[0]}, {}).at(0); };
  EXPECT_EQ(sentence(), "a 0 predicts held-out text with a loss of 1.000 nats per token.");
  runs[0].evaluations["per_position_loss"]["settings"] = {{"length", 64}};
  EXPECT_EQ(sentence(),
            "a 0 predicts held-out text with a loss of 1.000 nats per token (32 rows of 64 "
            "tokens).");
}

// Of the rows of a page some lie beyond their own interval by chance.
TEST(SeedWords, WhereTheCorrectionDecidesItSaysSo) {
  Difference difference{.task = "needle", .unit = "points"};
  difference.of = {.mean = 3, .low = 0.5, .high = 5.5, .p_value = 0.02};
  difference.adjusted_p_value = 0.16;
  EXPECT_EQ(sentence_of(difference, "a", "b"),
            "needle: no difference between a and b (3.0 points, 95 %: 0.5 to 5.5; over all "
            "comparisons p = 0.16).");
}

}  // namespace
}  // namespace reynard::report
