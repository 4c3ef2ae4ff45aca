// reynard eval that is killed again and again: the next run goes on, repeats nothing and drops
// nothing.

#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/small_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

using namespace reynard;
using nlohmann::json;

class KilledEval : public testing::Test {
 protected:
  KilledEval() { test::write_small_run(folder_.path(), /*num_layers=*/2); }
  test::ProgramResult eval(const std::string& output, double seconds) {
    return test::run_program({.arguments = {"eval",
                                            "run",
                                            "--text",
                                            "text.txt",
                                            "--task",
                                            "forgetting_curve,passkey",
                                            "--batch-tokens=700",
                                            "--forgetting_curve.length=200",
                                            "--forgetting_curve.points=10",
                                            "--passkey.lengths=600",
                                            "--passkey.trials=12",
                                            "-o",
                                            output},
                              .folder = folder_.path(),
                              .seconds_limit = seconds});
  }
  // The sample lines by their ids, each of which must be there once.
  std::map<std::string, json> samples(const std::string& file) {
    std::istringstream in(test::read_file(folder_ / file));
    std::string line;
    std::getline(in, line);
    EXPECT_TRUE(json::parse(line).contains("identity"));
    std::map<std::string, json> by_id;
    while (std::getline(in, line)) {
      const json sample = json::parse(line);
      EXPECT_TRUE(by_id.emplace(sample.at("id"), sample).second) << line << " is there twice";
    }
    return by_id;
  }
  test::TempDir folder_;
};

TEST_F(KilledEval, GoesOnWithoutRepeatingOrDroppingSamples) {
  const auto begin = std::chrono::steady_clock::now();
  const test::ProgramResult straight = eval("straight", 60);
  ASSERT_EQ(straight.exit_code, 0) << straight.errors;
  double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::mt19937 random(7);  // kill times differ between machines anyway
  std::uniform_real_distribution<double> fraction(0.1, 0.8);
  int killed = 0;
  for (int i = 0; i < 40 && killed < 4; ++i) {
    const test::ProgramResult result = eval("killed", fraction(random) * whole);
    ASSERT_TRUE(result.exit_code == 137 || result.exit_code == 0) << result.errors;
    killed += result.exit_code == 137 ? 1 : 0;
    if (result.exit_code == 137) continue;
    // Other programs slowed the first run: begin again, with less time.
    std::filesystem::remove_all(folder_ / "killed");
    whole *= 0.7;
    killed = 0;
  }
  ASSERT_EQ(killed, 4);
  const test::ProgramResult last = eval("killed", 60);
  ASSERT_EQ(last.exit_code, 0) << last.errors;
  for (const char* task : {"forgetting_curve", "passkey"}) {
    const auto expected = samples(fmt::format("straight/{}.jsonl", task));
    const auto found = samples(fmt::format("killed/{}.jsonl", task));
    ASSERT_EQ(found.size(), expected.size()) << task;
    for (const auto& [id, sample] : expected) {
      ASSERT_TRUE(found.contains(id)) << id;
      // Written text and greedy hits are equal; losses to rounding, as passes hold other samples.
      for (const char* key : {"answer", "hits", "begin", "answers"}) {
        EXPECT_EQ(found.at(id).value(key, json()), sample.value(key, json())) << id;
      }
      if (sample.contains("loss")) {
        EXPECT_NEAR(found.at(id).at("loss").get<double>(), sample.at("loss").get<double>(), 1e-4);
      }
    }
    const auto summary =
        json::parse(test::read_file(folder_ / fmt::format("killed/{}.json", task)));
    EXPECT_EQ(summary.at("effort").at("samples"), expected.size());
  }
}

TEST_F(KilledEval, CtrlCSaysWhatIsThereAndGoesOn) {
  test::ProgramRun run{.arguments = {"eval",
                                     "run",
                                     "--text",
                                     "text.txt",
                                     "--task",
                                     "forgetting_curve",
                                     "--batch-tokens=100",
                                     "--forgetting_curve.length=100",
                                     "-o",
                                     "stopped"},
                       .folder = folder_.path(),
                       .interrupt_at_file = folder_ / "stopped/forgetting_curve.jsonl"};
  const test::ProgramResult stopped = test::run_program(run);
  EXPECT_EQ(stopped.exit_code, 130) << stopped.errors;
  EXPECT_NE(stopped.errors.find("of 640 samples of forgetting_curve are in stopped"),
            std::string::npos)
      << stopped.errors;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "stopped/forgetting_curve.json"));
  const size_t before = samples("stopped/forgetting_curve.jsonl").size();
  EXPECT_GT(before, 0U);
  EXPECT_LT(before, 640U);
  run.interrupt_at_file.clear();
  const test::ProgramResult last = test::run_program(run);
  ASSERT_EQ(last.exit_code, 0) << last.errors;
  const auto summary = json::parse(test::read_file(folder_ / "stopped/forgetting_curve.json"));
  EXPECT_EQ(summary.at("effort").at("reused_samples"), before);
  EXPECT_EQ(samples("stopped/forgetting_curve.jsonl").size(), 640U);
}

}  // namespace
