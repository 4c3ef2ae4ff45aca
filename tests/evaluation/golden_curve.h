#pragma once
// Numbers of a published forgetting curve: what was measured and the statistics of it (facts; the
// file that they are from, of the public repository 1azybug/ForgettingCurve, has no licence and is
// not part of this project).

#include "reynard/evaluation/forgetting_curve.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

namespace reynard::evaluation {

// The published result for Meta-Llama-3-8B: 19 of 32 lengths up to 16,000, ten repeats each.
struct GoldenRow {
  int64_t length;
  double lm_mean, lm_std, copy_mean, copy_std, p_value;
  bool normality, homogeneity;
};
inline const std::vector<GoldenRow> kGolden = {
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
inline const std::map<int64_t, GoldenCounts> kGoldenCounts = {
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
inline std::vector<double> golden_accuracies(const std::vector<int>& hits, int64_t length) {
  std::vector<double> values;
  for (const int k : hits) {
    values.push_back(static_cast<float>(k) / static_cast<float>((length + 1) / 2));
  }
  return values;
}

// The table has ten decimals of the means and seven digits of the p-values.
inline void expect_golden(const CurvePoint& point, const GoldenRow& row) {
  EXPECT_NEAR(point.lm_mean, row.lm_mean, 6e-11);
  EXPECT_NEAR(point.lm_std, row.lm_std, 6e-11);
  EXPECT_NEAR(point.copy_mean, row.copy_mean, 6e-11);
  EXPECT_NEAR(point.copy_std, row.copy_std, 6e-11);
  EXPECT_NEAR(point.p_value / row.p_value, 1, 6e-7);
  EXPECT_EQ(point.normality, row.normality);
  EXPECT_EQ(point.variance_homogeneity, row.homogeneity);
}

}  // namespace reynard::evaluation
