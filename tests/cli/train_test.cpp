// reynard train as a user runs it: what it writes and what it refuses.

#include "reynard/checkpoint/directory.h"
#include "reynard/data/token_file.h"
#include "reynard/models/registry.h"
#include "tests/cli/train_command.h"
#include "tests/support/eventually.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace reynard;
namespace fs = std::filesystem;
using test::kTokensPerStep;
using test::ProgramResult;
using test::TrainCommand;

TEST_F(TrainCommand, WritesTheRunFolder) {
  const ProgramResult result =
      train("run", {"--validation.path=text/held_out.tokens", "--validation.tokens=256"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("run: 50 steps, 3200 tokens"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("held-out loss"), std::string::npos) << result.output;
  for (const char* file : {"run/experiment.toml",
                           "run/run.json",
                           "run/result.json",
                           "run/metrics.jsonl",
                           "run/model/config.json",
                           "run/model/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder_ / file)) << file;
  }
  EXPECT_EQ(json("run/run.json").at("name"), "run");
  EXPECT_EQ(json("run/run.json").at("train_length"), 32);
  EXPECT_EQ(json("run/result.json").at("tokens"), 3200);
  // Two newest and the two permanent ones (1600 and 3200 tokens); the newest is permanent.
  EXPECT_EQ(
      checkpoints("run"),
      (std::vector<std::string>{
          "step-000000000025", "step-000000000048", "step-000000000049", "step-000000000050"}));
  std::istringstream metrics(test::read_file(folder_ / "run/metrics.jsonl"));
  int64_t lines = 0;
  double first_loss = 0, last_loss = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.at("step"), 5 * (lines + 1));
    for (const char* key : {"tokens",
                            "lr",
                            "grad_norm",
                            "tokens_per_s",
                            "seconds",
                            "skipped_steps",
                            "peak_memory_bytes",
                            "gates_closed",
                            "gates_open"}) {
      EXPECT_TRUE(object.at(key).is_number()) << key;
    }
    (lines == 0 ? first_loss : last_loss) = object.at("loss");
  }
  EXPECT_EQ(lines, 10);
  EXPECT_LT(last_loss, first_loss - 1);
}

// Each step is followed by a measurement of many times its tokens, and by a checkpoint.
TEST_F(TrainCommand, TheRateIsThatOfTheStepsAlone) {
  ASSERT_EQ(train("run",
                  {"--training.tokens=1280",
                   "--validation.path=text/train.tokens",
                   "--validation.tokens=1000000000",
                   "--validation.every=64"})
                .exit_code,
            0);
  std::istringstream metrics(test::read_file(folder_ / "run/metrics.jsonl"));
  double in_steps = 0, seconds = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.contains("validation_loss"), object.at("step") < 20);
    in_steps += kTokensPerStep / object.at("tokens_per_s").get<double>();
    seconds = object.at("seconds");
  }
  EXPECT_LT(in_steps, seconds / 4);
}

TEST_F(TrainCommand, HelpNamesTheMixers) {
  const std::string help = run({"train", "--help"}).output;
  for (const models::MixerEntry& mixer : models::mixers()) {
    const std::string name(mixer.name);
    EXPECT_TRUE(
        std::regex_search(help, std::regex("model\\.mixer = [^;]*;[^;]*: [^;]*\\b" + name + "\\b")))
        << name;
  }
}

