// reynard tokenizer, and how a tokenizer goes from prepare into the model and from there to those
// who use it.

#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace reynard;
namespace fs = std::filesystem;
using nlohmann::json;
using test::ProgramResult;

class TokenizerCommand : public testing::Test {
 protected:
  TokenizerCommand() {
    setenv("OMP_NUM_THREADS", "1", 1);
    test::write_file(folder_ / "gpt2.json", test::byte_level_json().dump());
  }
  ProgramResult run(std::vector<std::string> arguments, const std::string& input = "") {
    test::write_file(folder_ / "input", input);
    return test::run_program({.arguments = std::move(arguments),
                              .folder = folder_.path(),
                              .input_file = (folder_ / "input").string()});
  }
  ProgramResult succeed(std::vector<std::string> arguments, const std::string& input = "") {
    ProgramResult result = run(std::move(arguments), input);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result;
  }
  void expect_error(std::vector<std::string> arguments,
                    const std::string& input,
                    const std::string& part) {
    const ProgramResult result = run(std::move(arguments), input);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  }
  test::TempDir folder_;
};

TEST_F(TokenizerCommand, MapsJsonLinesBothWays) {
  const std::string strings = "\"hello the\"\n\n \"\\u00e9<|endoftext|>\" \r\n\"\xff\"\n\"\"\n";
  EXPECT_EQ(succeed({"tokenizer", "encode", "gpt2.json"}, strings).output,
            "[262, 258]\n[267, 269]\n[239, 191, 189]\n[]\n");
  EXPECT_EQ(succeed({"tokenizer", "decode", "gpt2.json"}, "[262, 258]\n[195, 269]\n[]\n").output,
            "\"hello the\"\n\"\\ufffd\"\n\"\"\n");
  EXPECT_EQ(succeed({"tokenizer", "decode", "--special", "gpt2.json"}, "[262, 269]\n").output,
            "\"hello<|endoftext|>\"\n");
  test::write_file(folder_ / "llama.json", test::metaspace_json().dump());
  EXPECT_EQ(succeed({"tokenizer", "encode", "llama.json"}, "\"the\"").output, "[1, 268]\n");
  EXPECT_EQ(succeed({"tokenizer", "encode", "--no-special", "llama.json"}, "\"the\"").output,
            "[268]\n");
}

TEST_F(TokenizerCommand, BadLinesAreNamed) {
  expect_error({"tokenizer", "encode", "gpt2.json"}, "\"a\"\nb\n", "line 2: is not a JSON string");
  expect_error({"tokenizer", "decode", "gpt2.json"}, "[1.5]\n", "line 1: is not a JSON list of");
  expect_error({"tokenizer", "decode", "gpt2.json"},
               "[1, 270]\n",
               "line 1: decode: ids[1] = 270; expected 0 ... 269");
  expect_error({"tokenizer", "decode", "gpt2.json"},
               "[18446744073709551615]",
               "line 1: is not a JSON list of");
  expect_error({"tokenizer", "encode", "none.json"}, "", "none.json");
  expect_error({"tokenizer"}, "", "reynard tokenizer --help");
}

TEST_F(TokenizerCommand, LearnsAVocabulary) {
  fs::create_directory(folder_ / "text");
  std::string text;
  for (int i = 0; i < 500; ++i)
    text += "the hello " + std::to_string(i % 10) + " worlds<|endoftext|>";
  test::write_file(folder_ / "text/a.txt", text);
  test::write_file(folder_ / "text/b.jsonl", "{\"text\": \"the world\"}\n{\"text\": \"hello\"}\n");
  const std::vector<std::string> train = {
      "tokenizer", "train", "text", "-o", "new/tokenizer.json", "--vocab-size", "275"};
  EXPECT_EQ(succeed(train).output,
            "new/tokenizer.json: 275 tokens, learnt from 15 different pieces of text\n");
  const std::string once = test::read_file(folder_ / "new/tokenizer.json");
  auto alone = train;
  alone.insert(alone.end(), {"--threads", "1"});
  succeed(alone);
  EXPECT_EQ(test::read_file(folder_ / "new/tokenizer.json"), once);
  EXPECT_EQ(succeed({"tokenizer", "encode", "new"}, "\"the<|endoftext|>\"").output, "[260, 274]\n");
  auto many = train;
  many.back() = "5000";
  EXPECT_NE(succeed(many).output.find("no other pair of tokens occurs 2 times"), std::string::npos);
  const auto bad = [&](const std::vector<std::string>& more, const std::string& part) {
    auto arguments = train;
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_error(arguments, "", part);
  };
  bad({"--min-count", "0"}, "--min-count 0; expected at least 1");
  bad({"--special", "a,a"}, "--special needs different tokens");
  bad({"--pattern", "bert"}, "--pattern");
  bad({"--threads", "-1"}, "--threads -1");
  many.back() = "256";
  expect_error(many, "", "--vocab-size 256; expected 257");
  expect_error({"tokenizer", "train", "text", "-o", "text"}, "", "is a folder; name a file");
  expect_error({"tokenizer", "train", "none", "-o", "x.json"}, "", "none: there is no such file");
}

TEST_F(TokenizerCommand, DoesNotLearnFromItsOutput) {
  fs::create_directories(folder_ / "text");
  test::write_file(folder_ / "text/a.txt", "the hello the world");
  fs::create_symlink("text", folder_ / "link");
  const std::vector<std::string> train = {
      "tokenizer", "train", "text", "-o", "link/tokenizer.json", "--vocab-size", "600"};
  const std::string said = succeed(train).output;
  const std::string once = test::read_file(folder_ / "text/tokenizer.json");
  EXPECT_EQ(succeed(train).output, said);
  EXPECT_EQ(test::read_file(folder_ / "text/tokenizer.json"), once);
}

