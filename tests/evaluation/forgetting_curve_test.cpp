#include "reynard/evaluation/forgetting_curve.h"

#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/golden_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace reynard::evaluation {
namespace {

std::vector<CurvePoint> golden_points() {
  std::vector<CurvePoint> points;
  for (const GoldenRow& row : kGolden) {
    CurvePoint point;
    point.length = row.length;
    point.lm_mean = row.lm_mean;
    point.copy_mean = row.copy_mean;
    point.p_value = row.p_value;
    points.push_back(point);
  }
  compare_over_lengths(points);
  return points;
}

TEST(ForgettingCurve, StatisticsEqualThePublishedResult) {
  for (const GoldenRow& row : kGolden) {
    const auto counts = kGoldenCounts.find(row.length);
    if (counts == kGoldenCounts.end()) continue;
    SCOPED_TRACE(row.length);
    const CurvePoint point = curve_point(row.length,
                                         golden_accuracies(counts->second.lm, row.length),
                                         golden_accuracies(counts->second.copy, row.length));
    expect_golden(point, row);
  }
}

struct GoldenNormality {
  int64_t length;
  double lm_w, lm_p, copy_w, copy_p, levene_f, levene_p;
};

TEST(ForgettingCurve, ShapiroAndLeveneEqualScipy) {
  const std::vector<GoldenNormality> golden = {
      {8, .755968, .004219, .509275, .000005, 8.756757, .008398},
      {523, .976874, .946272, .531648, .000009, 15.691833, .000915},
      {4650, .942013, .575619, .883880, .144543, 11.080976, .003736},
      {9293, .932084, .468703, .945284, .613151, 2.762355, .113822},
  };
  for (const GoldenNormality& row : golden) {
    SCOPED_TRACE(row.length);
    const auto lm = golden_accuracies(kGoldenCounts.at(row.length).lm, row.length);
    const auto copy = golden_accuracies(kGoldenCounts.at(row.length).copy, row.length);
    EXPECT_NEAR(statistics::shapiro_wilk(lm).statistic, row.lm_w, 6e-7);
    EXPECT_NEAR(statistics::shapiro_wilk(lm).p_value, row.lm_p, 6e-7);
    EXPECT_NEAR(statistics::shapiro_wilk(copy).statistic, row.copy_w, 6e-7);
    EXPECT_NEAR(statistics::shapiro_wilk(copy).p_value, row.copy_p, 6e-7);
    EXPECT_NEAR(statistics::levene(lm, copy).statistic, row.levene_f, 6e-7);
    EXPECT_NEAR(statistics::levene(lm, copy).p_value, row.levene_p, 6e-7);
  }
}

TEST(ForgettingCurve, MemoryLengthsEqualThePublishedTable) {
  const MemoryLengths lengths = memory_lengths(golden_points());
  EXPECT_EQ(to_string(lengths.fine), "4134");
  EXPECT_EQ(to_string(lengths.coarse), ">9293");
  // Holm leaves 9293 (p = 0.016, the largest) significant: every smaller p-value is.
  EXPECT_EQ(to_string(lengths.significant), ">9293");
}

TEST(ForgettingCurve, LongestQualifyingLengthCountsEvenAfterOneThatFails) {
  std::vector<CurvePoint> points(4);
  for (int i = 0; i < 4; ++i) points[i].length = 100 * (i + 1);
  points[0].copy_mean = 0.5;  // short targets give too few examples of copying
  points[1].copy_mean = 0.995;
  points[2].copy_mean = 0.005;
  points[3].copy_mean = 0.0;
  EXPECT_EQ(to_string(memory_lengths(points).fine), "200");
  EXPECT_EQ(to_string(memory_lengths(points).coarse), "200");
  points[2].copy_mean = 0.02;
  EXPECT_EQ(to_string(memory_lengths(points).coarse), "300");
  points[1].copy_mean = 0.99;  // not above it
  EXPECT_EQ(to_string(memory_lengths(points).fine), "0");
}

TEST(ForgettingCurve, LosingByATextSeenBeforeIsNotCopying) {
  std::vector<CurvePoint> points{curve_point(100, {0.5, 0.52, 0.51}, {0.1, 0.12, 0.13})};
  compare_over_lengths(points);
  EXPECT_LT(points[0].adjusted_p_value, 0.01);
  EXPECT_FALSE(points[0].differs);
}

TEST(ForgettingCurve, NothingQualifiesIsZero) {
  EXPECT_EQ(to_string(memory_lengths(std::vector<CurvePoint>(3)).fine), "0");
  EXPECT_EQ(to_string(memory_lengths({}).coarse), "0");
}

// Ten repeats in which copy and LM accuracy are the same up to noise must not count as copying,
// however often one looks.
TEST(ForgettingCurve, NoiseIsNotCopying) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 32; ++i) {
    std::vector<double> lm;
    std::vector<double> copy;
    for (int r = 0; r < 10; ++r) {
      lm.push_back(0.3 + 0.02 * std::sin(12.9898 * (10 * i + r)));
      copy.push_back(0.3 + 0.02 * std::sin(78.233 * (10 * i + r) + 1));
    }
    points.push_back(curve_point(100 * (i + 1), lm, copy));
  }
  compare_over_lengths(points);
  for (const CurvePoint& point : points) EXPECT_FALSE(point.differs) << point.length;
  EXPECT_EQ(memory_lengths(points).significant.length, 0);
}

