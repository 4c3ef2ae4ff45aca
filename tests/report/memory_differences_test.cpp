// What is compared of two forgetting curves: not how well the models predict, but what having seen
// the text adds.

#include "reynard/report/compare.h"
#include "reynard/report/page.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

namespace reynard::report {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

// A curve of 4 lengths and 6 repeats with two prefixes: hits of 100 tokens unseen, and what the
// copy has more. Texts differ in both.
void write_curve(const fs::path& folder, int lm_hits, int gain, const json& metrics) {
  fs::create_directories(folder);
  const json summary{{"task", "forgetting_curve"}, {"settings", 1}, {"metrics", metrics}};
  test::write_file(folder / "forgetting_curve.json", summary.dump());
  std::string text = "{\"settings\":1}\n";
  int n = 0;
  for (const int length : {32, 64, 128, 256}) {
    for (int repeat = 0; repeat < 6; ++repeat, ++n) {
      const auto add = [&](const char* setting, const char* prefix, int hits) {
        json line{{"id", fmt::format("text {} {} {} {}", setting, prefix, length, repeat)},
                  {"setting", setting},
                  {"target", "text"},
                  {"length", length},
                  {"repeat", repeat},
                  {"hits", hits},
                  {"scored", 100}};
        if (*prefix) line["prefix"] = prefix;
        text += line.dump() + "\n";
      };
      const int unseen = lm_hits + n % 7;
      add("copy", "", unseen + gain + n % 5);
      add("lm", "same", unseen - 1);
      add("lm", "news", unseen + 1);
    }
  }
  test::write_file(folder / "forgetting_curve.jsonl", text);
}

TEST(MemoryDifferences, PredictingBetterIsNotRememberingLonger) {
  const test::TempDir folder;
  write_curve(folder / "a", 30, 10, {{"copies", true}});
  write_curve(folder / "b", 60, 10, {{"copies", true}});
  const Difference equal = compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
  EXPECT_EQ(equal.quantity, "copy minus LM accuracy, mean over lengths");
  EXPECT_EQ(equal.samples, 24);
  EXPECT_NEAR(equal.first_mean, 10 + 46.0 / 24, 1e-9);  // n % 5 over 24 texts sums to 46
  EXPECT_NEAR(equal.of.mean, 0, 1e-9);
  EXPECT_FALSE(equal.differs);
  EXPECT_SAYS(sentence_of(equal, "a", "b"),
              "forgetting_curve (copy minus LM accuracy, mean over lengths): no difference between "
              "a and b");

  write_curve(folder / "b", 20, 30, {{"copies", true}});
  const Difference longer = compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
  EXPECT_TRUE(longer.differs);
  EXPECT_NEAR(longer.of.mean, -20, 1e-9);
  EXPECT_SAYS(sentence_of(longer, "a", "b"), "): b is better than a by 20.0 points");
}

TEST(MemoryDifferences, OfModelsThatDoNotCopyAreNone) {
  const test::TempDir folder;
  write_curve(folder / "a", 30, 0, {{"copies", false}});
  write_curve(folder / "b", 60, 2, {{"copies", false}});
  const Comparison none = compare(read_runs({folder / "a", folder / "b"}));
  EXPECT_TRUE(none.differences.empty());
  EXPECT_TRUE(none.shares_task);
  ASSERT_EQ(none.left_out.size(), 1);
  EXPECT_SAYS(none.left_out[0],
              "a and " + (folder / "b").string() +
                  " do not copy by more than chance: there is no memory to compare.");

  // Too few repeats to tell whether a model copies are no reason.
  write_curve(folder / "c", 40, 0, {{"copies", nullptr}});
  const Comparison unknown = compare(read_runs({folder / "a", folder / "c"}));
  EXPECT_EQ(unknown.differences.size(), 1);
  EXPECT_TRUE(unknown.left_out.empty());

  // One that copies remembers more than one that does not.
  write_curve(folder / "b", 60, 30, {{"copies", true}});
  const Comparison one = compare(read_runs({folder / "a", folder / "b"}));
  EXPECT_TRUE(one.differences.at(0).differs);
}

}  // namespace
}  // namespace reynard::report
