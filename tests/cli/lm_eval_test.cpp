// The task lm_eval with a stand-in for the harness, which asks the served model and writes results
// as the harness does: what is tested is ours, starting both and reading the table.

#include "reynard/models/pretrained.h"
#include "reynard/tensor/device.h"
#include "tests/serving/served.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

using namespace reynard;
using nlohmann::json;
using test::ProgramResult;

constexpr const char* kHarness = R"(
import argparse, json, os, pathlib, sys, urllib.request
parser = argparse.ArgumentParser()
for name in ("model", "model_args", "tasks", "output_path", "use_cache", "limit", "num_fewshot", "include_path"):
    parser.add_argument("--" + name)
parser.add_argument("--batch_size", type=int)
parser.add_argument("--log_samples", action="store_true")
asked = parser.parse_args()
if asked.tasks == "broken":
    sys.exit(9)
args = dict(pair.split("=", 1) for pair in asked.model_args.split(","))
assert asked.model == "local-completions" and asked.log_samples and args["tokenizer_backend"] == "remote", asked
body = {"model": args["model"], "prompt": [[104, 105, 106]], "max_tokens": 1, "logprobs": 1, "echo": True}
request = urllib.request.Request(args["base_url"], json.dumps(body).encode(), {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
logprob = answer["choices"][0]["logprobs"]["token_logprobs"][1]
folder = pathlib.Path(asked.output_path) / "model"
folder.mkdir(parents=True, exist_ok=True)
results = {
    "results": {
        "one": {"alias": "one", "acc,none": 0.25, "acc_stderr,none": 0.125, "perplexity,none": -logprob},
        "two": {"alias": "two", "exact_match,strict": 1.0, "exact_match_stderr,strict": "N/A"},
    },
    "versions": {"one": 1, "two": 3},
    "lm_eval_version": "0.4.13",
}
(folder / "results_2026.json").write_text(json.dumps(results))
print("a table", asked.use_cache)
)";

class LmEvalTask : public testing::Test {
 protected:
  LmEvalTask() {
    models::save_model(served_.decoder, folder_ / "small");
    for (const char* name : {"packages/lm_eval", "packages/lm_eval-0.4.13.dist-info"}) {
      std::filesystem::create_directories(folder_ / name);
    }
    test::write_file(folder_ / "packages/lm_eval/__init__.py", "");
    test::write_file(folder_ / "packages/lm_eval/__main__.py", kHarness);
    test::write_file(folder_ / "packages/lm_eval-0.4.13.dist-info/METADATA",
                     "Metadata-Version: 2.1\nName: lm_eval\nVersion: 0.4.13\n");
    ::setenv("PYTHONPATH", (folder_ / "packages").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("PYTHONPATH"); }
  ProgramResult eval(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), {"--task", "lm_eval"});
    return test::run_program({.arguments = arguments, .folder = folder_.path()});
  }
  void expect_table(const std::string& output, const std::string& name) {
    const json summary = json::parse(test::read_file(folder_ / (output + "/lm_eval.json")));
    EXPECT_EQ(summary.at("name"), name);
    EXPECT_EQ(summary.at("metrics").at("one/acc"), 0.25);
    EXPECT_EQ(summary.at("metrics").at("two/exact_match (strict)"), 1.0);
    // The server answered with this model's log-probability.
    EXPECT_GT(summary.at("metrics").at("one/perplexity").get<double>(), 1);
    const json& groups = summary.at("series").at("groups");
    ASSERT_EQ(groups.size(), 3U);
    EXPECT_EQ(groups[0].at("standard_error"), 0.125);
    EXPECT_FALSE(groups[1].contains("score"));  // no accuracy
    EXPECT_FALSE(groups[2].contains("standard_error"));
    EXPECT_EQ(summary.at("settings").at("harness"), "0.4.13");
    EXPECT_EQ(summary.at("settings").at("versions").at("two"), 3);
  }
  test::Served served_;
  test::TempDir folder_;
};

const std::string kPython = "--lm_eval.python=" REYNARD_TEST_PYTHON;

TEST_F(LmEvalTask, ServesTheModelAndReadsTheTable) {
  const ProgramResult result = eval({"small", kPython, "--lm_eval.tasks=one,two", "-o", "results"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("one/acc"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("a table"), std::string::npos) << "the harness's output has a file";
  expect_table("results", "small");
}

// The harness finds kept answers by the texts of a request alone.
TEST_F(LmEvalTask, AnswersUnderOtherSettingsAreOthers) {
  const auto answers_of = [&](const std::string& setting) {
    const ProgramResult result =
        eval({"small", kPython, "--lm_eval.tasks=one", "-o", "results", setting});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return test::read_file(folder_ / "results/lm_eval/harness.log");
  };
  const std::string answers = answers_of("--lm_eval.length=256");
  EXPECT_NE(answers.find("results/lm_eval/answers-"), std::string::npos) << answers;
  EXPECT_EQ(answers_of("--lm_eval.length=256"), answers);
  EXPECT_NE(answers_of("--lm_eval.length=512"), answers);
  EXPECT_NE(answers_of("--lm_eval.model_args=seed=1"), answers_of("--lm_eval.model_args=seed=2"));
}

TEST_F(LmEvalTask, AsksAnEndpoint) {
  const ProgramResult result = eval({"--endpoint",
                                     fmt::format("http://127.0.0.1:{}", served_.server.port()),
                                     kPython,
                                     "--lm_eval.tasks=one",
                                     "-o",
                                     "remote"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  expect_table("remote", "small");
}

TEST_F(LmEvalTask, FailuresAreOneLine) {
  const auto expect_error = [&](const std::vector<std::string>& arguments,
                                const std::string& part) {
    const ProgramResult result = eval(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  };
  expect_error({"small", kPython}, "--lm_eval.tasks=piqa,arc_easy");
  expect_error({"small", "--lm_eval.python=false", "--lm_eval.tasks=one"},
               "pip install 'lm_eval[api]==0.4.13'");
  expect_error({"small", "--lm_eval.python=/nowhere/python", "--lm_eval.tasks=one"},
               "cannot start /nowhere/python");
  expect_error({"small", "--lm_eval.python=/nowhere/python", "--lm_eval.tasks=one"},
               "name another Python with --lm_eval.python or $REYNARD_PYTHON");
  expect_error({"small", kPython, "--lm_eval.tasks=broken"}, "the harness ended with status 9");
  std::filesystem::create_directory(folder_ / "mine");
  test::write_file(folder_ / "mine/lm_eval.json", "my notes");
  expect_error({"small", kPython, "--lm_eval.tasks=one", "-o", "mine"},
               "mine/lm_eval.json exists and is not a summary of eval");
  // Weights of 8 bits are for the CPU.
  expect_error({"small", kPython, "--lm_eval.tasks=one", "--dtype", "int8", "--device", "cuda"},
               tensor::choose_device("auto").is_cuda() ? "the server did not start"
                                                       : "--device cuda: there is no NVIDIA GPU");
  expect_error({"--adapter", "true", "--lm_eval.tasks=one"}, "lm_eval needs MODEL or --endpoint");
}

}  // namespace
