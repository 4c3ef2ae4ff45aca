// reynard info and reynard score as a user runs them.

#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "reynard/tokenizer/utf8.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace reynard;
using nlohmann::json;
using test::ProgramResult;

const std::string kConfigs = REYNARD_SOURCE_DIR "/configs/";

void expect_error(const std::vector<std::string>& arguments, const std::string& part) {
  const ProgramResult result = test::run_program({.arguments = arguments});
  EXPECT_EQ(result.exit_code, 2) << result.errors;
  EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  EXPECT_EQ(result.output, "");
}

TEST(InfoCommand, CountsFlopsAsThePaper) {
  const ProgramResult result = test::run_program(
      {.arguments = {"info", kConfigs + "760m/fox-pro.toml", "--json", "--length", "16384"}});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const json info = json::parse(result.output);
  EXPECT_NEAR(info["flops_per_token_paper"].get<double>(), 2.727e9, 0.0005e9);
  EXPECT_EQ(info["non_embedding_parameters"], 759'512'640);
  EXPECT_EQ(info["parameters"], 759'512'640 + 50257 * 1536);
}

TEST(CostCommand, SharesAreThoseOfThePaper) {
  const std::vector<std::string> cost{
      "cost", kConfigs + "760m/fox-pro.toml", "--lengths", "4096,16384"};
  std::vector<std::string> as_json = cost;
  as_json.emplace_back("--json");
  const ProgramResult result = test::run_program({.arguments = as_json});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  std::istringstream lines(result.output);
  std::string line;
  for (const double share : {0.166, 0.443}) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_NEAR(json::parse(line)["attention"]["share"].get<double>(), share, 0.0005);
  }
  const ProgramResult table = test::run_program({.arguments = cost});
  EXPECT_NE(table.output.find("44.3 %"), std::string::npos) << table.output;
  expect_error({"cost", kConfigs + "760m/fox-pro.toml", "--lengths", "0"}, "--lengths = 0");
  expect_error({"cost", "nowhere"},
               "nowhere: does not exist; expected the folder of a model or of");
  expect_error({"cost", "/dev/null"}, "/dev/null: is another file; expected the folder of a model");
}

// Long names lose their beginning, by whole characters.
TEST(CostCommand, NamesAreCutBetweenCharacters) {
  const test::TempDir folder;
  for (const std::string end : {"", "a", "\xff"}) {
    std::string name;
    for (int i = 0; i < 40; ++i) name += "é";
    const std::filesystem::path experiment = folder / (name + end + ".toml");
    std::filesystem::copy_file(kConfigs + "quickstart/fox.toml", experiment);
    const ProgramResult result =
        test::run_program({.arguments = {"cost", experiment.string(), "--lengths", "16"}});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_TRUE(tokenizer::is_utf8(result.output)) << result.output;
    const std::string shown = end == "\xff" ? "\ufffd" : end;
    // 33 characters behind the ellipsis, then blanks up to the column of lengths.
    const int64_t letters = 33 - 5 - (end.empty() ? 0 : 1);
    const std::string cut = "\n…" + name.substr(0, 2 * letters) + shown + ".toml         16 ";
    EXPECT_NE(result.output.find(cut), std::string::npos) << result.output;
  }
}

TEST(CostCommand, MeasuresHowFastAModelReads) {
  const test::TempDir folder;
  models::Decoder decoder(test::attention_variants()[1].config, /*seed=*/3);
  models::save_model(decoder, folder / "model");
  const std::string model = (folder / "model").string();
  const std::string experiment = kConfigs + "quickstart/fox.toml";
  const ProgramResult result = test::run_program(
      {.arguments = {"cost", model, experiment, "--lengths", "16,64", "--measure", "--json"}});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  std::istringstream lines(result.output);
  int rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const json row = json::parse(line);
    EXPECT_GT(row["reading_tokens_per_s"].get<double>(), 0) << line;
    EXPECT_TRUE(row["training_tokens_per_s"].is_null()) << line;
  }
  EXPECT_EQ(rows, 4);
  expect_error({"cost", experiment, "--lengths", "16", "--measure", "--dtype", "int8"},
               "--dtype int8 needs the weights of a model folder");
}

TEST(InfoCommand, TableForPeople) {
  const ProgramResult result =
      test::run_program({.arguments = {"info", kConfigs + "125m/transformer-llama.toml"}});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("123,551,232"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("KV cache"), std::string::npos) << result.output;
}

TEST(InfoCommand, BadModels) {
  const test::TempDir folder;
  expect_error({"info"}, "MODEL");
  expect_error({"info", (folder / "nowhere").string()}, "nowhere: does not exist; expected the");
  expect_error({"info", folder.path().string()}, "holds no model: neither config.json nor");
  test::write_file(folder / "a.tokens", R"({"format":"reynard-tokens"})");
  expect_error({"info", (folder / "a.tokens").string()}, "is a token file; expected a model");
  for (const char* file : {"config.json", "model.safetensors"}) {
    test::write_file(folder / file, "{}");
    expect_error({"info", (folder / file).string()},
                 std::string(file) + ": is a file of a model; give its folder, " +
                     folder.path().string() + "\n");
    std::filesystem::remove(folder / file);
  }
  expect_error({"info", (folder / "e.toml").string(), "--length", "abc"},
               "--length: abc is no whole number; see `reynard info --help`");
  test::write_file(folder / "e.toml", "[data]\npath = \"x\"\n");
  expect_error({"info", (folder / "e.toml").string()}, "has no section [model]");
  test::write_file(folder / "e.toml", "[model]\nhidden_sizes = 3\n");
  expect_error({"info", (folder / "e.toml").string()}, "hidden_sizes");
  test::write_file(folder / "e.toml", "[model]\nnum_layer = 3\n");
  expect_error({"info", (folder / "e.toml").string()},
               "e.toml:2: model.num_layer is not a known key; did you mean model.num_layers?");
  test::write_file(folder / "e.toml", "[model.attention]\nnum_heads = 0\n");
  expect_error({"info", (folder / "e.toml").string()}, "e.toml:2");
}