// A vocabulary has each token once.
TEST_F(TokenizerCommand, SpecialTokensAreNoOthers) {
  test::write_file(folder_ / "a.txt", "b a b a b a");
  const auto train = [](const std::string& text, const std::string& special) {
    return std::vector<std::string>{
        "tokenizer", "train", text, "-o", "new.json", "--vocab-size", "300", "--special", special};
  };
  for (const std::string token : {"\xc2\xa7", "a", "|", "\xc4\xa0"}) {
    expect_error(train("none.txt", token),
                 "",
                 "tokenizer train: --special " + token + ": is the token of a byte");
  }
  for (const auto& [token, shown] : {std::pair{"\xff", "\\xff"}, std::pair{"<\xc3>", "<\\xc3>"}}) {
    expect_error(train("none.txt", token),
                 "",
                 std::string("tokenizer train: --special \"") + shown + "\": is not UTF-8");
  }
  expect_error(train("a.txt",
                     "<s>,\xc4\xa0"
                     "a"),
               "",
               "tokenizer train: --special \xc4\xa0"
               "a: is a token that was learnt");
  EXPECT_FALSE(fs::exists(folder_ / "new.json"));
  succeed(train("a.txt", "\xe2\x82\xac"));  // a character that stands for no byte
  succeed({"info", "new.json"});
}

TEST_F(TokenizerCommand, WhatIsNoTokenizerIsNotOverwritten) {
  const std::string lines = "{\"text\": \"the world\"}\n{\"text\": \"the hello\"}\n";
  test::write_file(folder_ / "x.jsonl", lines);
  fs::create_symlink("x.jsonl", folder_ / "link");
  const auto train = [](const std::string& output) {
    return std::vector<std::string>{
        "tokenizer", "train", "x.jsonl", "-o", output, "--vocab-size", "260"};
  };
  expect_error(train("x.jsonl"), "", "tokenizer train: -o x.jsonl: is the text that is read");
  expect_error(train("link"), "", "tokenizer train: -o link: is the text that is read");
  EXPECT_EQ(test::read_file(folder_ / "x.jsonl"), lines);
  for (const std::string& other : {lines, std::string("{\"model\": {\"layers\": 2}}")}) {
    test::write_file(folder_ / "other.json", other);
    expect_error(train("other.json"),
                 "",
                 "tokenizer train: -o other.json: the file exists and is not a tokenizer.json");
    EXPECT_EQ(test::read_file(folder_ / "other.json"), other);
  }
  succeed(train("new.json"));
  succeed(train("new.json"));
}

TEST_F(TokenizerCommand, WrongUsageNamesItsOwnHelp) {
  const test::ProgramResult result =
      test::run_program({.arguments = {"tokenizer", "train", "text.txt"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("see `reynard tokenizer train --help`"), std::string::npos)
      << result.errors;
}

TEST_F(TokenizerCommand, InfoDescribesTokenizers) {
  EXPECT_EQ(succeed({"info", "gpt2.json"}).output,
            "byte-level BPE, 270 tokens, BOS 269, EOS 269\n");
  const json info = json::parse(succeed({"info", "--json", "byte"}).output);
  EXPECT_EQ(info["vocab_size"], 258);
  EXPECT_EQ(info["bos"], 256);
}

TEST_F(TokenizerCommand, GoesFromPrepareIntoTheModelAndOn) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the hello " + std::to_string(i * i % 97) + " \xc3\xa9\n";
  test::write_file(folder_ / "text.txt", text);
  test::write_file(folder_ / "e.toml",
                   "[model]\nhidden_size = 16\nnum_layers = 1\nintermediate_size = 16\n"
                   "vocab_size = 272\n[model.attention]\nnum_heads = 2\n[data]\n"
                   "path = \"text/train.tokens\"\nbatch_size = 2\nlength = 32\n[training]\n"
                   "tokens = 128\n[run]\nfolder = \"run\"\n");
  succeed({"prepare", "text.txt", "-o", "text", "--tokenizer", "gpt2.json"});
  succeed({"train", "e.toml"});
  for (const char* kept : {"run/model/tokenizer.json", "text.txt"}) {
    ASSERT_TRUE(fs::exists(folder_ / kept)) << kept;
  }
  EXPECT_EQ(succeed({"tokenizer", "encode", "run/model"}, "\"hello\"").output, "[262]\n");
  const json info = json::parse(succeed({"info", "run", "--json"}).output);
  EXPECT_EQ(info["tokenizer"]["vocab_size"], 270);

  // Texts and their ids are scored alike.
  test::write_file(folder_ / "texts.json", "[\"hello the\"]");
  test::write_file(folder_ / "ids.json", "[[262, 258]]");
  const json by_text = json::parse(succeed({"score", "run", "--texts", "texts.json"}).output);
  const json by_ids = json::parse(succeed({"score", "run", "--ids", "ids.json"}).output);
  EXPECT_EQ(by_text["ids"], (std::vector<int>{262, 258}));
  EXPECT_EQ(by_text["token_logprobs"], by_ids["token_logprobs"]);
  expect_error({"score", "run"}, "", "--help");
  expect_error({"score", "run", "--texts", "ids.json"}, "", "text 0 is not a JSON string");

  // eval takes text with the model's tokenizer, and no token file of another one.
  const std::vector<std::string> eval = {
      "eval", "run", "--task", "per_position_loss", "--length", "64", "--text"};
  auto with = [&](const std::string& name) {
    auto arguments = eval;
    arguments.push_back(name);
    return arguments;
  };
  succeed(with("text.txt"));
  succeed({"prepare", "text.txt", "-o", "bytes"});
  expect_error(with("bytes/train.tokens"), "", "are of different tokenizers: the token");
}

}  // namespace
