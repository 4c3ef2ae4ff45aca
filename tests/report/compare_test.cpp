// What of two runs is compared, and how often chance alone is called a difference between them.

#include "reynard/report/compare.h"

#include "reynard/report/differences.h"
#include "reynard/report/page.h"
#include "reynard/report/verdict.h"
#include "reynard/tensor/check.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

namespace reynard::report {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

// What the runs below were measured with.
const json kHeader{{"settings", {{"rows", 32}}}, {"identity", {{"text", "t"}}}};

void write_run(const fs::path& folder, const std::string& name, double loss, int hits) {
  fs::create_directories(folder);
  json about = kHeader;
  about["name"] = name;
  about["metrics"] = json::object();
  for (const char* task : {"per_position_loss", "passkey"}) {
    json summary = about;
    summary["task"] = task;
    test::write_file(folder / (std::string(task) + ".json"), summary.dump());
  }
  std::string rows = kHeader.dump() + "\n";
  std::string prompts = kHeader.dump() + "\n";
  for (int i = 0; i < 32; ++i) {
    rows +=
        json{{"id", fmt::format("row {}", i)}, {"loss", loss + 0.01 * std::sin(i)}}.dump() + "\n";
    prompts += json{{"id", fmt::format("{}", i)}, {"score", i % 8 < hits ? 1 : 0}}.dump() + "\n";
  }
  test::write_file(folder / "per_position_loss.jsonl", rows);
  test::write_file(folder / "passkey.jsonl", prompts + "{\"id\":\"cut");
}

TEST(Compare, SaysWhoIsBetterAndWhereNobodyIs) {
  const test::TempDir folder;
  write_run(folder / "a", "fox", 1.0, 4);
  write_run(folder / "b", "lru", 1.2, 4);
  const auto runs = read_runs({folder / "a", folder / "b"});
  const Comparison comparison = compare(runs);
  ASSERT_EQ(comparison.differences.size(), 2);
  EXPECT_TRUE(comparison.differences[0].differs);
  EXPECT_EQ(sentence_of(comparison.differences[0], "fox", "lru"),
            "per_position_loss: fox is better than lru by 0.2000 nats (no interval: all 32 "
            "differences are alike; margin 0.005).");
  EXPECT_FALSE(comparison.differences[1].differs);
  EXPECT_EQ(comparison.differences[1].samples, 32);
  EXPECT_EQ(comparison.differences[1].first_mean, 50);

  const PageOptions options{.comparison = &comparison};
  const std::string text = page(runs, options, "vegaEmbed");
  EXPECT_NE(text.find("fox is better than lru"), std::string::npos);
  EXPECT_NE(text.find("spec-differences"), std::string::npos);
}

// A run with samples of one task, each a line.
void write_samples(const fs::path& folder,
                   const std::string& task,
                   const std::vector<json>& lines) {
  fs::create_directories(folder);
  const json summary{{"task", task}, {"settings", 1}, {"metrics", json::object()}};
  test::write_file(folder / (task + ".json"), summary.dump());
  std::string text = "{\"settings\":1}\n";
  for (const json& line : lines) text += line.dump() + "\n";
  test::write_file(folder / (task + ".jsonl"), text);
}

// Of a question with options the most probable one counts; a question is one sample, however many
// lengths and draws ask it.
TEST(Compare, AnswersToQuestionsAreCompared) {
  const test::TempDir folder;
  for (const bool knows : {false, true}) {
    std::vector<json> lines;
    for (int ask = 0; ask < 6; ++ask) {
      for (int item = 0; item < 8; ++item) {
        for (int option = 0; option < 3; ++option) {
          const bool favoured = option == (knows || item < 2 ? 1 : 2);
          lines.push_back({{"id", fmt::format("{} {} {} {}", 64 << ask / 3, ask % 3, item, option)},
                           {"option", fmt::format("option {}", option)},
                           {"answers", {"option 1"}},
                           {"logprob", favoured ? -1 : -2}});
        }
      }
    }
    write_samples(folder / (knows ? "b" : "a"), "few_shot", lines);
  }
  const auto comparison = compare(read_runs({folder / "a", folder / "b"}));
  ASSERT_EQ(comparison.differences.size(), 1);
  const Difference& answers = comparison.differences[0];
  EXPECT_EQ(answers.task, "few_shot");
  EXPECT_EQ(answers.samples, 8);
  EXPECT_EQ(answers.first_mean, 25);
  EXPECT_EQ(answers.second_mean, 100);
}

TEST(Compare, AStoryIsOneSampleAtWhateverLengthsItIsAsked) {
  const test::TempDir folder;
  for (const char* run : {"a", "b"}) {
    for (const char* task : {"babilong", "ruler"}) {
      std::vector<json> lines;
      for (const char* name : {"qa_1", "qa_2"}) {
        for (const int length : {64, 128, 256}) {
          for (int sample = 0; sample < 5; ++sample) {
            const bool right = run[0] == 'b' || length == 64;
            lines.push_back(
                {{"id", fmt::format("{} {} {}", name, length, sample)}, {"score", right ? 1 : 0}});
          }
        }
      }
      write_samples(folder / run, task, lines);
    }
  }
  const auto comparison = compare(read_runs({folder / "a", folder / "b"}));
  ASSERT_EQ(comparison.differences.size(), 2);
  for (const Difference& difference : comparison.differences) {
    EXPECT_EQ(difference.samples, 2 * 5) << difference.task;
    EXPECT_NEAR(difference.first_mean, 100.0 / 3, 1e-9);
    EXPECT_EQ(difference.second_mean, 100);
  }
}

// Noise that all draws of a question share: with each draw counted, 44 of these were called.
TEST(Compare, QuestionsAskedManyTimesAreADifferenceInAtMost7Of100) {
  std::mt19937_64 random(6);
  std::bernoulli_distribution right(0.5);
  std::bernoulli_distribution slips(0.1);
  int called = 0;
  constexpr int kComparisons = 100;
  for (int i = 0; i < kComparisons; ++i) {
    const test::TempDir folder;
    for (const char* run : {"a", "b"}) {
      std::vector<json> lines;
      for (int item = 0; item < 30; ++item) {
        const bool known = right(random);
        for (int draw = 0; draw < 8; ++draw) {
          lines.push_back({{"id", fmt::format("64 {} {}", draw, item)},
                           {"score", known != slips(random) ? 1 : 0}});
        }
      }
      write_samples(folder / run, "few_shot", lines);
    }
    const Comparison comparison =
        compare(read_runs({folder / "a", folder / "b"}), {.bootstrap = {.resamples = 199}});
    ASSERT_EQ(comparison.differences.size(), 1);
    EXPECT_EQ(comparison.differences[0].samples, 30);
    called += comparison.differences[0].differs ? 1 : 0;
  }
  EXPECT_LE(called, 7);
}

// Overlapping windows and streams of documents hold the text of the windows again.
TEST(Compare, OfPerplexityEveryTokenCountsOnce) {
  const test::TempDir folder;
  for (const double loss : {1.0, 1.2}) {
    std::vector<json> lines;
    for (int i = 0; i < 8; ++i) {
      const double windowed = loss + 0.01 * std::sin(i);
      lines.push_back(
          {{"id", fmt::format("windowed {}", i)}, {"kind", "windowed"}, {"loss", windowed}});
      lines.push_back({{"id", fmt::format("strided {}", i)}, {"kind", "strided"}, {"loss", 9}});
      lines.push_back(
          {{"id", fmt::format("documents 2 {}", i)}, {"kind", "documents"}, {"loss", 9}});
    }
    write_samples(folder / (loss == 1 ? "a" : "b"), "perplexity", lines);
  }
  const auto comparison = compare(read_runs({folder / "a", folder / "b"}));
  ASSERT_EQ(comparison.differences.size(), 1);
  EXPECT_EQ(comparison.differences[0].quantity, "windowed loss");
  EXPECT_EQ(comparison.differences[0].samples, 8);
  EXPECT_NEAR(comparison.differences[0].of.mean, -0.2, 1e-12);
}

TEST(Compare, NamesWhatSharedSamplesLack) {
  const test::TempDir folder;
  for (const char* run : {"a", "b"}) {
    std::vector<json> lines;
    for (int i = 0; i < 8; ++i) {
      lines.push_back({{"id", fmt::format("strided {}", i)}, {"kind", "strided"}, {"loss", 9}});
    }
    write_samples(folder / run, "perplexity", lines);
  }
  const Comparison comparison = compare(read_runs({folder / "a", folder / "b"}));
  EXPECT_TRUE(comparison.differences.empty());
  ASSERT_EQ(comparison.left_out.size(), 1);
  EXPECT_SAYS(comparison.left_out[0], "share fewer than two samples of the windowed loss.");
}

// As in the perplexity: the last window of a document scores fewer tokens.
TEST(Compare, WindowsCountByTheirTokens) {
  const test::TempDir folder;
  for (const bool second : {false, true}) {
    std::vector<json> lines;
    for (int i = 0; i < 10; ++i) {
      for (const bool whole : {true, false}) {
        const double more = whole ? 0.1 : -0.5;
        lines.push_back({{"id", fmt::format("windowed {}", 2 * i + (whole ? 0 : 1))},
                         {"kind", "windowed"},
                         {"scored", whole ? 512 : 8},
                         {"loss", 3 + (second ? more : 0)}});
      }
    }
    write_samples(folder / (second ? "b" : "a"), "perplexity", lines);
  }
  const Difference loss = compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
  EXPECT_EQ(loss.samples, 20);
  EXPECT_NEAR(loss.first_mean, 3, 1e-12);
  EXPECT_NEAR(loss.second_mean, 3 + (512 * 0.1 - 8 * 0.5) / 520, 1e-12);
  EXPECT_NEAR(loss.of.mean, -(512 * 0.1 - 8 * 0.5) / 520, 1e-12);
}

// As in LongBench's score: a task of many samples counts as one of few does.
TEST(Compare, TasksOfLongBenchCountAlike) {
  const test::TempDir folder;
  for (const bool second : {false, true}) {
    std::vector<json> lines;
    for (int i = 0; i < 60; ++i) {
      const bool small = i < 10;
      lines.push_back({{"id", std::to_string(i)},
                       {"task", small ? "qasper" : "lcc"},
                       {"score", small == second ? 0.25 : 0.5}});
    }
    write_samples(folder / (second ? "b" : "a"), "longbench", lines);
  }
  const Difference score = compare(read_runs({folder / "a", folder / "b"})).differences.at(0);
  EXPECT_EQ(score.samples, 60);
  EXPECT_NEAR(score.first_mean, 37.5, 1e-9);
  EXPECT_NEAR(score.second_mean, 37.5, 1e-9);
  EXPECT_FALSE(score.differs);
}

TEST(Compare, LossesMustDifferByMoreThanAnotherSeedWould) {
  const test::TempDir folder;
  write_run(folder / "a", "fox", 1.000, 4);
  write_run(folder / "b", "lru", 1.004, 4);
  const auto runs = read_runs({folder / "a", folder / "b"});
  const Difference close = compare(runs).differences[0];
  EXPECT_FALSE(close.differs);
  EXPECT_SAYS(sentence_of(close, "a", "b"), "; margin 0.005).");
  EXPECT_TRUE(compare(runs, {.loss_margin = 0.001}).differences[0].differs);
}

TEST(Compare, OtherSettingsAreLeftOutAndNamed) {
  const test::TempDir folder;
  write_run(folder / "a", "fox", 1.0, 4);
  write_run(folder / "b", "lru", 1.2, 4);
  auto runs = read_runs({folder / "a", folder / "b"});
  runs[1].evaluations["passkey"]["settings"]["rows"] = 33;
  const Comparison comparison = compare(runs);
  EXPECT_EQ(comparison.differences.size(), 1);
  ASSERT_EQ(comparison.left_out.size(), 1);
  EXPECT_SAYS(comparison.left_out[0],
              (folder / "a").string() + " and " + (folder / "b").string() +
                  " were measured with other settings");
}

TEST(Compare, TasksOfSomeRunsAloneAreNamed) {
  const test::TempDir folder;
  for (const char* name : {"a", "b", "c"}) write_run(folder / name, name, 1.0, 4);
  fs::remove(folder / "b/passkey.json");
  Runs runs = read_runs({folder / "a", folder / "b"});
  const Comparison two = compare(runs);
  EXPECT_TRUE(two.shares_task);
  ASSERT_EQ(two.differences.size(), 1);
  EXPECT_EQ(two.differences[0].task, "per_position_loss");
  EXPECT_EQ(two.left_out,
            std::vector{fmt::format("passkey: measured for {} only.", (folder / "a").string())});
  EXPECT_SAYS(page(runs, {.comparison = &two}, "vegaEmbed"), "Not compared: passkey: measured");

  runs = read_runs({folder / "a", folder / "b", folder / "c"});
  const Comparison three = compare(runs);
  EXPECT_EQ(three.differences.size(), 4);
  EXPECT_EQ(three.left_out,
            std::vector{fmt::format("passkey: measured for {} and {} only.",
                                    (folder / "a").string(),
                                    (folder / "c").string())});

  runs = read_runs({folder / "a", folder / "b"});
  runs[0].evaluations.erase("per_position_loss");
  EXPECT_FALSE(compare(runs).shares_task);
}

// A measurement that was stopped leaves samples of its own beside the summary of the one before.
TEST(Compare, SamplesThatAreNotTheSummarysAreNotUsed) {
  const test::TempDir folder;
  for (const auto& [key, other] : {std::pair{"settings", json{{"rows", 33}}},
                                   {"identity", json{{"text", "t"}, {"model", "other"}}}}) {
    write_run(folder / "a", "fox", 1.0, 4);
    write_run(folder / "b", "lru", 1.2, 4);
    json header = kHeader;
    header[key] = other;
    test::write_file(
        folder / "a/per_position_loss.jsonl",
        header.dump() + "\n{\"id\":\"row 0\",\"loss\":9}\n{\"id\":\"row 1\",\"loss\":9}\n");
    const Runs runs = read_runs({folder / "a", folder / "b"});
    const Comparison comparison = compare(runs);
    ASSERT_EQ(comparison.differences.size(), 1) << key;
    EXPECT_EQ(comparison.differences[0].task, "passkey");
    ASSERT_EQ(comparison.left_out.size(), 2) << key;
    EXPECT_SAYS(comparison.left_out[0],
                "a/per_position_loss.jsonl holds samples of other settings, another model or text "
                "than per_position_loss.json: measured only in part; run `reynard eval` again.");
    EXPECT_EQ(comparison.left_out[1],
              fmt::format("per_position_loss: {} and {} share fewer than two samples of the loss.",
                          (folder / "a").string(),
                          (folder / "b").string()));
    EXPECT_EQ(paired_loss(runs[0], runs[1]).rows, 0);
    EXPECT_SAYS(page(runs, {}, "vegaEmbed"), "Not used: ");
  }
}

// A run of a recipe: its seed moves all its losses by `shift`; rows have noise of their own.
void write_seed(const fs::path& folder,
                const std::string& recipe,
                int seed,
                double shift,
                std::mt19937_64& random) {
  write_run(folder, fmt::format("{} {}", recipe, seed), 1, 4);
  test::write_file(
      folder / "experiment.toml",
      fmt::format(
          "[run]\nfolder = \"{0} {1}\"\nseed = {1}\n[model]\nname = \"{0}\"\n", recipe, seed));
  std::normal_distribution<double> noise(0, 0.02);
  std::string rows = kHeader.dump() + "\n";
  for (int i = 0; i < 32; ++i) {
    const double loss = 1.5 + std::sin(i) + shift + noise(random);
    rows += json{{"id", fmt::format("row {}", i)}, {"loss", loss}}.dump() + "\n";
  }
  test::write_file(folder / "per_position_loss.jsonl", rows);
}

const Difference& loss_of(const Comparison& comparison, const Runs& runs, const char* pair) {
  for (const Difference& difference : comparison.differences) {
    const std::string name = runs[difference.first].name + "/" + runs[difference.second].name;
    if (difference.task == "per_position_loss" && name == pair) return difference;
  }
  throw Error("no such pair");
}

TEST(Compare, RunsOfOneRecipeAreNoDifferenceAndSetTheMargin) {
  const test::TempDir folder;
  std::mt19937_64 random(3);
  write_seed(folder / "a0", "a", 0, 0.0, random);
  write_seed(folder / "a1", "a", 1, 0.05, random);
  write_seed(folder / "a2", "a", 2, -0.05, random);
  write_seed(folder / "b0", "b", 0, 0.1, random);
  write_seed(folder / "c0", "c", 0, 0.8, random);
  const Runs runs =
      read_runs({folder / "a0", folder / "a1", folder / "a2", folder / "b0", folder / "c0"});
  EXPECT_EQ(runs[0].recipe, runs[1].recipe);
  EXPECT_NE(runs[0].recipe, runs[3].recipe);
  const Comparison comparison = compare(runs);
  EXPECT_TRUE(comparison.seeds_known);
  const Difference& seeds = loss_of(comparison, runs, "a 1/a 2");
  EXPECT_TRUE(seeds.same_recipe);
  EXPECT_FALSE(seeds.differs);  // though its interval is far from 0
  EXPECT_LT(seeds.of.p_value, 0.01);
  EXPECT_EQ(seeds.adjusted_p_value, 1);  // no question, which others' would pay for
  EXPECT_EQ(sentence_of(seeds, "a 1", "a 2")
                .find("per_position_loss: no difference between a 1 and a 2: "
                      "one recipe with two seeds, 0."),
            0)
      << sentence_of(seeds, "a 1", "a 2");
  // Deviation of the three seeds 0.05, two degrees of freedom: 6.205 x 0.05 x sqrt 2 = 0.44.
  EXPECT_NEAR(seeds.margin, 0.44, 0.06);
  EXPECT_FALSE(loss_of(comparison, runs, "a 0/b 0").differs);
  EXPECT_TRUE(loss_of(comparison, runs, "a 0/c 0").differs);
}

// experiment.toml holds the last settings of a run that was made with several.
TEST(Compare, ARunWhoseSettingsChangedIsOfAnotherRecipe) {
  const test::TempDir folder;
  std::mt19937_64 random(3);
  const auto change = [&](const std::string& name, int step) {
    json run = {{"name", name}};
    run["earlier"] = {{{"command", json::array()}, {"until_step", 5}},
                      {{"command", json::array()},
                       {"until_step", step},
                       {"changed", {"optimizer.learning_rate: 0.01 -> 0.5"}}}};
    test::write_file(folder / (name + "/run.json"), run.dump());
  };
  for (const int seed : {0, 1, 2, 3}) {
    write_seed(folder / fmt::format("a{}", seed), "a", seed, 0.1 * seed, random);
  }
  change("a1", 10);
  change("a2", 10);
  change("a3", 20);
  const Runs runs = read_runs({folder / "a0", folder / "a1", folder / "a2", folder / "a3"});
  EXPECT_NE(runs[0].recipe, runs[1].recipe);
  EXPECT_EQ(runs[1].recipe, runs[2].recipe);
  EXPECT_NE(runs[2].recipe, runs[3].recipe);
}

// Between copies of one run lies nothing, which would pass for what seeds change.
TEST(Compare, TheSameWeightsAreNotTwoSeeds) {
  const test::TempDir folder;
  std::mt19937_64 random(3);
  write_seed(folder / "a0", "a", 0, 0.0, random);
  write_seed(folder / "a1", "a", 1, 0.0, random);
  Runs runs = read_runs({folder / "a0", folder / "a1"});
  for (RunResults& run : runs) run.evaluations["per_position_loss"]["identity"]["model"] = "9f";
  EXPECT_SAYS(test::error_of([&] { compare(runs); }),
              "a1 hold the same weights (equal SHA-256), which are not two seeds");
  runs[1].evaluations["per_position_loss"]["identity"]["model"] = "a0";
  EXPECT_TRUE(compare(runs).seeds_known);
}

// Seeds that move the loss by much more than rows are noisy: a test of the rows alone calls nearly
// every pair of seeds a difference; with the seeds of the recipes known, at most 7 of 100 are.
TEST(Compare, TheSameRecipeUnderTwoNamesIsADifferenceInAtMost7Of100) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> seed_effect(0, 0.1);
  int called = 0;
  int without_seeds = 0;
  constexpr int kComparisons = 100;
  for (int i = 0; i < kComparisons; ++i) {
    const test::TempDir folder;
    std::vector<fs::path> folders;
    for (const int seed : {0, 1, 2}) {
      folders.push_back(folder / fmt::format("a{}", seed));
      write_seed(folders.back(), "a", seed, seed_effect(random), random);
    }
    folders.push_back(folder / "b0");
    write_seed(folders.back(), "b", 0, seed_effect(random), random);
    Runs runs = read_runs(folders);
    const CompareOptions options{.bootstrap = {.resamples = 499}};
    called += loss_of(compare(runs, options), runs, "a 0/b 0").differs ? 1 : 0;
    for (RunResults& run : runs) run.recipe.clear();
    without_seeds += loss_of(compare(runs, options), runs, "a 0/b 0").differs ? 1 : 0;
  }
  EXPECT_LE(called, 7);
  EXPECT_GE(without_seeds, 70);
}

// As the losses of small models were: most seeds lie close together, some learn to copy late.
TEST(Compare, SeedsWithHeavyTailsAreADifferenceInAtMost7Of100) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> seed_effect(0, 0.06);
  std::bernoulli_distribution late(0.1);
  const auto effect = [&] { return seed_effect(random) + (late(random) ? 0.35 : 0); };
  int called = 0;
  constexpr int kComparisons = 200;
  for (int i = 0; i < kComparisons; ++i) {
    const test::TempDir folder;
    std::vector<fs::path> folders;
    for (const auto& [recipe, seed] : {std::pair{"a", 0}, {"a", 1}, {"a", 2}, {"b", 0}}) {
      folders.push_back(folder / fmt::format("{}{}", recipe, seed));
      write_seed(folders.back(), recipe, seed, effect(), random);
    }
    const Runs runs = read_runs(folders);
    const Comparison comparison = compare(runs, {.bootstrap = {.resamples = 199}});
    called += loss_of(comparison, runs, "a 0/b 0").differs ? 1 : 0;
  }
  EXPECT_LE(called, kComparisons * 7 / 100);
}

}  // namespace
}  // namespace reynard::report