// Two repeats that both gain one token are no proof of copying; ten are, and so are three that gain
// all.
TEST(ForgettingCurve, EqualGainsAreNotCertain) {
  const auto of = [](int64_t length, size_t repeats, float base, float gain) {
    std::vector<CurvePoint> points{curve_point(
        length, std::vector<double>(repeats, base), std::vector<double>(repeats, base + gain))};
    points[0].lm_accs[0] += 0.1F;
    points[0].copy_accs[0] += 0.1F;  // equal but for rounding
    compare_over_lengths(points);
    return points[0];
  };
  // t = 1 with one degree of freedom.
  EXPECT_NEAR(of(16, 2, 0.1F, 0.125F).adjusted_p_value, 0.5, 1e-5);
  EXPECT_NEAR(of(10, 2, 0.2F, 0.2F).adjusted_p_value, 0.5, 1e-5);
  EXPECT_NEAR(of(16, 2, 0.5F, -0.125F).adjusted_p_value, 0.5, 1e-5);
  EXPECT_FALSE(of(16, 3, 0.1F, 0.125F).differs);
  EXPECT_TRUE(of(16, 10, 0.1F, 0.125F).differs);
  EXPECT_TRUE(of(16, 3, 0, 0.9F).differs);
  EXPECT_EQ(of(16, 10, 0.1F, 0).adjusted_p_value, 1);
}

// One sequence of each length says nothing of chance, however much it gains; two rarely do.
TEST(ForgettingCurve, TooFewRepeatsTellNothing) {
  std::vector<CurvePoint> points{curve_point(64, {0.3}, {1.0}),
                                 curve_point(128, {0.3, 0.4}, {1.0, 0.99}),
                                 curve_point(256, {0.3}, {0.3})};
  compare_over_lengths(points);
  EXPECT_TRUE(std::isnan(points[0].p_value));
  EXPECT_TRUE(std::isnan(points[0].adjusted_p_value));
  EXPECT_TRUE(std::isnan(points[0].noise));
  EXPECT_TRUE(nlohmann::json::parse(to_json(points[0]).dump()).at("noise").is_null());
  // The others are corrected among themselves.
  EXPECT_GT(points[1].p_value, 0.05);
  EXPECT_EQ(points[1].adjusted_p_value, points[1].p_value);
  EXPECT_TRUE(curve_metrics(points).at("copies").is_null());

  points = {curve_point(64, {0.3, 0.31, 0.29}, {1.0, 1.0, 1.0})};
  compare_over_lengths(points);
  EXPECT_EQ(curve_metrics(points).at("copies"), true);
  points = {curve_point(64, {0.3, 0.31, 0.29}, {0.31, 0.3, 0.29})};
  compare_over_lengths(points);
  EXPECT_EQ(curve_metrics(points).at("copies"), false);
}

TEST(ForgettingCurve, CodeGridIsThatOfThePublishedResult) {
  const std::vector<int64_t> lengths = target_lengths(CurveGrid::kCode, 16000, 32);
  ASSERT_EQ(lengths.size(), 32);
  for (size_t i = 0; i < kGolden.size(); ++i) EXPECT_EQ(lengths[i], kGolden[i].length);
  EXPECT_EQ(lengths.back(), 16000);
}

