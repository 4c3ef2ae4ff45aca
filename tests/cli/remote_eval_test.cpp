// reynard eval on models that it asks instead of running them: the numbers are those of the local
// model.

#include "reynard/models/pretrained.h"
#include "tests/serving/served.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

using namespace reynard;
using nlohmann::json;
using test::ProgramResult;

class RemoteEval : public testing::Test {
 protected:
  RemoteEval() {
    models::save_model(served_.decoder, folder_ / "run/model");
    test::write_file(folder_ / "run/run.json", R"({"name": "small", "train_length": 64})");
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {} is {}. ", i, i * i % 97);
    test::write_file(folder_ / "text.txt", text);
  }
  ProgramResult eval(const std::vector<std::string>& who, const std::string& output) {
    std::vector<std::string> arguments{"eval"};
    arguments.insert(arguments.end(), who.begin(), who.end());
    for (const char* more : {"--task",
                             "per_position_loss,forgetting_curve,perplexity,passkey",
                             "--text",
                             "text.txt",
                             "--train-length",
                             "64",
                             "--forgetting_curve.points=3",
                             "--passkey.lengths=420",
                             "--passkey.trials=3",
                             "--perplexity.tokens=2048",
                             "--perplexity.streams=3",
                             "--per_position_loss.rows=6",
                             "-o"}) {
      arguments.emplace_back(more);
    }
    arguments.push_back(output);
    return test::run_program({.arguments = arguments, .folder = folder_.path()});
  }
  json metrics(const std::string& output, const std::string& task) {
    return json::parse(test::read_file(folder_ / (output + "/" + task + ".json"))).at("metrics");
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}/v1", served_.server.port()); }

  test::Served served_;
  test::TempDir folder_;
};

// Log-probabilities are printed as f32 and computed by other batches: rounding only.
void expect_near(const json& a, const json& b, const std::string& where) {
  if (a.is_number_float()) {
    EXPECT_NEAR(a.get<double>(), b.get<double>(), 2e-4 * std::abs(a.get<double>())) << where;
  } else if (a.is_structured()) {
    ASSERT_EQ(a.size(), b.size()) << where;
    for (const auto& [key, value] : a.items()) {
      expect_near(value,
                  a.is_object() ? b.at(key) : b.at(static_cast<size_t>(std::stoul(key))),
                  where + "." + key);
    }
  } else {
    EXPECT_EQ(a, b) << where;
  }
}

TEST_F(RemoteEval, AnEndpointGivesTheNumbersOfTheLocalModel) {
  const ProgramResult local = eval({"run"}, "local");
  ASSERT_EQ(local.exit_code, 0) << local.errors;
  const ProgramResult remote = eval({"--endpoint", url(), "--tokenizer", "byte"}, "remote");
  ASSERT_EQ(remote.exit_code, 0) << remote.errors;
  for (const char* task : {"per_position_loss", "forgetting_curve", "perplexity", "passkey"}) {
    expect_near(metrics("local", task), metrics("remote", task), task);
  }
  const json summary = json::parse(test::read_file(folder_ / "remote/per_position_loss.json"));
  EXPECT_EQ(summary.at("name"), "small");  // the only model that the server lists
  EXPECT_EQ(summary.at("identity").at("endpoint"), url());
  EXPECT_EQ(summary.at("settings").at("bos"), 256);
  // A second run asks for nothing.
  const ProgramResult again = eval({"--endpoint", url(), "--tokenizer", "byte"}, "remote");
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(json::parse(test::read_file(folder_ / "remote/passkey.json"))
                .at("effort")
                .at("reused_samples"),
            3);
}

TEST_F(RemoteEval, BosAndEosOfATokenFileAreNamedAndLeftOutOneByOne) {
  const ProgramResult prepared = test::run_program(
      {.arguments = {"prepare", "text.txt", "-o", "data"}, .folder = folder_.path()});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.errors;
  const auto identity = [&](const std::vector<std::string>& marks) {
    std::vector<std::string> arguments{"eval",
                                       "--endpoint",
                                       url(),
                                       "--text",
                                       "data/train.tokens",
                                       "--task",
                                       "per_position_loss",
                                       "--length",
                                       "64",
                                       "-o",
                                       "marks"};
    arguments.insert(arguments.end(), marks.begin(), marks.end());
    const ProgramResult result =
        test::run_program({.arguments = arguments, .folder = folder_.path()});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return json::parse(test::read_file(folder_ / "marks/per_position_loss.json")).at("identity");
  };
  const json both = identity({});
  EXPECT_EQ(both.at("bos"), 256);
  EXPECT_EQ(both.at("eos"), 257);
  const json without_bos = identity({"--bos", "-1"});
  EXPECT_EQ(without_bos.at("bos"), nullptr);
  EXPECT_EQ(without_bos.at("eos"), 257);
  const json without_eos = identity({"--eos", "-1"});
  EXPECT_EQ(without_eos.at("bos"), 256);
  EXPECT_EQ(without_eos.at("eos"), nullptr);
}

