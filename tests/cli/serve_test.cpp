// reynard serve as a user runs it, asked by the openai package.

#include "reynard/models/pretrained.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace {

using namespace reynard;

std::string save_byte_model(const test::TempDir& folder) {
  models::DecoderConfig config = test::small_config();
  config.vocab_size = 258;
  models::Decoder decoder(config, /*seed=*/3);
  test::spread_weights(decoder, 4);
  models::save_model(decoder, folder / "model");
  return (folder / "model").string();
}

// A model with a byte-pair tokenizer.json beside it, as `transformers` opens it too.
std::string save_byte_pair_model(const test::TempDir& folder) {
  models::DecoderConfig config = test::small_config();
  config.vocab_size = 270;
  models::Decoder decoder(config, /*seed=*/3);
  test::spread_weights(decoder, 4);
  const std::filesystem::path model = folder / "model";
  models::save_model(decoder, model);
  nlohmann::json tokenizer = test::byte_level_json();
  // What its library asks for and ours takes as given.
  for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
    tokenizer["added_tokens"][0][key] = false;
  }
  for (const char* part : {"pre_tokenizer", "post_processor", "decoder"}) {
    tokenizer[part]["trim_offsets"] = tokenizer[part]["use_regex"] = true;
  }
  test::write_file(model / "tokenizer.json", tokenizer.dump());
  test::write_file(model / "tokenizer_config.json",
                   R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false,
                       "eos_token": "<|endoftext|>", "clean_up_tokenization_spaces": false})");
  return model.string();
}

// Runs tests/cli/SCRIPT PROGRAM MODEL; 77: what it needs is not installed, and it said so.
int run_script(const std::string& script, const std::string& model, int seconds = 100) {
  const char* other = std::getenv("REYNARD_LM_EVAL_PYTHON");
  const bool is_harness = script == "lm_eval_client.py" && other != nullptr;
  const std::string command = "timeout " + std::to_string(seconds) + " " +
                              (is_harness ? other : REYNARD_TEST_PYTHON) +
                              " " REYNARD_SOURCE_DIR "/tests/cli/" + script +
                              " " REYNARD_BINARY_DIR "/bin/reynard " + model;
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ServeCommand, OpenAiPackageWorks) {
  const test::TempDir folder;
  const int code = run_script("openai_client.py", save_byte_model(folder));
  if (code == 77) GTEST_SKIP() << "the openai package is not installed";
  EXPECT_EQ(code, 0);
}

// $REYNARD_LM_EVAL_PYTHON: a Python that has the harness (it brings 45 packages).
TEST(ServeCommand, EvaluationHarnessWorks) {
  const test::TempDir folder;
  const int code = run_script("lm_eval_client.py", save_byte_pair_model(folder), 400);
  if (code == 77) GTEST_SKIP() << "pip install 'lm_eval[api]==0.4.13' transformers";
  EXPECT_EQ(code, 0);
}

TEST(ServeCommand, PageWorksInABrowser) {
  const test::TempDir folder;
  const int code = run_script("page_in_browser.py", save_byte_model(folder));
  if (code == 77) GTEST_SKIP() << "there is no chromium; apt-get install chromium";
  EXPECT_EQ(code, 0);
}

// Clients of all kinds for a few seconds; load_test.py by itself runs for minutes.
TEST(ServeCommand, StandsALoad) {
  const test::TempDir folder;
  EXPECT_EQ(run_script("load_test.py",
                       save_byte_model(folder) + " --seconds 6 --clients 24 --longest 600"),
            0);
}

TEST(ServeCommand, BadInput) {
  const test::TempDir folder;
  const std::string model = save_byte_model(folder);
  const auto expect_error = [&](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), {"serve", model});
    const test::ProgramResult result = test::run_program({.arguments = arguments});
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  };
  expect_error({"--port", "99999"}, "--port");
  expect_error({"--host", "no such host"}, "--host no such host: the name has no address (");
  expect_error({"--chat-template", "nonsense"}, "chatml, llama2, llama3");
  expect_error({"--max-batch", "0"}, "--max-batch");
  expect_error({"--cache-gb", "-1"}, "--cache-gb");
  std::filesystem::remove_all(model);  // said before a model is read
  expect_error({"--host", "192.0.2.1", "--port", "0"}, "192.0.2.1:0 cannot be had: Cannot assign");
}

}  // namespace
