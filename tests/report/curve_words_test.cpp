// What a forgetting curve says in words: only what is more than chance is memory.

#include "reynard/report/figure.h"
#include "reynard/report/verdict.h"
#include "tests/support/report_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::report {
namespace {

json length_of(int64_t length, bool open = false) {
  return {
      {"length", length}, {"open", open}, {"text", fmt::format("{}{}", open ? ">" : "", length)}};
}

json curve(const std::vector<int64_t>& lengths, size_t repeats, const json& metrics) {
  json points = json::array();
  for (const int64_t length : lengths) {
    points.push_back({{"length", length},
                      {"lm_mean", 0.3},
                      {"lm_std", 0.01},
                      {"copy_mean", 0.312},
                      {"copy_std", 0.02},
                      {"lm_accs", std::vector<double>(repeats, 0.3)},
                      {"copy_accs", std::vector<double>(repeats, 0.312)},
                      {"adjusted_p_value", 0.5}});
  }
  return {{"task", "forgetting_curve"}, {"metrics", metrics}, {"series", {{"points", points}}}};
}

Runs run_with(const json& summary, int64_t train_length) {
  RunResults run;
  run.name = "fox";
  run.run["train_length"] = train_length;
  run.evaluations["forgetting_curve"] = summary;
  return {run};
}

std::string words_of(const Runs& runs) {
  std::string all;
  for (const std::string& sentence : verdict(runs, {})) all += sentence + "\n";
  return all;
}

std::string cell(const Runs& runs, const std::string& quantity) {
  for (const SummaryRow& row : summary_rows(runs)) {
    if (row.quantity == quantity) return row.values.at(0);
  }
  return "";
}

bool shades(const Figure& figure, const std::string& label) {
  return figure.spec.dump().find(label) != std::string::npos;
}

// It copies 64 tokens; at 512 a gap of 1.2 points is chance (p = 0.54).
TEST(CurveWords, ACoarseLengthWithinNoiseIsNoMemory) {
  const Runs runs = run_with(curve({64, 128, 256, 512},
                                   10,
                                   {{"fine_length", length_of(0)},
                                    {"coarse_length", length_of(512, true)},
                                    {"significant_length", length_of(64)},
                                    {"copies", true}}),
                             512);
  const std::string words = words_of(runs);
  EXPECT_NE(words.find("it has seen a text before over 64 tokens"), std::string::npos) << words;
  EXPECT_EQ(words.find("512"), std::string::npos) << words;
  EXPECT_EQ(cell(runs, "Coarse memory"), "64 tokens; >512 tokens (within noise)");
  EXPECT_EQ(cell(runs, "Claimed length"), "512 tokens (not confirmed)");
  const Figure figure = *forgetting_curve(runs[0], 0);
  EXPECT_NE(figure.caption.find("coarse memory 64 tokens; >512 tokens (within noise)"),
            std::string::npos)
      << figure.caption;
  const auto regions = test::rows_with(figure.spec, "from");
  ASSERT_EQ(regions.size(), 2) << figure.spec.dump();
  EXPECT_EQ(regions[0].at("to"), 64);
  EXPECT_EQ(regions[1].at("label"), "amnesia");
}

// One sequence of each length says nothing of chance, whatever it gains. Summaries of before say
// "copies": false of it.
TEST(CurveWords, TooFewRepeatsTellNothing) {
  for (const json& copies : {json(), json(false)}) {
    for (const size_t repeats : {1, 2}) {
      const Runs runs = run_with(curve({64, 128},
                                       repeats,
                                       {{"fine_length", length_of(128, true)},
                                        {"coarse_length", length_of(128, true)},
                                        {"significant_length", length_of(0)},
                                        {"copies", copies}}),
                                 200);
      const std::string words = words_of(runs);
      EXPECT_EQ(words.find("has not learned"), std::string::npos) << words;
      EXPECT_NE(words.find("too few repeats to tell"), std::string::npos) << words;
      EXPECT_EQ(cell(runs, "Coarse memory"), ">128 tokens (too few repeats to tell)");
      EXPECT_EQ(cell(runs, "Claimed length"), "200 tokens (too few repeats to tell)");
      const Figure figure = *forgetting_curve(runs[0], 0);
      EXPECT_TRUE(shades(figure, "too few repeats to tell"));
      EXPECT_FALSE(shades(figure, "has not learned"));
      EXPECT_NE(figure.caption.find("too few repeats to tell"), std::string::npos)
          << figure.caption;
    }
  }
}

TEST(CurveWords, AClaimBeyondTheTestedLengthsIsOpen) {
  const json open{{"fine_length", length_of(200, true)},
                  {"coarse_length", length_of(200, true)},
                  {"significant_length", length_of(200, true)},
                  {"copies", true}};
  EXPECT_EQ(cell(run_with(curve({100, 200}, 10, open), 600), "Claimed length"),
            "600 tokens (not tested far enough)");
  EXPECT_EQ(cell(run_with(curve({100, 200}, 10, open), 399), "Claimed length"),
            "399 tokens (confirmed)");
  json closed = open;
  closed["significant_length"] = length_of(100);
  EXPECT_EQ(cell(run_with(curve({100, 200}, 10, closed), 600), "Claimed length"),
            "600 tokens (not confirmed)");
}

// Even a perfect copier cannot be told from chance at one short length: a claim that lies beyond is
// open, one that does not is denied.
TEST(CurveWords, AClaimBeyondLengthsWithinNoiseIsOpen) {
  const json summary = curve({4},
                             3,
                             {{"fine_length", length_of(4, true)},
                              {"coarse_length", length_of(4, true)},
                              {"significant_length", length_of(0)},
                              {"copies", false}});
  EXPECT_EQ(cell(run_with(summary, 100), "Coarse memory"), ">4 tokens (within noise)");
  EXPECT_EQ(cell(run_with(summary, 100), "Claimed length"), "100 tokens (not tested far enough)");
  EXPECT_EQ(cell(run_with(summary, 7), "Claimed length"), "7 tokens (not confirmed)");
  json ended = summary;
  ended["metrics"]["coarse_length"] = length_of(0);
  EXPECT_EQ(cell(run_with(ended, 100), "Claimed length"), "100 tokens (not confirmed)");
}

// Of results without the tested length the published one counts, as before.
TEST(CurveWords, ResultsWithoutTheTestedLengthStayReadable) {
  const Runs runs = run_with(curve({64, 128},
                                   10,
                                   {{"fine_length", length_of(64)},
                                    {"coarse_length", length_of(128, true)},
                                    {"copies", true}}),
                             200);
  EXPECT_NE(words_of(runs).find("before over more than 128 tokens"), std::string::npos);
  EXPECT_EQ(cell(runs, "Coarse memory"), ">128 tokens");
  EXPECT_EQ(cell(runs, "Claimed length"), "200 tokens (confirmed)");
}

// It copies by more than chance, but nowhere that a point is told from chance too.
TEST(CurveWords, AGainBelowOnePointHasNoLength) {
  const Runs runs = run_with(curve({64, 128},
                                   10,
                                   {{"fine_length", length_of(0)},
                                    {"coarse_length", length_of(0)},
                                    {"significant_length", length_of(0)},
                                    {"copies", true}}),
                             200);
  EXPECT_NE(words_of(runs).find("at no tested length by both more than chance and more than one "
                                "point that it has seen"),
            std::string::npos)
      << words_of(runs);
  EXPECT_EQ(words_of(runs).find("before over 0 tokens"), std::string::npos) << words_of(runs);
}

}  // namespace
}  // namespace reynard::report
