// reynard serve as a user runs it, asked by the openai package.

#include "reynard/models/pretrained.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

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

TEST(ServeCommand, OpenAiPackageWorks) {
  const test::TempDir folder;
  const std::string command =
      std::string("timeout 100 " REYNARD_TEST_PYTHON " " REYNARD_SOURCE_DIR
                  "/tests/cli/openai_client.py " REYNARD_BINARY_DIR "/bin/reynard ") +
      save_byte_model(folder);
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "the openai package is not installed";
  EXPECT_EQ(WEXITSTATUS(status), 0);
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
  expect_error({"--host", "192.0.2.1", "--port", "0"}, "cannot be had");
  expect_error({"--chat-template", "nonsense"}, "chatml, llama3, llama2");
  expect_error({"--max-batch", "0"}, "--max-batch");
  expect_error({"--cache-gb", "-1"}, "--cache-gb");
}

}  // namespace