TEST_F(TrainCommand, RefusesAFolderThatIsNotEmpty) {
  ASSERT_EQ(train("run", {"--training.tokens=128"}).exit_code, 0);
  const ProgramResult again = train("run", {"--training.tokens=128"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.errors.find("is not empty; add --resume"), std::string::npos) << again.errors;
  expect_refused("run", {"--resume", "--model.hidden_size=32"}, "section [model] differs");
  // Its weights are those of the run, not of where another one would start.
  expect_refused("run", {"--resume", "--run.start_from=run/model"}, "run.start_from differs");
}

TEST_F(TrainCommand, ARunInThisFolderHasTheFoldersName) {
  fs::create_directory(folder_ / "here");
  const ProgramResult result = test::run_program({.arguments = {"train",
                                                                "../tiny.toml",
                                                                "--run.folder=.",
                                                                "--data.path=../text/train.tokens",
                                                                "--training.tokens=64"},
                                                  .folder = (folder_ / "here").string()});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(json("here/run.json").at("name"), "here");
  EXPECT_TRUE(result.errors.starts_with("here ")) << result.errors;  // the line of progress
}

// A second process would write the same checkpoints and lines.
TEST_F(TrainCommand, AFolderBelongsToOneProcess) {
  fs::create_directories(folder_ / "run");
  {
    const checkpoint::FolderLock lock(folder_ / "run");
    const ProgramResult result = train("run", {"--training.tokens=128"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find("run: another process is writing there"), std::string::npos)
        << result.errors;
    EXPECT_TRUE(fs::is_empty(folder_ / "run"));
    // Once it has written it is still not there to be resumed.
    test::write_file(folder_ / "run/run.json", "{}");
    expect_refused("run", {"--training.tokens=128"}, "run: another process is writing there");
    fs::remove(folder_ / "run/run.json");
    // What the other one has written is not this one's to remove.
    std::ofstream(folder_ / "run/experiment.toml") << "\n";
    EXPECT_EQ(train("run", {"--resume", "--training.tokens=128"}).exit_code, 2);
    EXPECT_TRUE(fs::exists(folder_ / "run/experiment.toml"));
    fs::remove(folder_ / "run/experiment.toml");
  }
  EXPECT_EQ(train("run", {"--training.tokens=128"}).exit_code, 0);
}

// The second of two that begin at once loses while the first one makes its model, and leaves alone
// what that one writes.
TEST_F(TrainCommand, OfTwoThatBeginAtOnceOneIsRefused) {
  std::jthread other([&] { EXPECT_EQ(train("run", {"--training.tokens=1280"}).exit_code, 0); });
  ASSERT_TRUE(test::eventually([&] { return fs::exists(folder_ / "run"); }));
  const ProgramResult second = train("run", {"--training.tokens=1280"});
  other.join();
  EXPECT_EQ(second.exit_code, 2);
  for (const char* file : {"run.json", "experiment.toml", "metrics.jsonl", "result.json"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / file)) << file;
  }
}

TEST_F(TrainCommand, MistakesAreReportedTogetherWithTheirPlace) {
  const ProgramResult result = train("run",
                                     {"--training.tokens=0",
                                      "--optimizer.beta1=1",
                                      "--schedule.warmup_tokens=5",
                                      "--model.hiden_size=3"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* part : {"training.tokens", "optimizer.beta1", "warmup", "hiden_size"}) {
    EXPECT_NE(result.errors.find(part), std::string::npos) << part << " in " << result.errors;
  }
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

// A larger step would be taken whole.
TEST_F(TrainCommand, ABudgetHoldsAStep) {
  const std::string message =
      "reynard: training.tokens = 63; must be at least the 64 tokens of one step (data.batch_size "
      "= 2, data.length = 32, training.accumulation = 1); raise it or lower those\n";
  const ProgramResult result = train("run", {"--training.tokens=63"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors, message);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  ASSERT_EQ(train("run", {"--training.tokens=64"}).exit_code, 0);
  EXPECT_EQ(train("run", {"--training.tokens=63", "--resume"}).errors, message);
  // What an earlier program let begin goes on.
  const fs::path recorded = folder_ / "run/experiment.toml";
  std::string settings = test::read_file(recorded);
  settings.replace(settings.find("tokens = 64"), 11, "tokens = 10");
  test::write_file(recorded, settings);
  EXPECT_EQ(train("run", {"--training.tokens=128", "--resume"}).exit_code, 0);
  const ProgramResult sweep =
      run({"sweep", "tiny.toml", "--grid", "training.accumulation=1,99", "--run.folder=sweep"});
  EXPECT_EQ(sweep.exit_code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "sweep")) << "a run before the mistake was found";
}

TEST_F(TrainCommand, RowsLongerThanTheTextAreNamed) {
  const ProgramResult result = train("run", {"--data.length=9000", "--training.tokens=18000"});
  EXPECT_EQ(result.exit_code, 0);
  const std::string part = "reynard: data.length = 9000: data.path = text/train.tokens has ";
  EXPECT_TRUE(result.errors.starts_with(part)) << result.errors;
  EXPECT_EQ(train("padded", {"--data.length=9000", "--training.tokens=18000", "--data.mode=padded"})
                .errors,
            "");
}

TEST_F(TrainCommand, WeightsOfOtherTokensAreNoBeginning) {
  std::string other;
  for (int i = 0; i < 400; ++i) other += "quite another one: " + std::to_string(i) + "\n";
  test::write_file(folder_ / "other.txt", other);
  for (const std::string name : {"text", "other"}) {
    const std::string vocabulary = name + ".json";
    ASSERT_EQ(run({"tokenizer", "train", name + ".txt", "-o", vocabulary, "--vocab-size", "270"})
                  .exit_code,
              0);
    ASSERT_EQ(
        run({"prepare", name + ".txt", "-o", name + "-270", "--tokenizer", vocabulary}).exit_code,
        0);
  }
  const std::string same = "--data.path=text-270/train.tokens", start = "--run.start_from=run";
  ASSERT_EQ(train("run", {same, "--model.vocab_size=270", "--training.tokens=64"}).exit_code, 0);
  EXPECT_EQ(
      train("next", {same, start, "--model.vocab_size=270", "--training.tokens=64"}).exit_code, 0);
  expect_refused("other",
                 {"--data.path=other-270/train.tokens", start, "--model.vocab_size=270"},
                 "data.path = other-270/train.tokens and run.start_from = run are of different "
                 "tokenizers: the token ");
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

// Else the model would begin and end with ordinary tokens.
TEST_F(TrainCommand, SpecialTokensAreThoseOfTheText) {
  expect_refused("run",
                 {"--model.bos_token_id=3", "--model.eos_token_id=257"},
                 "model.bos_token_id = 3: in data.path = text/train.tokens it is 256; set "
                 "--model.bos_token_id=256");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  EXPECT_EQ(
      train("run", {"--model.bos_token_id=256", "--model.eos_token_id=257", "--training.tokens=64"})
          .exit_code,
      0);
}

// It would be trained to the end and then lost.
TEST_F(TrainCommand, AModelThatNoLayoutCanExpressIsRefused) {
  using Settings = std::vector<std::string>;
  for (const auto& [settings, part] :
       {std::pair(Settings{"--model.attention.qk_norm_eps=1e-6"}, "qk_norm_eps is not 1e-5"),
        std::pair(Settings{"--model.attention.qk_norm=none", "--model.attention.qkv_bias=true"},
                  "qkv_bias is on"),
        std::pair(
            Settings{"--model.attention.rope=true", "--model.attention.rope_scaling.type=linear"},
            "rope_scaling is set")}) {
    expect_refused("run",
                   settings,
                   std::string("no layout can express this model (layout "
                               "forgetting_transformer-project_fox: attention.") +
                       part);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  }
  const ProgramResult sweep = run({"sweep",
                                   "tiny.toml",
                                   "--grid",
                                   "model.attention.qk_norm_eps=1e-5,1e-6",
                                   "--run.folder=sweep"});
  EXPECT_EQ(sweep.exit_code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "sweep")) << "a run before the mistake was found";
}

TEST_F(TrainCommand, AStepThatNeverCameIsNotProfiledSilently) {
  const ProgramResult result = train("run", {"--training.tokens=64", "--training.profile_step=2"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.errors.find("training.profile_step = 2: the run ended after 1 step;"),
            std::string::npos)
      << result.errors;
  const ProgramResult passed =
      train("run", {"--resume", "--training.tokens=128", "--training.profile_step=1"});
  EXPECT_EQ(passed.exit_code, 0);
  EXPECT_NE(passed.errors.find("training.profile_step = 1: the run went on after 1 step;"),
            std::string::npos)
      << passed.errors;
}

// The same command can be given again.
TEST_F(TrainCommand, ARunThatDivergesAtOnceLeavesNoProfile) {
  expect_refused("run",
                 {"--optimizer.learning_rate=1e30",
                  "--training.profile_step=1",
                  "--training.log_every=100",
                  "--training.checkpoint_every=0",
                  "--training.permanent_every=0"},
                 "not finite");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(TrainCommand, AStepIsProfiledWithoutReportsOfTheLibrary) {
  const ProgramResult result = train("run", {"--training.tokens=64", "--training.profile_step=1"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "profile.json"));
  EXPECT_EQ(result.errors.find("ERROR"), std::string::npos) << result.errors;
}

TEST_F(TrainCommand, HeldOutTextIsMeasuredOnce) {
  const auto loss = [&](const std::string& name, const std::string& tokens) {
    const ProgramResult result = train(name,
                                       {"--training.tokens=640",
                                        "--validation.path=text/held_out.tokens",
                                        "--validation.tokens=" + tokens});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return json(name + "/result.json").at("validation_loss").get<double>();
  };
  const auto header = data::TokenFile(folder_ / "text/held_out.tokens").header();
  constexpr int64_t kTokensPerRow = 32;
  const int64_t rows = (header.num_tokens - header.num_documents) / kTokensPerRow;
  ASSERT_GE(rows, 2);
  const double once = loss("once", std::to_string(rows * kTokensPerRow));
  EXPECT_EQ(loss("more", "1000000000000"), once);
  EXPECT_NE(loss("less", std::to_string((rows - 1) * kTokensPerRow)), once);
}

// A tokenizer whose only end token is <|endoftext|>, beside another special one, names no BOS, and
// this one denies it; its documents begin with that token, and so does what the model reads later.
TEST_F(TrainCommand, ModelsNameTheEndsOfTheirText) {
  ASSERT_EQ(run({"tokenizer",
                 "train",
                 "text.txt",
                 "-o",
                 "two/tokenizer.json",
                 "--vocab-size",
                 "264",
                 "--special",
                 "<|endoftext|>,<pad>"})
                .exit_code,
            0);
  test::write_file(folder_ / "two/tokenizer_config.json", R"({"add_bos_token": false})");
  ASSERT_EQ(run({"prepare", "text.txt", "-o", "words", "--tokenizer", "two"}).exit_code, 0);
  ASSERT_EQ(train("run",
                  {"--data.path=words/train.tokens",
                   "--model.vocab_size=264",
                   "--training.tokens=64",
                   "--training.permanent_every=64"})
                .exit_code,
            0);
  for (const char* folder : {"run/model", "run/checkpoints/step-000000000001"}) {
    const auto config = json(std::string(folder) + "/config.json");
    EXPECT_EQ(config.at("bos_token_id"), 262) << folder;
    EXPECT_EQ(config.at("eos_token_id"), 262) << folder;
  }
  const std::vector<std::string> begin = {"generate", "run", "", "-m", "1"};
  const ProgramResult begun = run(begin);
  EXPECT_EQ(begun.exit_code, 0) << begun.errors;
  // With ids of its own the experiment says what counts.
  ASSERT_EQ(train("named", {"--training.tokens=64", "--model.bos_token_id=256"}).exit_code, 0);
  EXPECT_EQ(json("named/model/config.json").at("eos_token_id"), 257);
  ASSERT_EQ(
      train("named", {"--training.tokens=128", "--model.bos_token_id=256", "--resume"}).exit_code,
      0);
}

// All shapes fit, and the weights would compute something else.
TEST_F(TrainCommand, FirstWeightsOfOtherSettingsAreNamed) {
  ASSERT_EQ(train("first", {"--training.tokens=64"}).exit_code, 0);
  const std::string start = "--run.start_from=first", tokens = "--training.tokens=64";
  const ProgramResult alike = train("alike",
                                    {start,
                                     tokens,
                                     "--model.initializer_range=0.1",
                                     "--model.attention.log_pruning_tolerance=-10"});
  EXPECT_EQ(alike.exit_code, 0);
  EXPECT_EQ(alike.errors, "");
  std::vector<std::string> settings = {start,
                                       tokens,
                                       "--model.norm_eps=1e-5",
                                       "--model.attention.rope=true",
                                       "--model.attention.window=16"};
  const ProgramResult other = train("other", settings);
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_EQ(other.errors,
            "reynard: run.start_from = first: its weights are of other settings than this model's: "
            "model.norm_eps: 1e-06 -> 1e-05, model.attention.window: 0 -> 16, "
            "model.attention.rope: false -> true; where that is not meant, give those of the "
            "weights\n");
  settings.emplace_back("--resume");
  EXPECT_EQ(train("other", settings).errors, "") << "said where it began";
}

TEST_F(TrainCommand, AFolderThatCannotBeMadeIsNamedByItsKey) {
  expect_refused("tiny.toml/run",
                 {},
                 "run.folder = tiny.toml/run: cannot be made: Not a directory; choose another with "
                 "--run.folder=...\n");
}

TEST_F(TrainCommand, NothingToLearnIsAnError) {
  const auto error = [&](std::vector<std::string> more) {
    const ProgramResult result = train("run", std::move(more));
    EXPECT_EQ(result.exit_code, 2);
    return result.errors;
  };
  EXPECT_NE(error({"--data.answer_mark=300"}).find("expected a token id below 258"),
            std::string::npos);
  EXPECT_NE(error({"--data.answer_mark=200"}).find("no token of 50 steps counts"),
            std::string::npos);
  fs::remove_all(folder_ / "run");
  EXPECT_NE(error({"--data.answer_tokens=2"}).find("has no effect without"), std::string::npos);
}

TEST_F(TrainCommand, FilesThatSayStrangeThingsDoNotStopARun) {
  ASSERT_EQ(train("run").exit_code, 0);
  test::write_file(folder_ / "run/result.json", "{}");
  test::write_file(folder_ / "run/metrics.jsonl", "{\"step\": \"x\"}\n");
  test::write_file(folder_ / "run/run.json", R"({"earlier": {}, "command": 3})");
  test::write_file(folder_ / "run/checkpoints/step-000000000025/trainer.json",
                   R"({"permanent": 1})");
  const ProgramResult result = train("run", {"--resume", "--training.tokens=3840"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(json("run/result.json").at("steps"), 60);
  EXPECT_EQ(last_logged_step("run"), 60);
}

// Spinning threads make training many times slower where another process wants a core.
TEST_F(TrainCommand, ThreadsWaitPassivelyUnlessTheUserSaysOtherwise) {
  unsetenv("OMP_WAIT_POLICY");
  ASSERT_EQ(train("run", {"--training.tokens=64"}).exit_code, 0);
  EXPECT_EQ(json("run/run.json").at("machine").at("omp_wait_policy"), "passive");
  setenv("OMP_WAIT_POLICY", "active", 1);
  ASSERT_EQ(train("active", {"--training.tokens=64"}).exit_code, 0);
  EXPECT_EQ(json("active/run.json").at("machine").at("omp_wait_policy"), "active");
  setenv("OMP_WAIT_POLICY", "passive", 1);
}

TEST_F(TrainCommand, FullDiskIsAnErrorAndTheCheckpointSurvives) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  const ProgramResult full = test::run_program({.arguments = {"train",
                                                              "tiny.toml",
                                                              "--quiet",
                                                              "--run.folder=run",
                                                              "--resume",
                                                              "--training.tokens=1280"},
                                                .folder = folder_.path().string(),
                                                .file_limit = 8192});
  EXPECT_EQ(full.exit_code, 2) << full.errors;
  EXPECT_EQ(std::count(full.errors.begin(), full.errors.end(), '\n'), 1) << full.errors;
  EXPECT_NE(full.errors.find("run/"), std::string::npos) << full.errors;
  EXPECT_EQ(checkpoints("run").back(), "step-000000000010");
  const ProgramResult again = train("run", {"--resume", "--training.tokens=1280"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
}

TEST_F(TrainCommand, FullDiskAtTheFirstCheckpointLeavesNothing) {
  const ProgramResult full =
      test::run_program({.arguments = {"train", "tiny.toml", "--quiet", "--run.folder=run"},
                         .folder = folder_.path().string(),
                         .file_limit = 8192});
  EXPECT_EQ(full.exit_code, 2) << full.errors;
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  EXPECT_EQ(train("run").exit_code, 0);
}

TEST_F(TrainCommand, NamesThatAreNotUTF8) {
  const ProgramResult refused = run({"train", "tiny.toml", "--run.folder=caf\xe9"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.errors, "reynard: --run.folder = caf\xe9; must be UTF-8 text\n");
  fs::copy_file(folder_ / "tiny.toml", folder_ / "caf\xe9.toml");
  const ProgramResult named =
      run({"train", "caf\xe9.toml", "--quiet", "--run.folder=run", "--training.tokens=128"});
  EXPECT_EQ(named.exit_code, 0) << named.errors;
  EXPECT_EQ(json("run/run.json").at("command")[2], "caf\uFFFD.toml");
}

}  // namespace
