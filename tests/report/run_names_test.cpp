// Runs of a sweep are named by all their settings; figures and tables need what differs.

#include "reynard/report/run_names.h"

#include "reynard/report/differences.h"
#include "reynard/report/page.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/report_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::report {
namespace {

using Names = std::vector<std::string>;

TEST(RunNames, KeepWhatDiffers) {
  const ShortNames sweep = short_names({"optimizer.learning_rate=6e-3,seed=0 (sf)",
                                        "optimizer.learning_rate=6e-3,seed=1 (sf)",
                                        "optimizer.learning_rate=6e-3,seed=0 (st)"});
  EXPECT_EQ(sweep.names, (Names{"seed=0 (sf)", "seed=1 (sf)", "seed=0 (st)"}));
  EXPECT_EQ(sweep.shared, "optimizer.learning_rate=6e-3");
  // Only the folder differs.
  EXPECT_EQ(short_names({"a.b=1,seed=0 (sf)", "a.b=1,seed=0 (st)"}).names, (Names{"sf", "st"}));
  // Of a key the last part, where no other key has it; beside names of other kinds.
  EXPECT_EQ(short_names({"a.rate=1,b.size=2", "a.rate=3,b.size=4", "fox"}).names,
            (Names{"rate=1,size=2", "rate=3,size=4", "fox"}));
  EXPECT_EQ(short_names({"a.rate=1,b.rate=2", "a.rate=3,b.rate=4"}).names,
            (Names{"a.rate=1,b.rate=2", "a.rate=3,b.rate=4"}));
  // A value may be a list.
  EXPECT_EQ(short_names({"a=[1,2],seed=0", "a=[1,3],seed=0"}).names, (Names{"a=[1,2]", "a=[1,3]"}));
}

TEST(RunNames, ThatAreNoListsOfSettingsStay) {
  for (const Names& names : {Names{"fox large", "fox small"},
                             Names{"optimizer.learning_rate=6e-3,seed=0"},
                             Names{"optimizer.learning_rate=6e-3,seed=0", "fox"},
                             Names{"a=1", "a=1"},
                             Names{"a=1,b=2", "a=1"},  // nothing would be left
                             Names{"a=1,seed=0 (x)", "a=1,seed=0 (y)", "x"}}) {
    EXPECT_EQ(short_names(names).names, names);
    EXPECT_EQ(short_names(names).shared, "");
  }
}

TEST(RunNames, AreWrappedWhereTheyCanBeBroken) {
  EXPECT_EQ(wrapped("seed=0", 24), (Names{"seed=0"}));
  EXPECT_EQ(wrapped("", 24), (Names{""}));
  EXPECT_EQ(wrapped("learning_rate=6e-3,seed=0", 20), (Names{"learning_rate=6e-3,", "seed=0"}));
  EXPECT_EQ(wrapped("abcdefgh", 3), (Names{"abc", "def", "gh"}));
  EXPECT_EQ(wrapped("äöüß", 3), (Names{"äöü", "ß"}));
}

// Of one sweep: everything on the page is by short names, what they leave out stands above.
TEST(RunNames, OfASweepAreShortOnThePage) {
  const test::TempDir folder;
  std::vector<std::filesystem::path> folders;
  for (const int seed : {0, 1}) {
    const std::string name = fmt::format("optimizer.learning_rate=6e-3,seed={}", seed);
    folders.push_back(folder / name);
    test::write_report_run(folders.back(), name, 1.0 + seed, 0.6);
  }
  const Runs runs = read_runs(folders);
  EXPECT_EQ(names_of(runs), (Names{"seed=0", "seed=1"}));
  const std::string text = page(runs, {}, "vegaEmbed");
  EXPECT_SAYS(text, "<h1>What seed=0 and seed=1 remember</h1>");
  EXPECT_SAYS(text, "All of the sweep have optimizer.learning_rate=6e-3.");
}

// A line per run and none that is cut.
TEST(RunNames, StandUnderEachOtherBesideDifferences) {
  Runs runs(2);
  runs[0].name = "the first of two models of many words";
  runs[1].name = "b";
  Comparison comparison;
  comparison.differences.push_back({.task = "needle", .unit = "points", .second = 1});
  const nlohmann::json spec = difference_figure(comparison, runs)->spec;
  EXPECT_EQ(test::rows_with(spec, "what")[0].at("what"),
            "needle:\nthe first of two models\nof many words\n− b");
  EXPECT_EQ(spec.at("encoding").at("y").at("axis").at("labelExpr"), "split(datum.label, '\\n')");
}

// A setting that one name lists twice is not one that two names share.
TEST(RunNames, ASettingTwiceIsNotShared) {
  const ShortNames names = short_names({"a=1,a=1,x=0", "b=2"});
  EXPECT_EQ(names.shared, "");
  EXPECT_EQ(names.names, (std::vector<std::string>{"a=1,a=1,x=0", "b=2"}));
}

}  // namespace
}  // namespace reynard::report
