// Result files of the forgetting curve: what is computed anew from them equals what the published
// file says.

#include "reynard/evaluation/forgetting_curve.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/golden_curve.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

namespace reynard::evaluation {
namespace {

namespace fs = std::filesystem;

// The published file where REYNARD_PUBLISHED_CURVE names it, else a file of the lengths whose
// counts are known without it (golden_curve.h): 7 of 19.
struct PublishedFile {
  PublishedFile() {
    if (const char* chosen = std::getenv("REYNARD_PUBLISHED_CURVE")) {
      path = chosen;
      return;
    }
    auto entries = nlohmann::json::array();
    for (const auto& [length, counts] : kGoldenCounts) {
      entries.push_back({{"length", length},
                         {"lm_accs", golden_accuracies(counts.lm, length)},
                         {"copy_accs", golden_accuracies(counts.copy, length)}});
    }
    test::write_file(path, entries.dump());
  }
  test::TempDir folder;
  fs::path path = folder / "Meta-Llama-3-8B.json";
};

const GoldenRow& golden_row(int64_t length) {
  for (const GoldenRow& row : kGolden) {
    if (row.length == length) return row;
  }
  throw Error("no such length");
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

// Means and deviations are given to ten decimals, p to seven digits.
TEST(PublishedCurve, AllStatisticsComeBackFromItsAccuracies) {
  const PublishedFile published;
  const CurveFile file = read_curve_file(published.path);
  EXPECT_EQ(file.points.size(),
            std::getenv("REYNARD_PUBLISHED_CURVE") ? kGolden.size() : kGoldenCounts.size());
  for (const CurvePoint& point : file.points) {
    SCOPED_TRACE(point.length);
    expect_golden(point, golden_row(point.length));
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
  const PublishedFile published;
  const CurveFile file = read_curve_file(published.path);
  int compared = 0;
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
    if (groups.size() < row.lengths.size()) continue;  // the short file
    ++compared;
    // The golden numbers have twelve decimals, those of the last row's p six digits.
    EXPECT_NEAR(statistics::one_way_anova(groups).statistic, row.f, 6e-13 * (1 + row.f));
    EXPECT_NEAR(statistics::kruskal_wallis(groups).statistic, row.h, 6e-13);
    EXPECT_NEAR(statistics::one_way_anova(groups).p_value,
                row.anova_p,
                std::min(6e-13, 6e-6 * row.anova_p));
    EXPECT_NEAR(statistics::kruskal_wallis(groups).p_value, row.kruskal_p, 6e-12);
  }
  EXPECT_EQ(compared, std::getenv("REYNARD_PUBLISHED_CURVE") ? 4 : 1);
}

std::string error_of(const fs::path& path) {
  return test::error_of([&] { read_curve_file(path); });
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
