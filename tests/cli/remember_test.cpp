// reynard remember and eval --memory as a user runs them, and what is no memory of the model.

#include "reynard/checkpoint/directory.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/small_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using namespace reynard;
using test::ProgramResult;

// folder/run is a model without a memory, folder/model one with a memory in its second layer.
class Remember : public testing::Test {
 protected:
  Remember() {
    test::write_small_run(folder_.path());
    models::DecoderConfig config;
    config.hidden_size = 32;
    config.num_layers = 2;
    config.attention.num_heads = 2;
    config.mixer = "memory_attention";
    config.memory.window = 32;
    config.memory.layers = {1};
    models::Decoder decoder(config, 1);
    models::save_model(decoder, folder_ / "model");
  }
  ProgramResult run(const std::vector<std::string>& arguments) const {
    return test::run_program({.arguments = arguments, .folder = folder_.path()});
  }
  ProgramResult remember(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"remember",
                                          "model",
                                          "--text",
                                          "text.txt",
                                          "--tokenizer",
                                          "byte",
                                          "-o",
                                          "book",
                                          "--device",
                                          "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  static std::vector<std::string> eval(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval",
                                          "model",
                                          "--task",
                                          "perplexity",
                                          "--text",
                                          "text.txt",
                                          "--tokenizer",
                                          "byte",
                                          "--perplexity.tokens=200",
                                          "--device",
                                          "cpu",
                                          "-o",
                                          "results"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  void expect_error(const std::vector<std::string>& arguments, const std::string& message) const {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
  }
  test::TempDir folder_;
};

TEST_F(Remember, OnlyTheFilesOfLayersAreRead) {
  ASSERT_EQ(remember({"--tokens", "100"}).exit_code, 0);
  fs::create_directory(folder_ / "book/notes");
  ASSERT_EQ(::mkfifo((folder_ / "book/pipe").c_str(), 0600), 0);
  const ProgramResult result = run(eval({"--memory", "book"}));
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const auto identity =
      nlohmann::json::parse(test::read_file(folder_ / "results/perplexity.json")).at("identity");
  const std::string file = test::read_file(folder_ / "book/layer-1.memory");
  const nlohmann::json digests = {{"layer-1.memory", file.substr(file.size() - 64)}};
  EXPECT_EQ(identity.at("memory_files"), digests);
}

TEST_F(Remember, AFolderIsWrittenByOneProcess) {
  ASSERT_EQ(remember({"--tokens", "100"}).exit_code, 0);
  const std::string file = test::read_file(folder_ / "book/layer-1.memory");
  {
    const checkpoint::FolderLock lock(folder_ / "book");
    const ProgramResult second = remember({"--tokens", "50"});
    EXPECT_EQ(second.exit_code, 2);
    EXPECT_SAYS(second.errors, "book: another process is writing there");
  }
  EXPECT_TRUE(test::read_file(folder_ / "book/layer-1.memory") == file);
  ASSERT_EQ(remember({"--tokens", "50"}).exit_code, 0);
  EXPECT_FALSE(test::read_file(folder_ / "book/layer-1.memory") == file);

  // A folder that was made for what failed then is gone.
  expect_error({"remember", "run", "--text", "text.txt", "-o", "none"}, "memory_attention");
  EXPECT_FALSE(fs::exists(folder_ / "none"));
  fs::create_symlink("nowhere", folder_ / "link");
  expect_error({"remember", "model", "--text", "text.txt", "--tokenizer", "byte", "-o", "link"},
               "remember: link is a link that leads nowhere; remove it or name another folder");
}

// Where a memory lies changes no digit, and a text that begins with one goes on differently.
TEST_F(Remember, EveryPlaceGivesTheSameResults) {
  ASSERT_EQ(remember({"--tokens", "150", "--memory-place", "host"}).exit_code, 0);
  const std::string file = test::read_file(folder_ / "book/layer-1.memory");
  ASSERT_EQ(remember({"--tokens", "150"}).exit_code, 0);
  EXPECT_EQ(test::read_file(folder_ / "book/layer-1.memory"), file);
  const auto metrics = [&](const std::vector<std::string>& more) {
    // In a folder of its own: what was measured is not measured again.
    std::vector<std::string> arguments = eval({});
    arguments.back() = fmt::format("results{}", fmt::join(more, ""));
    const std::string folder = arguments.back();
    arguments.insert(arguments.end(), {"--memory", "book", "--memory-keys", "4"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return nlohmann::json::parse(test::read_file(folder_ / folder / "perplexity.json"))
        .at("metrics");
  };
  const nlohmann::json expected = metrics({});
  EXPECT_EQ(metrics({"--memory-place", "disk"}), expected);
  EXPECT_EQ(metrics({"--memory-place", "host"}), expected);
  EXPECT_EQ(metrics({"--memory-codes"}), expected);
  EXPECT_EQ(metrics({"--memory-place", "disk", "--memory-codes"}), expected);

  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"generate",
                                          "model",
                                          "the memory of",
                                          "--tokenizer",
                                          "byte",
                                          "--device",
                                          "cpu",
                                          "--json",
                                          "--logprobs",
                                          "1",
                                          "--temperature",
                                          "0",
                                          "--max-tokens",
                                          "40"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return nlohmann::json::parse(result.output);
  };
  const nlohmann::json with = text({"--memory", "book"});
  EXPECT_EQ(text({"--memory", "book", "--memory-place", "disk"}).at("tokens"), with.at("tokens"));
  EXPECT_NE(text({}).at("tokens"), with.at("tokens"));
}

TEST_F(Remember, WhatIsNoMemoryOfTheModelIsAnError) {
  expect_error(eval({"--memory", "text.txt"}),
               "text.txt: is a file; expected a folder of `reynard remember`");
  fs::create_directory(folder_ / "book");
  expect_error(
      eval({"--memory", "book"}),
      "book/layer-1.memory: cannot be opened: No such file or directory; make it anew with "
      "`reynard remember`");
  ASSERT_EQ(remember({"--tokens", "100"}).exit_code, 0);
  expect_error(eval({"--memory", "book", "--dtype", "bf16"}),
               "its keys are float32, those of the model as it computes here bfloat16; give "
               "`reynard remember` and this command the same --dtype");
  fs::remove(folder_ / "book/layer-1.memory");
  ASSERT_EQ(::mkfifo((folder_ / "book/layer-1.memory").c_str(), 0600), 0);
  expect_error(eval({"--memory", "book"}), "layer-1.memory: is not a file");
}

TEST_F(Remember, FilesOfOthersAreLeftAlone) {
  fs::create_directory(folder_ / "book");
  test::write_file(folder_ / "book/notes.txt", "mine");
  const ProgramResult result = remember({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_SAYS(result.errors, "book holds notes.txt, which is no memory; name another folder");
}

TEST_F(Remember, LayersOfAnEarlierMemoryAreRemoved) {
  ASSERT_EQ(remember({"--tokens", "100"}).exit_code, 0);
  test::write_file(folder_ / "book/mine.memory", "another's");
  models::DecoderConfig config = models::load_config(folder_ / "model");
  config.memory.layers = {0};
  models::Decoder decoder(config, 1);
  models::save_model(decoder, folder_ / "model");
  const ProgramResult again = remember({"--tokens", "100"});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_TRUE(fs::exists(folder_ / "book/layer-0.memory"));
  EXPECT_FALSE(fs::exists(folder_ / "book/layer-1.memory"));
  EXPECT_TRUE(fs::exists(folder_ / "book/mine.memory"));
}

TEST_F(Remember, SaysHowManyTokensItKept) {
  const ProgramResult first = remember({"--tokens", "100"});
  EXPECT_SAYS(first.output, "book: 100 tokens\n");
  const std::string replaced = "book: the memory that is there is replaced\n";
  EXPECT_EQ(first.errors.find(replaced), std::string::npos) << first.errors;
  EXPECT_SAYS(remember({"--tokens", "100"}).errors, replaced);
  models::DecoderConfig config = models::load_config(folder_ / "model");
  config.memory.capacity = 64;
  models::Decoder decoder(config, 1);
  models::save_model(decoder, folder_ / "model");
  EXPECT_SAYS(remember({"--tokens", "100"}).output, "book: 64 tokens, the newest of 100\n");
}

TEST_F(Remember, AMissingMemoryIsToldBeforeWeightsAreRead) {
  test::write_file(folder_ / "model/model.safetensors", "no weights");
  const std::string message = "nowhere: does not exist; expected a folder of `reynard remember`";
  expect_error(eval({"--memory", "nowhere"}), message);
  expect_error({"generate", "model", "text", "--tokenizer", "byte", "--memory", "nowhere"},
               message);
  expect_error({"chat", "model", "--tokenizer", "byte", "--memory", "nowhere"}, message);
  expect_error({"serve", "model", "--tokenizer", "byte", "--memory", "nowhere"}, message);
}

// A long text would be read for nothing.
TEST_F(Remember, AModelWhoseMemoryIsNotKeptIsToldBeforeTextAndWeightsAreRead) {
  const std::vector<std::string> remember = {
      "remember", "model", "--text", "nowhere.txt", "--tokenizer", "byte", "-o", "book"};
  const auto write_model = [&](const models::DecoderConfig& config) {
    models::Decoder decoder(config, 1);
    models::save_model(decoder, folder_ / "model");
    test::write_file(folder_ / "model/model.safetensors", "no weights");
  };
  const models::DecoderConfig config = models::load_config(folder_ / "model");
  models::DecoderConfig without = config, decaying = config;
  without.memory.layers = {};
  write_model(without);
  expect_error(remember,
               "saved memory: model.memory.layers = empty; expected layers with a memory");
  decaying.attention.forget_gate = models::ForgetGate::kFull;
  decaying.memory.decay = models::MemoryDecay::kDistance;
  write_model(decaying);
  const std::string decays = "saved memory: model.memory.decay = \"distance\" needs the place of";
  expect_error(remember, decays);
  fs::create_directory(folder_ / "none");
  test::write_file(folder_ / "none/layer-1.memory", "no memory");
  expect_error(eval({"--memory", "none"}), decays);
  expect_error({"remember", "run", "--text", "nowhere.txt", "-o", "book"}, "memory_attention");
}

TEST_F(Remember, TasksThatLookInsideAreNotMeasuredBehindAMemory) {
  ASSERT_EQ(remember().exit_code, 0);
  for (const std::string task : {"inside", "pruning"}) {
    expect_error(eval({"--task", task, "--memory", "book"}),
                 "eval: " + task +
                     " needs what attention reads of a saved memory, which this model cannot be "
                     "asked for: leave --memory out");
  }
}

TEST_F(Remember, OptionsThatCannotBeNameThemselves) {
  expect_error(eval({"--memory", ""}),
               "--memory: is empty; expected a folder of `reynard remember`");
  expect_error(eval({"--memory", "book", "--memory-tokens", "0"}),
               "eval: --memory-tokens 0 leaves no room for --memory book; leave one of them out");
  for (const char* option : {"--memory", "--memory-tokens", "--memory-keys"}) {
    const std::string name = option, value = name == "--memory" ? "book" : "4";
    expect_error({"eval", "run", "--text", "text.txt", name, value},
                 "eval: " + name + " needs a model with a memory; run has none");
    expect_error({"eval", "--endpoint", "http://127.0.0.1:1/v1", "--text", "text.txt", name, value},
                 "eval: " + name + " is not possible with --endpoint; leave it out");
    expect_error({"eval", "--adapter", "true", "--text", "text.txt", name, value},
                 "eval: " + name + " is not possible with --adapter; leave it out");
    expect_error({"eval", "model", "--task", "lm_eval", name, value},
                 "eval: " + name + " is not possible with the task lm_eval; leave it out");
  }
  expect_error(eval({"--memory-place", "disk"}),
               "eval: --memory-place disk is for the files of --memory FOLDER");
  expect_error(eval({"--memory-tokens", "0", "--memory-keys", "8"}),
               "eval: --memory-tokens 0 leaves nothing for --memory-keys");
  expect_error(eval({"--memory-tokens", "0", "--memory-place", "host"}),
               "eval: --memory-tokens 0 leaves nothing for --memory-place");
  expect_error(eval({"--memory-keys", "0"}),
               "--memory-keys: 0; expected all, or a decimal number from 1 to 2^56");
  for (const char* number : {"72057594037927937", "9000000000000000000", "-1"}) {
    expect_error(eval({"--memory-tokens", number}),
                 std::string("--memory-tokens: ") + number +
                     "; expected all, or a decimal number from 0 to 2^56");
  }
  expect_error(eval({"--memory", "book", "--checkpoints", "all"}),
               "eval: --memory is of one model's weights and --checkpoints measures several");
  expect_error(eval({"--memory-codes"}),
               "eval: --memory-codes is for a search of the best keys; give --memory-keys K");
  expect_error({"generate", "run", "text", "--memory-place", "host"},
               "generate: --memory-place needs a model with a memory; run has none");
  expect_error({"eval", "--endpoint", "http://127.0.0.1:1/v1", "--text", "a", "--memory-codes"},
               "eval: --memory-codes is not possible with --endpoint; leave it out");
  const ProgramResult none = remember({"--tokens", "0"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.errors.find("--tokens: 0; expected a number above 0"), std::string::npos)
      << none.errors;
  expect_error({"generate", "model", "--tokenizer", "byte", "--evict-measured"},
               "--evict-measured: the model reads local contexts, whose pages are freed when they "
               "end; leave the option out");
}

}  // namespace