TEST_F(RemoteEval, AnAdapterSaysWhatLengthIsExtrapolated) {
  test::write_file(folder_ / "adapter.py", R"(
import json, sys
print(json.dumps({"name": "flat", "vocab_size": 258, "train_length": 64}), flush=True)
for line in sys.stdin:
    predicted = len(json.loads(line)["tokens"]) - 1
    print(json.dumps({"logprobs": [-1.0] * predicted, "hits": [0] * predicted}), flush=True)
)");
  const ProgramResult result = test::run_program({.arguments = {"eval",
                                                                "--adapter",
                                                                REYNARD_TEST_PYTHON " adapter.py",
                                                                "--tokenizer",
                                                                "byte",
                                                                "--text",
                                                                "text.txt",
                                                                "--task",
                                                                "per_position_loss",
                                                                "--extrapolate",
                                                                "4",
                                                                "-o",
                                                                "flat"},
                                                  .folder = folder_.path()});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const json summary = json::parse(test::read_file(folder_ / "flat/per_position_loss.json"));
  EXPECT_EQ(summary.at("train_length"), 64);
  EXPECT_EQ(summary.at("settings").at("length"), 256);
}

TEST_F(RemoteEval, BadInputIsOneLine) {
  const auto expect_error = [&](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), {"--text", "text.txt"});
    const ProgramResult result =
        test::run_program({.arguments = arguments, .folder = folder_.path()});
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  };
  expect_error({}, "MODEL is required, or --endpoint, or --adapter");
  expect_error({"run", "--endpoint", url()}, "give either MODEL or --endpoint or --adapter");
  expect_error({"run", "--bos", "5"}, "--bos is for --endpoint or --adapter");
  expect_error({"run", "--attempts", "2"}, "--attempts is for --endpoint or --adapter");
  expect_error({"run", "--api-key-variable", "X"},
               "--api-key-variable is for --endpoint or --adapter");
  expect_error({"--endpoint", "host:8000"}, "the endpoint host:8000 is no URL");
  expect_error({"--endpoint", url()}, "there is no tokenizer of the model for text.txt");
  expect_error({"--endpoint", url(), "--tokenizer", "byte", "--task", "inside"},
               "inside needs a look inside the model");
  expect_error({"--endpoint", url(), "--tokenizer", "byte", "--task", "pruning"},
               "pruning needs a model with forget gates that runs here (no --endpoint");
  expect_error({"--endpoint",
                url(),
                "--endpoint-model",
                "other",
                "--tokenizer",
                "byte",
                "--task",
                "per_position_loss",
                "--length",
                "64"},
               "status 404");
  expect_error({"--endpoint", url(), "--attempts", "0"}, "--attempts = 0");
  expect_error({"--endpoint", url(), "--adapter", "cat"}, "either --endpoint or --adapter");
  for (const char* option : {"--dtype", "--device"}) {
    const std::string name = option, value = name == "--dtype" ? "f32" : "auto";  // the defaults
    expect_error({"--endpoint", url(), "--tokenizer", "byte", name, value},
                 "eval: " + name + " is not possible with --endpoint; leave it out");
    expect_error({"--adapter", "true", name, value},
                 "eval: " + name + " is not possible with --adapter; leave it out");
  }
  expect_error({"--adapter", "exit 7"}, "it ended with status 7");
  expect_error({"--adapter", "true", "--bos", "-3"}, "--bos = -3");
}

TEST_F(RemoteEval, AgreesWithTransformers) {
  const std::string command = fmt::format("timeout 200 {} {} {} {}",
                                          REYNARD_TEST_PYTHON,
                                          REYNARD_SOURCE_DIR "/tests/cli/transformers_agreement.py",
                                          REYNARD_BINARY_DIR "/bin/reynard",
                                          REYNARD_SOURCE_DIR "/examples/transformers_adapter.py");
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "the transformers package is not installed";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