TEST(ForgettingCurve, PaperGridIsEvenAndEndsAtTheLongest) {
  EXPECT_EQ(target_lengths(CurveGrid::kPaper, 128, 4), (std::vector<int64_t>{32, 64, 96, 128}));
  EXPECT_EQ(target_lengths(CurveGrid::kPaper, 3, 32), (std::vector<int64_t>{1, 2, 3}));
}

TEST(ForgettingCurve, LogGridTruncatesAndKeepsDistinctLengths) {
  const auto published = target_lengths(CurveGrid::kLog, 16000, 32);  // numpy.geomspace, truncated
  EXPECT_EQ(published,
            (std::vector<int64_t>{8,    10,   13,   16,   21,   27,   34,   44,   56,    72,   92,
                                  118,  151,  193,  247,  316,  404,  516,  660,  843,   1078, 1378,
                                  1760, 2250, 2875, 3674, 4695, 6000, 7667, 9798, 12520, 16000}));
  const auto lengths = target_lengths(CurveGrid::kLog, 12, 32);
  EXPECT_EQ(lengths, (std::vector<int64_t>{8, 9, 10, 11, 12}));
}

TEST(ForgettingCurve, GridsRejectWhatTheyCannotCut) {
  EXPECT_THROW(target_lengths(CurveGrid::kCode, 7, 32), Error);
  EXPECT_THROW(target_lengths(CurveGrid::kCode, 100, 1), Error);
  EXPECT_THROW(target_lengths(CurveGrid::kPaper, 1, 32), Error);
  EXPECT_THROW(target_lengths(CurveGrid::kPaper, 100, 0), Error);
}

TEST(ForgettingCurve, TargetsAreSampledAsPublished) {
  const std::vector<int64_t> lengths{8};
  EXPECT_EQ(target_begins(lengths, 5, 1000, 0).at(0),
            (std::vector<int64_t>{864, 394, 776, 911, 430}));
}

TEST(ForgettingCurve, TextTooShortNamesTheRemedy) {
  const std::vector<int64_t> lengths{8, 334};
  try {
    target_begins(lengths, 5, 1000, 0);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("has 1000 tokens; length 334 needs at least 1002"),
              std::string::npos);
    EXPECT_NE(std::string(e.what()).find("--length"), std::string::npos);
  }
}

// 0-based, with L = 5: [bos] p0..p4 [bos] t0..t4 [eos]; the second copy begins at L + 2 and its
// last ceil(L/2) = 3 tokens are scored, positions 2L+2-3 .. 2L+1.
TEST(ForgettingCurve, SequenceLayoutAndScoredPositions) {
  const std::vector<int64_t> prefix{10, 11, 12, 13, 14};
  const std::vector<int64_t> target{20, 21, 22, 23, 24};
  const CurveSequence sequence = curve_sequence(prefix, target, 1, 2);
  EXPECT_EQ(sequence.tokens,
            (std::vector<int64_t>{1, 10, 11, 12, 13, 14, 1, 20, 21, 22, 23, 24, 2}));
  EXPECT_EQ(sequence.scored_begin, 2 * 5 + 2 - 3);
  EXPECT_EQ(sequence.scored_end, 2 * 5 + 2);
}

TEST(ForgettingCurve, SequenceWithoutSpecialTokens) {
  const std::vector<int64_t> prefix{10, 11};
  const std::vector<int64_t> target{20, 21};
  const CurveSequence sequence = curve_sequence(prefix, target, {}, {});
  EXPECT_EQ(sequence.tokens, (std::vector<int64_t>{10, 11, 20, 21}));
  EXPECT_EQ(sequence.scored_begin, 3);
  EXPECT_EQ(sequence.scored_end, 4);
}

TEST(ForgettingCurve, JsonHasTheFieldsOfThePublishedFormat) {
  const auto lm = golden_accuracies(kGoldenCounts.at(8).lm, 8);
  const nlohmann::json json =
      to_json(curve_point(8, lm, golden_accuracies(kGoldenCounts.at(8).copy, 8)));
  for (const char* key : {"length",
                          "lm_mean",
                          "lm_std",
                          "copy_mean",
                          "copy_std",
                          "lm_accs",
                          "copy_accs",
                          "p_value"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_TRUE(json.at("normality").at("normality").is_boolean());
  EXPECT_TRUE(json.at("normality").at("variance_homogeneity").is_boolean());
  EXPECT_EQ(json.at("lm_accs").size(), 10);
}

}  // namespace
}  // namespace reynard::evaluation
