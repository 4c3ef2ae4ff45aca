// Bits per byte of a text of many short documents: with a tokenizer of bytes those of a token of
// the text, as BOS and EOS have no bytes.

#include "tests/cli/eval_command.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

namespace {

using namespace reynard;
using nlohmann::json;
using test::EvalCommand;

TEST_F(EvalCommand, BitsPerByteAreThoseOfTheTokensInItsRows) {
  std::string documents;
  for (int i = 0; i < 500; ++i) documents += json{{"text", "twenty bytes of text"}}.dump() + "\n";
  test::write_file(folder_ / "short.jsonl", documents);
  for (const bool across : {false, true}) {
    const test::ProgramResult eval =
        run({"eval",
             "run",
             "--text",
             "short.jsonl",
             "--task",
             "per_position_loss",
             "--length",
             "20",
             std::string("--per_position_loss.across_documents=") + (across ? "true" : "false")});
    ASSERT_EQ(eval.exit_code, 0) << eval.errors;
    const json metrics =
        json::parse(test::read_file(folder_ / "run/eval/per_position_loss.json")).at("metrics");
    const double bits = metrics.at("loss").get<double>() / std::log(2.0);
    // Rows across documents hold BOS and EOS beside every twenty bytes.
    EXPECT_NEAR(metrics.at("bits_per_byte").get<double>(), across ? bits * 22 / 20 : bits, 1e-9);
  }
}

}  // namespace
