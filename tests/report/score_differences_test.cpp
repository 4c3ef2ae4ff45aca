// Differences of scores, most of which are alike, and how they are said and drawn.

#include "reynard/report/compare.h"
#include "reynard/report/differences.h"
#include "tests/support/files.h"
#include "tests/support/report_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

namespace reynard::report {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

// A run with one number of each sample of a task.
void write_samples(const fs::path& folder,
                   const std::string& task,
                   const char* key,
                   const std::vector<double>& values) {
  fs::create_directories(folder);
  const json summary{{"task", task}, {"settings", 1}, {"metrics", json::object()}};
  test::write_file(folder / (task + ".json"), summary.dump());
  std::string text = "{\"settings\":1}\n";
  for (size_t i = 0; i < values.size(); ++i) {
    text += json{{"id", fmt::format("{}", i)}, {key, values[i]}}.dump() + "\n";
  }
  test::write_file(folder / (task + ".jsonl"), text);
}

// Of two runs, the first with these scores and the second with 0 everywhere.
Difference difference_to_nothing(const std::vector<double>& scores) {
  const test::TempDir folder;
  write_samples(folder / "a", "passkey", "score", scores);
  write_samples(folder / "b", "passkey", "score", std::vector<double>(scores.size(), 0));
  return compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
}

std::vector<double> mostly(double usual, size_t count, double odd, size_t num_odd) {
  std::vector<double> values(count, usual);
  std::fill_n(values.begin(), num_odd, odd);
  return values;
}

// Of 250 answers with one wrong, 37 of 100 resamples have no spread.
TEST(ScoreDifferences, OfAnswersThatAreMostlyAlikeAreTestedByTheirSigns) {
  const std::vector<std::pair<size_t, size_t>> answers{{250, 1}, {250, 2}, {1000, 1}, {50, 5}};
  for (const auto& [count, wrong] : answers) {
    SCOPED_TRACE(fmt::format("{} wrong of {}", wrong, count));
    const Difference difference = difference_to_nothing(mostly(1, count, 0, wrong));
    EXPECT_TRUE(difference.differs);
    const double sign_test = std::exp2(1 - static_cast<double>(count - wrong));
    EXPECT_NEAR(difference.of.p_value, sign_test, 1e-9 * sign_test);
    EXPECT_LT(8 * difference.of.p_value, 0.05);  // Holm on a page of eight rows
    EXPECT_GT(difference.of.low, difference.first_mean - 15);
    EXPECT_LT(difference.of.low, difference.first_mean);
    EXPECT_GT(difference.of.high, difference.first_mean);
    EXPECT_LE(difference.of.high, 100);
    EXPECT_EQ(sentence_of(difference, "a", "b").find("inf"), std::string::npos);
  }
}

TEST(ScoreDifferences, OfPartsOfAnswersHaveNoIntervalWhereMostAreAlike) {
  const Difference difference = difference_to_nothing(mostly(0.5, 250, 0.25, 1));
  EXPECT_TRUE(difference.differs);
  EXPECT_TRUE(std::isnan(difference.of.low) && std::isnan(difference.of.high));
  EXPECT_EQ(sentence_of(difference, "a", "b"),
            "passkey: a is better than b by 49.9 points (no interval: many of the 250 differences "
            "are alike).");
}

// Many small losses and few large gains: the mean has the sign of the few.
TEST(ScoreDifferences, WhoseSignsContradictTheirMeanAreNone) {
  std::vector<double> first = mostly(0, 250, 1, 4);
  std::vector<double> second = mostly(0.01, 250, 0, 4);
  const test::TempDir folder;
  write_samples(folder / "a", "passkey", "score", first);
  write_samples(folder / "b", "passkey", "score", second);
  const Difference difference = compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
  EXPECT_GT(difference.of.mean, 0);
  EXPECT_FALSE(difference.differs);
}

TEST(ScoreDifferences, HaveIntervalsWithinTheScale) {
  const Difference difference =
      difference_to_nothing({1, 0.99, 0.98, 0.97, 1, 0.95, 0.1, 0.96, 0.94, 0.2});
  EXPECT_EQ(difference.of.high, 100);
  EXPECT_GE(difference.of.low, -100);
}

TEST(ScoreDifferences, ThreeRowsAreTooFewForAnInterval) {
  const test::TempDir folder;
  write_samples(folder / "a", "per_position_loss", "loss", {1.1, 1.2, 1.25});
  write_samples(folder / "b", "per_position_loss", "loss", {1, 1, 1});
  const Difference difference = compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
  EXPECT_FALSE(difference.differs);
  EXPECT_EQ(sentence_of(difference, "a", "b"),
            "per_position_loss: no difference between a and b (0.1833 nats, no interval: 3 "
            "differences are too few; margin 0.005).");
}

// A first run that scores 0 has no percentage to be drawn in.
TEST(ScoreDifferences, AreDrawnInPointsWhicheverRunIsFirst) {
  const test::TempDir folder;
  write_samples(folder / "a", "passkey", "score", mostly(1, 50, 0, 5));
  write_samples(folder / "b", "passkey", "score", std::vector<double>(50, 0));
  write_samples(folder / "a", "needle", "score", mostly(0.5, 50, 0.25, 1));
  write_samples(folder / "b", "needle", "score", std::vector<double>(50, 0));
  for (const bool turned : {false, true}) {
    const auto runs =
        turned ? read_runs({folder / "b", folder / "a"}) : read_runs({folder / "a", folder / "b"});
    const auto figure = difference_figure(compare(runs), runs);
    ASSERT_TRUE(figure);
    const auto rows = test::rows_with(figure->spec, "mean");
    ASSERT_EQ(rows.size(), 2);
    EXPECT_NEAR(rows[0].at("mean").get<double>(), turned ? -49.5 : 49.5, 1e-9);
    EXPECT_FALSE(rows[0].contains("low"));
    EXPECT_NEAR(rows[1].at("mean").get<double>(), turned ? -90 : 90, 1e-9);
    EXPECT_TRUE(rows[1].contains("low"));
    EXPECT_EQ(figure->spec.dump().find("(%)"), std::string::npos);
    EXPECT_NE(figure->spec.dump().find("difference (points)"), std::string::npos);
  }
}

TEST(ScoreDifferences, OfLossesAreDrawnInPercentOfTheFirst) {
  const test::TempDir folder;
  std::vector<double> first, second;
  for (int i = 0; i < 40; ++i) {
    first.push_back(2 + 0.01 * std::sin(i));
    second.push_back(2.5 + 0.01 * std::cos(i));
  }
  write_samples(folder / "a", "per_position_loss", "loss", first);
  write_samples(folder / "b", "per_position_loss", "loss", second);
  const auto runs = read_runs({folder / "a", folder / "b"});
  const auto figure = difference_figure(compare(runs), runs);
  ASSERT_TRUE(figure);
  EXPECT_NEAR(test::rows_with(figure->spec, "mean")[0].at("mean").get<double>(), -25, 0.2);
}

TEST(ScoreDifferences, AreToldAsWhatTheBetterRunGains) {
  Difference difference{.task = "passkey", .unit = "points", .differs = true};
  difference.of = {.mean = -10, .low = -15, .high = -5};
  EXPECT_EQ(sentence_of(difference, "a", "b"),
            "passkey: b is better than a by 10.0 points (95 %: 5.0 to 15.0).");
  difference.of = {.mean = 10, .low = 5, .high = 15};
  EXPECT_EQ(sentence_of(difference, "a", "b"),
            "passkey: a is better than b by 10.0 points (95 %: 5.0 to 15.0).");
}

// A loss of 0 cannot be: what has no percentage is named.
TEST(ScoreDifferences, LossesWithoutAPercentageAreNamedUnderTheFigure) {
  const test::TempDir folder;
  for (const char* run : {"a", "b"}) {
    write_samples(folder / run, "passkey", "score", mostly(1, 50, 0, 5));
    write_samples(folder / run, "per_position_loss", "loss", std::vector<double>(8, 0));
  }
  const auto runs = read_runs({folder / "a", folder / "b"});
  const auto figure = difference_figure(compare(runs), runs);
  ASSERT_TRUE(figure);
  EXPECT_NE(figure->caption.find("Not drawn: per_position_loss (a − b)."), std::string::npos)
      << figure->caption;
}

}  // namespace
}  // namespace reynard::report
