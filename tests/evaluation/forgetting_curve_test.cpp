#include "reynard/evaluation/forgetting_curve.h"

#include "reynard/evaluation/statistics.h"
#include "reynard/tensor/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace reynard::evaluation {
namespace {

// The published result for Meta-Llama-3-8B: 19 of 32 lengths up to 16,000, ten repeats each.
struct GoldenRow {
  int64_t length;
  double lm_mean, lm_std, copy_mean, copy_std, p_value;
  bool normality, homogeneity;
};
const std::vector<GoldenRow> kGolden = {
    {8, 0.2000000000, 0.2179449472, 0.9500000000, 0.1000000000, 1.013103e-06, false, false},
    {523, 0.5091603011, 0.0577383814, 0.9988549650, 0.0024439338, 1.234897e-09, false, false},
    {1039, 0.5246153891, 0.0504403618, 1.0000000000, 0.0000000000, 4.211973e-10, true, false},
    {1555, 0.5255784065, 0.1212927074, 1.0000000000, 0.0000000000, 9.316851e-07, false, true},
    {2071, 0.5272200823, 0.0341535213, 0.9999034762, 0.0002895713, 1.392924e-11, false, false},
    {2587, 0.5201700091, 0.0482171766, 0.9996136129, 0.0003863871, 2.650392e-10, false, false},
    {3103, 0.5032216549, 0.0358932853, 0.9999355674, 0.0001932979, 1.353980e-11, false, false},
    {3619, 0.5149723738, 0.0505773497, 0.9998342574, 0.0002531761, 3.632812e-10, false, false},
    {4134, 0.5268505156, 0.0372438877, 0.9990324080, 0.0019592142, 3.628355e-11, false, false},
    {4650, 0.4371612906, 0.0340183232, 0.8446451545, 0.0070799562, 5.044211e-11, true, false},
    {5166, 0.2798683703, 0.0285815227, 0.5017421544, 0.0212895477, 4.437043e-11, true, true},
    {5682, 0.1288630761, 0.0156296081, 0.2294262618, 0.0194480101, 1.244993e-10, true, true},
    {6198, 0.0656018078, 0.0064230482, 0.0915779278, 0.0109767843, 5.664864e-05, true, true},
    {6714, 0.0551980928, 0.0116389200, 0.0798033949, 0.0211915207, 4.301229e-03, false, true},
    {7230, 0.0522544958, 0.0043005204, 0.0679944690, 0.0128663725, 1.167459e-03, true, false},
    {7746, 0.0532920215, 0.0084586480, 0.0785437636, 0.0100503622, 7.356171e-04, true, true},
    {8261, 0.0495037518, 0.0043857839, 0.0737351745, 0.0164413860, 2.495986e-03, true, true},
    {8777, 0.0473456375, 0.0039905593, 0.0737753481, 0.0096819853, 1.559704e-05, true, false},
    {9293, 0.0504196260, 0.0088145216, 0.0690553045, 0.0218079304, 1.609132e-02, true, true},
};

// Greedy hits out of ceil(length / 2) behind some of those rows.
struct GoldenCounts {
  std::vector<int> lm, copy;
};
const std::map<int64_t, GoldenCounts> kCounts = {
    {8, {{0, 0, 2, 2, 1, 1, 0, 0, 2, 0}, {4, 3, 4, 4, 4, 4, 4, 4, 4, 3}}},
    {523,
     {{131, 138, 134, 111, 144, 128, 123, 150, 113, 162},
      {262, 262, 261, 262, 262, 262, 262, 260, 262, 262}}},
    {1039,
     {{289, 221, 237, 280, 300, 272, 265, 277, 272, 315},
      {520, 520, 520, 520, 520, 520, 520, 520, 520, 520}}},
    {4134,
     {{1194, 1032, 1049, 1113, 1026, 1245, 995, 1138, 1055, 1043},
      {2053, 2066, 2066, 2067, 2065, 2067, 2067, 2066, 2067, 2066}}},
    {4650,
     {{986, 1025, 931, 1140, 913, 902, 1080, 1119, 1037, 1031},
      {1954, 1970, 1959, 1951, 1941, 1973, 1956, 1968, 2005, 1961}}},
    {5166,
     {{766, 637, 770, 648, 796, 665, 727, 622, 858, 740},
      {1311, 1242, 1385, 1282, 1336, 1262, 1270, 1254, 1391, 1227}}},
    {9293,
     {{311, 235, 290, 205, 270, 209, 228, 225, 181, 189},
      {454, 311, 310, 230, 480, 103, 343, 282, 337, 359}}},
};

// Accuracies are stored as float32, as the published script does.
std::vector<double> accuracies(const std::vector<int>& hits, int64_t length) {
  std::vector<double> values;
  for (const int k : hits) {
    values.push_back(static_cast<float>(k) / static_cast<float>((length + 1) / 2));
  }
  return values;
}

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
    const auto counts = kCounts.find(row.length);
    if (counts == kCounts.end()) continue;
    SCOPED_TRACE(row.length);
    const CurvePoint point = curve_point(row.length,
                                         accuracies(counts->second.lm, row.length),
                                         accuracies(counts->second.copy, row.length));
    // The table has ten decimals of the means and seven digits of the p-values.
    EXPECT_NEAR(point.lm_mean, row.lm_mean, 6e-11);
    EXPECT_NEAR(point.lm_std, row.lm_std, 6e-11);
    EXPECT_NEAR(point.copy_mean, row.copy_mean, 6e-11);
    EXPECT_NEAR(point.copy_std, row.copy_std, 6e-11);
    EXPECT_NEAR(point.p_value / row.p_value, 1, 6e-7);
    EXPECT_EQ(point.normality, row.normality);
    EXPECT_EQ(point.variance_homogeneity, row.homogeneity);
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
    const auto lm = accuracies(kCounts.at(row.length).lm, row.length);
    const auto copy = accuracies(kCounts.at(row.length).copy, row.length);
    EXPECT_NEAR(shapiro_wilk(lm).statistic, row.lm_w, 6e-7);
    EXPECT_NEAR(shapiro_wilk(lm).p_value, row.lm_p, 6e-7);
    EXPECT_NEAR(shapiro_wilk(copy).statistic, row.copy_w, 6e-7);
    EXPECT_NEAR(shapiro_wilk(copy).p_value, row.copy_p, 6e-7);
    EXPECT_NEAR(levene(lm, copy).statistic, row.levene_f, 6e-7);
    EXPECT_NEAR(levene(lm, copy).p_value, row.levene_p, 6e-7);
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
  const auto lm = accuracies(kCounts.at(8).lm, 8);
  const nlohmann::json json = to_json(curve_point(8, lm, accuracies(kCounts.at(8).copy, 8)));
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
