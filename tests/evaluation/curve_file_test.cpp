// Result files of the forgetting curve: what is computed anew from them equals what the published
// file says.

#include "reynard/evaluation/forgetting_curve.h"
#include "reynard/evaluation/statistics.h"
#include "reynard/tensor/check.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

namespace reynard::evaluation {
namespace {

namespace fs = std::filesystem;

// The file of the public repository 1azybug/ForgettingCurve, which has no licence and is not part
// of this project.
fs::path published_file() {
  if (const char* chosen = std::getenv("REYNARD_PUBLISHED_CURVE")) return chosen;
  return test::shared_folder() / "data/Meta-Llama-3-8B.json";
}

std::vector<std::vector<double>> groups_at(const CurveFile& file,
                                           const std::vector<int64_t>& lengths,
                                           std::vector<double> CurvePoint::*accuracies) {
  std::vector<std::vector<double>> groups;
  for (const CurvePoint& point : file.points) {
    if (std::find(lengths.begin(), lengths.end(), point.length) != lengths.end()) {
      groups.push_back(point.*accuracies);
    }
  }
  return groups;
}

TEST(PublishedCurve, AllStatisticsComeBackFromItsAccuracies) {
  const fs::path path = published_file();
  if (!fs::exists(path)) {
    GTEST_SKIP() << "set REYNARD_PUBLISHED_CURVE to Meta-Llama-3-8B.json of the public repository "
                    "1azybug/ForgettingCurve";
  }
  const CurveFile file = read_curve_file(path);
  const auto published = nlohmann::json::parse(test::read_file(path));
  ASSERT_EQ(file.points.size(), 19);
  for (size_t i = 0; i < file.points.size(); ++i) {
    const CurvePoint& point = file.points[i];
    const nlohmann::json& entry = published[i];
    SCOPED_TRACE(point.length);
    EXPECT_NEAR(point.lm_mean, entry.at("lm_mean").get<double>(), 1e-12);
    EXPECT_NEAR(point.lm_std, entry.at("lm_std").get<double>(), 1e-12);
    EXPECT_NEAR(point.copy_mean, entry.at("copy_mean").get<double>(), 1e-12);
    EXPECT_NEAR(point.copy_std, entry.at("copy_std").get<double>(), 1e-12);
    EXPECT_NEAR(point.p_value / entry.at("p_value").get<double>(), 1, 1e-13);
    EXPECT_EQ(point.normality, entry.at("normality").at("normality").get<bool>());
    EXPECT_EQ(point.variance_homogeneity,
              entry.at("normality").at("variance_homogeneity").get<bool>());
  }
  const MemoryLengths lengths = memory_lengths(file.points);
  EXPECT_EQ(to_string(lengths.fine), "4134");
  EXPECT_EQ(to_string(lengths.coarse), ">9293");
}

struct GoldenTests {
  std::vector<int64_t> lengths;
  std::vector<double> CurvePoint::*accuracies;
  double f, anova_p, h, kruskal_p;
};

TEST(PublishedCurve, AnovaAndKruskalWallisEqualScipy) {
  if (!fs::exists(published_file())) GTEST_SKIP() << "no published file, see above";
  const CurveFile file = read_curve_file(published_file());
  const std::vector<GoldenTests> golden = {
      {{523, 1039, 1555},
       &CurvePoint::lm_accs,
       0.111318614858,
       0.895062110842,
       1.556821722680,
       0.459135061147},
      {{523, 1039, 1555},
       &CurvePoint::copy_accs,
       1.975609756098,
       0.158219855515,
       4.137931034483,
       0.126316386263},
      {{2071, 2587, 3103, 3619},
       &CurvePoint::lm_accs,
       0.502051051718,
       0.683266011557,
       1.476723895300,
       0.687652767983},
      {{4134, 4650, 5166},
       &CurvePoint::lm_accs,
       125.558477061844,
       2.12002e-14,
       25.550967741935,
       2.82929e-06},
  };
  for (const GoldenTests& row : golden) {
    SCOPED_TRACE(row.lengths.front());
    const auto groups = groups_at(file, row.lengths, row.accuracies);
    // The golden numbers have twelve decimals, those of the last row's p six digits.
    EXPECT_NEAR(one_way_anova(groups).statistic, row.f, 6e-13 * (1 + row.f));
    EXPECT_NEAR(kruskal_wallis(groups).statistic, row.h, 6e-13);
    EXPECT_NEAR(one_way_anova(groups).p_value, row.anova_p, std::min(6e-13, 6e-6 * row.anova_p));
    EXPECT_NEAR(kruskal_wallis(groups).p_value, row.kruskal_p, 6e-12);
  }
}

// The counts of three lengths of that file (facts, known without it).
TEST(GroupTests, EqualScipyOnThePublishedCounts) {
  const std::vector<std::pair<int, std::vector<int>>> counts = {
      {2067, {1194, 1032, 1049, 1113, 1026, 1245, 995, 1138, 1055, 1043}},
      {2325, {986, 1025, 931, 1140, 913, 902, 1080, 1119, 1037, 1031}},
      {2583, {766, 637, 770, 648, 796, 665, 727, 622, 858, 740}},
  };
  std::vector<std::vector<double>> groups;
  for (const auto& [scored, hits] : counts) {
    auto& group = groups.emplace_back();
    for (const int k : hits) group.push_back(static_cast<float>(k) / static_cast<float>(scored));
  }
  EXPECT_NEAR(one_way_anova(groups).statistic, 125.558477061844, 1e-10);
  EXPECT_NEAR(one_way_anova(groups).p_value, 2.12002e-14, 1e-19);
  EXPECT_NEAR(kruskal_wallis(groups).statistic, 25.550967741935, 1e-12);
  EXPECT_NEAR(kruskal_wallis(groups).p_value, 2.82929e-06, 1e-11);
}

TEST(GroupTests, EqualValuesAndSpreadlessGroups) {
  const std::vector<std::vector<double>> same(3, std::vector<double>(4, 0.5));
  EXPECT_TRUE(std::isnan(one_way_anova(same).p_value));
  EXPECT_TRUE(std::isnan(kruskal_wallis(same).p_value));
  const std::vector<std::vector<double>> apart{{1, 1}, {2, 2}};
  EXPECT_EQ(one_way_anova(apart).p_value, 0);
  EXPECT_THROW(one_way_anova(std::vector<std::vector<double>>{{1, 2}}), Error);
  EXPECT_THROW(kruskal_wallis(std::vector<std::vector<double>>{{1}, {}}), Error);
  EXPECT_THROW(one_way_anova(std::vector<std::vector<double>>{{1}, {2}}), Error);
}

std::string error_of(const fs::path& path) {
  try {
    read_curve_file(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CurveFile, BadFilesNameEntryAndField) {
  const test::TempDir folder;
  const fs::path file = folder / "x.json";
  EXPECT_NE(error_of(file).find("x.json"), std::string::npos);
  const auto expect = [&](const char* text, const char* message) {
    test::write_file(file, text);
    EXPECT_NE(error_of(file).find(message), std::string::npos) << error_of(file);
  };
  expect("[", "is not JSON");
  expect("[]", "neither a published result");
  expect("{\"series\":{\"points\":3}}", "neither a published result");
  expect("[3]", "entry 0 is not an object");
  expect(R"([{"lm_accs":[0],"copy_accs":[0]}])", "entry 0 has no \"length\"");
  expect(R"([{"length":0,"lm_accs":[0],"copy_accs":[0]}])", "\"length\" must be an integer");
  expect(R"([{"length":8,"lm_accs":[0]}])", "entry 0 has no \"copy_accs\"");
  expect(R"([{"length":8,"lm_accs":[0],"copy_accs":[]}])", "\"copy_accs\" must be a list");
  expect(R"([{"length":8,"lm_accs":[1.5],"copy_accs":[0]}])", "\"lm_accs\" must be numbers from 0");
  expect(R"([{"length":8,"lm_accs":[1],"copy_accs":[0,1]}])", "must be as long as");
  expect(
      R"([{"length":8,"lm_accs":[1],"copy_accs":[0]},{"length":8,"lm_accs":[1],"copy_accs":[0]}])",
      "entry 1: \"length\" must be larger");
}

}  // namespace
}  // namespace reynard::evaluation