TEST(ScoreCommand, SaysWhichRulePrunes) {
  const test::TempDir folder;
  models::DecoderConfig config = test::attention_variants()[1].config;
  test::write_file(folder / "ids.json", "[[1, 2, 3]]");
  const std::string model = (folder / "model").string(), ids = (folder / "ids.json").string();
  for (const double tolerance : {0.0, -10.0}) {
    config.attention.forget_gate = models::ForgetGate::kFull;
    config.attention.log_pruning_tolerance = tolerance;
    models::Decoder decoder(config, /*seed=*/3);
    models::save_model(decoder, model);
    const ProgramResult result = test::run_program({.arguments = {"score", model, "--ids", ids}});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    const bool said = result.errors.find("pruning: tight rule, at most e^-10") != std::string::npos;
    EXPECT_EQ(said, tolerance < 0) << result.errors;
  }
}

TEST(ScoreCommand, OneLinePerList) {
  const test::TempDir folder;
  models::Decoder decoder(test::attention_variants()[1].config, /*seed=*/3);
  models::save_model(decoder, folder / "model");
  const std::vector<std::vector<int64_t>> lists = {{1, 2, 3, 4, 5}, {7, 7}};
  test::write_file(folder / "ids.json", json(lists).dump());
  const std::string model = (folder / "model").string(), ids = (folder / "ids.json").string();
  const ProgramResult result = test::run_program({.arguments = {"score", model, "--ids", ids}});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  std::istringstream lines(result.output);
  for (const auto& list : lists) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const json scored = json::parse(line);
    const auto count = static_cast<int64_t>(list.size()) - 1;
    const at::Tensor all = at::tensor(list, at::kLong);
    const models::TokenScores expected = models::score(
        decoder, all.narrow(0, 0, count), at::zeros({1}, at::kLong), all.narrow(0, 1, count));
    ASSERT_EQ(scored["token_logprobs"].size(), count);
    EXPECT_NEAR(
        scored["token_logprobs"][0].get<double>(), expected.logprob[0].item<double>(), 1e-5);
    EXPECT_NEAR(scored["loss"].get<double>(), -expected.logprob.mean().item<double>(), 1e-5);
  }
  const ProgramResult piped =
      test::run_program({.arguments = {"score", model, "--ids", "-"}, .input_file = ids});
  EXPECT_EQ(piped.output, result.output) << piped.errors;
  const ProgramResult rounded =
      test::run_program({.arguments = {"score", model, "--ids", ids, "--dtype", "bf16"}});
  EXPECT_EQ(rounded.exit_code, 0) << rounded.errors;
  EXPECT_NE(rounded.output, result.output);

  expect_error({"score", model, "--ids", ids, "--dtype", "f8"}, "--dtype");
  expect_error({"score", model, "--ids", (folder / "none").string()}, "cannot be read");
  const auto bad = [&](const std::string& text, const std::string& part) {
    test::write_file(folder / "ids.json", text);
    expect_error({"score", model, "--ids", ids}, part);
  };
  bad("", "not a JSON list of lists");
  bad("{}", "not a JSON list of lists");
  bad("[[1]]", "list 0 must be a list of at least 2");
  bad("[[1, 2], 3]", "list 1 must be");
  bad("[[1, 48]]", "48 at position 1 is not a token id of 0 to 47");
  bad("[[1, -1]]", "-1 at position 1");
  bad("[[1, 2.5]]", "2.5 at position 1");
  bad("[[1, \"a\"]]", "at position 1");
  bad("[[1, 18446744073709551615]]", "at position 1");
}

TEST(ScoreCommand, CtrlCEndsAfterAWholeLine) {
  const test::TempDir folder;
  models::Decoder decoder(test::attention_variants()[1].config, /*seed=*/3);
  models::save_model(decoder, folder / "model");
  const std::vector<int64_t> list(40, 7);
  test::write_file(folder / "ids.json", json(std::vector(20000, list)).dump());
  const std::string output = (folder / "lines").string();
  const ProgramResult result = test::run_program(
      {.arguments = {"score", (folder / "model").string(), "--ids", (folder / "ids.json").string()},
       .output_file = output,
       .interrupt_at_file = output});
  EXPECT_EQ(result.exit_code, 130) << result.errors;
  std::istringstream lines(test::read_file(output));
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(json::parse(line).at("token_logprobs").size(), list.size() - 1);
  }
  EXPECT_NE(result.errors.find("stopped: " + std::to_string(count) + " of 20000 lists"),
            std::string::npos)
      << count << ": " << result.errors;
}

TEST(ScoreCommand, WeightsThatAreNotFiniteAreAnError) {
  const test::TempDir folder;
  models::Decoder decoder(test::attention_variants()[1].config, /*seed=*/3);
  decoder.parameters([](const std::string& /*name*/, models::Parameter& parameter) {
    parameter.value.detach().fill_(std::numeric_limits<float>::quiet_NaN());
  });
  models::save_model(decoder, folder / "model");
  test::write_file(folder / "ids.json", "[[1, 2, 3]]");
  expect_error({"score", (folder / "model").string(), "--ids", (folder / "ids.json").string()},
               "a log-probability of a list of 3 tokens is nan; weights that hold NaN");
}

}  // namespace
