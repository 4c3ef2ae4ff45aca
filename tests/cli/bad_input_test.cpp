// Configs, token files and checkpoints that are wrong: the program says what and where, ends with
// code 2 and leaves nothing half-written.

#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/device.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace {

using namespace reynard;
using test::ProgramResult;

class BadInput : public testing::Test {
 protected:
  ProgramResult run(std::vector<std::string> arguments) {
    return test::run_program({.arguments = std::move(arguments), .folder = folder_.path()});
  }
  // The message without the program's name; checks the exit code.
  std::string error_of(std::vector<std::string> arguments) {
    const ProgramResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_TRUE(result.errors.starts_with("reynard: ")) << result.errors;
    return result.errors.substr(std::min<size_t>(9, result.errors.size()));
  }
  static std::string missing(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? "" : "no \"" + part + "\" in: " + text;
  }
  test::TempDir folder_;
};

// ---- experiments ----

TEST_F(BadInput, EveryMistakeOfAnExperimentIsReportedWithItsLine) {
  test::write_file(folder_ / "a.toml", R"([run]
folder = "run"
[model]
hidden_size = "wide"
num_layer = 2
[model.attention]
num_heads = 0
num_kv_heads = 3
[schedule]
warmup_tokens = 10
warmup_fraction = 0.5
[training]
tokens = 1000
)");
  const std::string error = error_of({"train", "a.toml", "--optimizer.learning_rate=fast"});
  EXPECT_EQ(missing(error, "a.toml:4: model.hidden_size = \"wide\"; must be an integer\n"), "");
  EXPECT_EQ(missing(error, "a.toml:7: model.attention.num_heads = 0; must be > 0\n"), "");
  EXPECT_EQ(missing(error, "--optimizer.learning_rate = fast; must be a number\n"), "");
  EXPECT_EQ(missing(error,
                    "a.toml:5: model.num_layer is not a known key; did you mean "
                    "model.num_layers?\n"),
            "");
  EXPECT_EQ(missing(error, "a.toml:11: schedule.warmup_fraction = 0.5; excludes"), "");
  EXPECT_EQ(missing(error, "data.path"), "");
  // Whether 3 divides a number of heads that is itself wrong is not known.
  EXPECT_EQ(error.find("num_kv_heads"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(BadInput, EmptyArgumentsAreNamed) {
  EXPECT_EQ(missing(error_of({""}), "\"\" is no command; see `reynard --help`"), "");
  EXPECT_EQ(missing(error_of({"tokenizer", ""}),
                    "tokenizer \"\" is no command; see `reynard tokenizer --help`"),
            "");
  EXPECT_EQ(missing(error_of({"train", ""}),
                    "EXPERIMENT: is empty; expected a name; see `reynard train --help`"),
            "");
  EXPECT_EQ(missing(error_of({"report", "a", ""}), "RUN: is empty"), "");
  EXPECT_EQ(missing(error_of({"generate", "", "text"}), "MODEL: is empty"), "");
  EXPECT_EQ(missing(error_of({"generate", "model", "--file", ""}), "--file: is empty"), "");
  EXPECT_EQ(missing(error_of({"eval", "model", "--text="}), "--text: is empty"), "");
  test::write_file(folder_ / "a.toml", "");
  EXPECT_EQ(missing(error_of({"train", "a.toml", ""}), "\"\": expected --section.key=value"), "");
}

TEST_F(BadInput, ImpossibleCombinationsAreReportedTogether) {
  test::write_file(folder_ / "a.toml", R"([run]
folder = "run"
[model]
hidden_size = 100
[model.attention]
num_heads = 7
[data]
mode = "ordered"
repeat_fraction = 0.5
)");
  const std::string error = error_of({"train", "a.toml"});
  EXPECT_EQ(missing(error, "a.toml:6: model.attention.num_heads = 7; must divide"), "");
  EXPECT_EQ(missing(error, "a.toml:9: data.repeat_fraction = 0.5; must be 0"), "");
  EXPECT_EQ(missing(error_of({"train", "a.toml", "--training.accumulation=9223372036854775807"}),
                    "training.accumulation = 9223372036854775807; times data.batch_size"),
            "");
  EXPECT_EQ(missing(error_of({"train", "a.toml", "--run.folder="}), "run.folder = "), "");
  const std::string memory = error_of({"train",
                                       "a.toml",
                                       "--model.mixer=memory_attention",
                                       "--model.attention.forget_gate=none",
                                       "--model.memory.layers=[1,1]",
                                       "--model.memory.decay=distance"});
  EXPECT_EQ(missing(memory, "model.memory.layers = [1, 1]; must name each layer once\n"), "");
  EXPECT_EQ(missing(memory, "model.memory.decay = \"distance\"; must be \"none\" without forget "),
            "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(BadInput, TokenFilesCutShortStopTheTrainingBeforeItBegins) {
  test::write_file(folder_ / "a.txt", std::string(5000, 'x'));
  ASSERT_EQ(run({"prepare", "a.txt", "-o", "data"}).exit_code, 0);
  const std::string whole = test::read_file(folder_ / "data/train.tokens");
  test::write_file(folder_ / "cut.tokens", whole.substr(0, whole.size() / 2));
  test::write_file(folder_ / "a.toml", "[run]\nfolder = \"run\"\n[training]\ntokens = 1000\n");
  EXPECT_EQ(missing(error_of({"train", "a.toml", "--data.path=cut.tokens"}),
                    "cut.tokens: has 7056 bytes; expected 14112"),
            "");
  EXPECT_EQ(missing(error_of({"train", "a.toml", "--data.path=a.txt"}), "is not a token file"), "");
  EXPECT_EQ(missing(error_of({"train", "a.toml", "--data.path=none"}), "none: cannot be opened"),
            "");
}

TEST_F(BadInput, TextsThatDoNotFitAreFoundBeforeTheTraining) {
  test::write_file(folder_ / "a.txt", std::string(5000, 'x'));
  ASSERT_EQ(run({"prepare", "a.txt", "-o", "data"}).exit_code, 0);
  test::write_file(folder_ / "a.toml",
                   "[run]\nfolder = \"run\"\n[data]\npath = \"data/train.tokens\"\n"
                   "[training]\ntokens = 1000\n");
  EXPECT_EQ(missing(error_of({"train", "a.toml", "--model.vocab_size=100"}),
                    "data.path = data/train.tokens: has a vocabulary of 258; model.vocab_size = "
                    "100 is too small"),
            "");
  EXPECT_EQ(
      missing(error_of({"train", "a.toml", "--validation.path=none"}), "none: cannot be opened"),
      "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(BadInput, RowsBeyondTheMemoryAreAnError) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow memory is beyond any limit";
#endif
  test::write_file(folder_ / "a.txt", std::string(5000, 'x'));
  ASSERT_EQ(run({"prepare", "a.txt", "-o", "data"}).exit_code, 0);
  test::write_file(folder_ / "a.toml",
                   "[run]\nfolder = \"run\"\n[data]\npath = \"data/train.tokens\"\nbatch_size = 1\n"
                   "length = 1000000\n[training]\ntokens = 1000000\n");
  const ProgramResult result = test::run_program({.arguments = {"train", "a.toml", "--quiet"},
                                                  .folder = folder_.path(),
                                                  .memory_limit = int64_t{600} << 20});
  EXPECT_EQ(result.exit_code, 2) << result.errors;
  EXPECT_TRUE(result.errors.starts_with("reynard: out of memory")) << result.errors;
  EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  // Nothing that would have to be removed or resumed before a shorter length is tried.
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  EXPECT_EQ(
      run({"train", "a.toml", "--quiet", "--data.length=500", "--training.tokens=500"}).exit_code,
      0);
}

// ---- options ----

TEST_F(BadInput, NumbersOutOfRangeAreErrorsAndNotOthers) {
  const std::string large = "99999999999999999999";
  EXPECT_EQ(error_of({"generate", "model", "a", "-m", large}),
            "--max-tokens: 99999999999999999999 is out of range; expected a whole number of "
            "-9223372036854775808 to 9223372036854775807; see `reynard generate --help`\n");
  EXPECT_EQ(missing(error_of({"generate", "model", "a", "--seed", "-1"}),
                    "--seed: -1 is out of range; expected a whole number of 0 to "
                    "18446744073709551615"),
            "");
  EXPECT_EQ(missing(error_of({"bench", "knn", "--queries", "1", large}), "--queries: 9999999"), "");
  for (const char* text : {"0xFFFFFFFFFFFFFFFFFFFFFF", "+99999999999999999999"}) {
    EXPECT_EQ(missing(error_of({"generate", "model", "a", "-m", text}),
                      std::string(text) + " is out of range"),
              "");
  }
  EXPECT_EQ(missing(error_of({"generate", "model", "a", "--seed", " -1"}), " -1 is out of range"),
            "");
  for (const char* text : {"1e3", "-abc"}) {
    const std::string error = error_of({"generate", "model", "a", "--seed", text});
    EXPECT_EQ(missing(error, "--seed"), "");
    EXPECT_EQ(error.find("out of range"), std::string::npos) << error;
  }
}

TEST_F(BadInput, NumbersThatAreNotFiniteAreErrors) {
  const std::vector<std::string> options[] = {
      {"serve", "model", "--cache-gb", "nan"},
      {"inspect", "model", "--text", "a.txt", "--log-tolerance", "-inf"},
      {"compare", "a", "b", "--loss-margin", "inf"},
      {"generate", "model", "a", "--temperature", "1e999"},
      {"bench", "train_step", "--log-tolerance", "NaN"},
  };
  for (const std::vector<std::string>& arguments : options) {
    const std::string& option = arguments[arguments.size() - 2];
    EXPECT_EQ(missing(error_of(arguments), option + ": " + arguments.back() + " is not a finite"),
              "");
  }
}

// Nobody hears what is wrong, and the exit code still says it.
TEST_F(BadInput, MessagesThatCannotBeWrittenEndNothingElse) {
  for (const char* command : {"info nowhere", "train nowhere.toml", "bench decode --chunk 0"}) {
    const std::string line = std::string("timeout 60 " REYNARD_BINARY_DIR "/bin/reynard ") +
                             command + " >/dev/null 2>/dev/full";
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << command << ": " << status;
  }
}

TEST_F(BadInput, TextsThatAreNoNumbersAreErrors) {
  EXPECT_EQ(
      missing(error_of({"serve", "model", "--port", "abc"}), "--port: abc is no whole number"), "");
  EXPECT_EQ(missing(error_of({"generate", "model", "a", "--temperature", "warm"}),
                    "--temperature: warm is no number"),
            "");
  EXPECT_EQ(missing(error_of({"inspect", "model", "--text", "a.txt", "--queries-per-cell", "-1"}),
                    "--queries-per-cell: -1; expected 0 or more"),
            "");
}

TEST_F(BadInput, AnEmptyKeyDoesNotOpenAServer) {
  EXPECT_EQ(missing(error_of({"serve", "model", "--api-key=", "--no-prefix-reuse"}), "is empty"),
            "");
  EXPECT_EQ(missing(error_of({"serve", "model", "--api-key", ""}), "is empty"), "");
}

TEST_F(BadInput, WhatCannotBeUsedOrWrittenIsSaidBeforeAnythingIsMeasured) {
  EXPECT_EQ(missing(error_of({"bench", "decode", "--shape", "B2 H8 T64 D64"}), "B is 2"), "");
  EXPECT_EQ(missing(error_of({"bench", "knn", "--json", "none/rows.json"}), "none/"), "");
  EXPECT_EQ(missing(error_of({"inspect", "model", "--text", "a.txt", "-o", "q.json"}),
                    "-o q.json: is the name of the numbers"),
            "");
}

TEST_F(BadInput, OptionsOfTheOtherDeviceAreRejectedWhereverTheBenchRuns) {
  const bool gpu = tensor::choose_device("auto").is_cuda();
  const std::vector<std::string> other =
      gpu ? std::vector<std::string>{"--shape", "H1"} : std::vector<std::string>{"--peers"};
  std::vector<std::string> command = {"bench", "attention", "--device", "auto"};
  command.insert(command.end(), other.begin(), other.end());
  EXPECT_EQ(missing(error_of(command), other[0] + " is an option of --device "), "");
}

TEST_F(BadInput, EveryBenchOfADeviceSaysWhyThereIsNoGpu) {
  const std::string reason = test::error_of([] { tensor::choose_device("cuda"); });
  if (reason == "no error") GTEST_SKIP() << "there is a GPU";
  for (const char* bench : {"attention",
                            "attention_memory",
                            "decode",
                            "forgetting_curve",
                            "knn",
                            "serve",
                            "start",
                            "train_step"}) {
    EXPECT_EQ(error_of({"bench", bench, "--device", "cuda"}), reason + "\n") << bench;
  }
  EXPECT_EQ(missing(error_of({"bench", "decode", "--device", "gpu"}), "--device: gpu"), "");
}

TEST_F(BadInput, OptionsOfDecodeAndSearchOnTheCpuAreRejectedOnAGpu) {
  const std::vector<std::vector<std::string>> options = {{"decode", "--chunk", "64"},
                                                         {"decode", "--dtype", "f32"},
                                                         {"decode", "--only", "decode"},
                                                         {"knn", "--dtype", "f32"},
                                                         {"knn", "--only", "knn_memory"}};
  for (const std::vector<std::string>& option : options) {
    std::vector<std::string> command = {"bench"};
    command.insert(command.end(), option.begin(), option.end());
    command.insert(command.end(), {"--device", "cuda"});
    EXPECT_EQ(missing(error_of(command), option[1] + " is an option of --device cpu"), "");
  }
}

TEST_F(BadInput, ShapesThatAGpuIsNotMeasuredWithAreErrors) {
  const auto decode = [&](const char* shape) {
    return error_of({"bench", "decode", "--device", "cuda", "--shape", shape});
  };
  EXPECT_EQ(missing(decode("T100"), "T of --shape = 100; expected a multiple of 64 on a GPU"), "");
  EXPECT_EQ(missing(decode("D320"), "D of --shape = 320; expected at most 256"), "");
  EXPECT_EQ(missing(decode("B2 T64"), "B is 2"), "");
  EXPECT_EQ(missing(error_of({"bench", "knn", "--device", "cuda", "--k", "301"}),
                    "--k = 301; expected 1 ... 300"),
            "");
}

// More accuracies of one length are not tested for normality: all would be measured in vain.
TEST_F(BadInput, MoreRepeatsThanTheirStatisticsTakeAreNotMeasured) {
  EXPECT_EQ(
      missing(error_of({"eval", "model", "--forgetting_curve.repeats=5001"}), "between 1 and 5000"),
      "");
}

TEST_F(BadInput, StepsTooShortToLearnFromAreNotMeasured) {
  EXPECT_EQ(missing(error_of({"bench", "train_step", "--length", "1"}),
                    "--length = 1; expected >= 16 with --batch 4"),
            "");
}

TEST_F(BadInput, TextsThatAreNoNumbersOrTwoAreErrors) {
  const std::pair<const char*, const char*> options[] = {
      {"--seed", "--seed: \"\" is no number"},
      {"-m", "--max-tokens: \"\" is no number"},
      {"--top-p", "--top-p: \"\" is no number"},
      {"--log-tolerance", "--log-tolerance: "},
  };
  for (const auto& [option, message] : options) {
    EXPECT_EQ(missing(error_of({"generate", "model", "a", option, ""}), message), "");
  }
  for (const char* text : {"010", "-010", "00", " +07", "0777777777777777777777777"}) {
    EXPECT_EQ(missing(error_of({"generate", "model", "a", "-m", text}),
                      std::string("--max-tokens: ") + text + " has a leading zero"),
              "");
  }
  for (const char* text : {"0", "-0", "0x10", "10"}) {  // the folder is what is wrong
    EXPECT_EQ(error_of({"generate", "model", "a", "--logprobs", text}).find("--logprobs:"),
              std::string::npos)
        << text;
  }
}

// ---- checkpoints ----

class BadCheckpoint : public BadInput {
 protected:
  BadCheckpoint() {
    models::DecoderConfig config;
    config.vocab_size = 11;
    config.hidden_size = 8;
    config.num_layers = 1;
    config.intermediate_size = 16;
    config.attention.num_heads = 2;
    models::Decoder decoder(config);
    models::save_model(decoder, folder_ / "model");
    // A folder from elsewhere: without checksums, which would find every change before the reader
    // does.
    std::filesystem::remove(folder_ / "model/checksums.json");
    tensors_ = test::read_file(folder_ / "model/model.safetensors");
    uint64_t size = 0;
    std::memcpy(&size, tensors_.data(), sizeof size);
    header_ = nlohmann::ordered_json::parse(tensors_.substr(8, size));
    data_ = tensors_.substr(8 + size);
    test::write_file(folder_ / "ids.json", "[[1, 2, 3]]");
  }
  // What `reynard score` says to the folder with this header and data.
  std::string error_with(const nlohmann::ordered_json& header, const std::string& data) {
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::string file(reinterpret_cast<const char*>(&size), sizeof size);
    return error_with_file(file + text + data);
  }
  std::string error_with_file(const std::string& file) {
    test::write_file(folder_ / "model/model.safetensors", file);
    return error_of({"score", "model", "--ids", "ids.json"});
  }
  // The header with a change to one tensor.
  nlohmann::ordered_json with(const std::string& tensor,
                              const char* key,
                              const nlohmann::ordered_json& value) const {
    nlohmann::ordered_json header = header_;
    header[tensor][key] = value;
    return header;
  }
  std::string tensors_;
  nlohmann::ordered_json header_;
  std::string data_;
  const std::string norm_ = "model.norm.weight";
};

TEST_F(BadCheckpoint, GoodOnesAreScored) {
  const ProgramResult result = run({"score", "model", "--ids", "ids.json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(nlohmann::json::parse(result.output).at("token_logprobs").size(), 2U);
  EXPECT_EQ(run({"info", "model"}).exit_code, 0);
}

TEST_F(BadCheckpoint, TensorsThatLieAreNamed) {
  const auto bytes = static_cast<int64_t>(data_.size());
  const auto offsets = header_[norm_]["data_offsets"];
  const int64_t begin = offsets[0];
  // Offsets beyond the file, that overlap, and that do not fit the shape.
  for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{
           {bytes, bytes + 32}, {begin - 8, begin + 24}, {begin, begin + 16}, {begin, begin - 4}}) {
    EXPECT_EQ(missing(error_with(with(norm_, "data_offsets", {from, to}), data_), norm_), "")
        << from << " " << to;
  }
  EXPECT_EQ(missing(error_with(with(norm_, "dtype", "I32"), data_), norm_), "");
  EXPECT_EQ(missing(error_with(with(norm_, "dtype", "F31"), data_), "F31"), "");
  EXPECT_EQ(missing(error_with(with(norm_, "shape", {2, 4}), data_), norm_), "");
}

TEST_F(BadCheckpoint, MissingAndAdditionalTensorsAreNamed) {
  nlohmann::ordered_json renamed = header_;
  renamed["model.other.weight"] = renamed[norm_];
  renamed.erase(norm_);
  EXPECT_EQ(missing(error_with(renamed, data_), norm_), "");
  nlohmann::ordered_json more = header_;
  const auto bytes = static_cast<int64_t>(data_.size());
  more["model.other.weight"] = {
      {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {bytes, bytes + 4}}};
  EXPECT_EQ(missing(error_with(more, data_ + "1234"), "model.other.weight"), "");
}

TEST_F(BadCheckpoint, FilesCutShortAreErrors) {
  for (const size_t size : {size_t{0}, size_t{4}, size_t{20}, tensors_.size() - 1}) {
    EXPECT_EQ(missing(error_with_file(tensors_.substr(0, size)), "model.safetensors"), "");
  }
}

// What needs no weights to be known is said before they are read: here they cannot be.
TEST_F(BadCheckpoint, OptionsThatCannotBeAreFoundBeforeTheWeightsAreRead) {
  test::write_file(folder_ / "model/model.safetensors", tensors_.substr(0, 20));
  for (const char* command : {"generate", "chat", "serve"}) {
    const auto with = [&](std::vector<std::string> options) {
      options.insert(options.begin(), {command, "model"});
      return error_of(std::move(options));
    };
    EXPECT_EQ(missing(with({"--int8-cache", "--device", "cuda"}), "--int8-cache: is for the CPU"),
              "");
    EXPECT_EQ(missing(with({"--evict-measured"}), "--evict-measured: the model has no pruning"),
              "");
    EXPECT_EQ(missing(with({"--log-tolerance", "nan"}), "--log-tolerance: nan is not a finite"),
              "");
    if (command == std::string("serve")) continue;  // its clients say how tokens are chosen
    const std::pair<std::vector<std::string>, const char*> choices[] = {
        {{"-m", "0"}, "-m 0; expected at least 1 token"},
        {{"--top-p", "2"}, "sampler: top_p = 2; expected 0 to 1"},
        {{"--temperature", "-1"}, "sampler: temperature = -1"},
        {{"--logit-bias", "x"}, "--logit-bias x; expected ID=VALUE"},
        {{"--lookup", "-1"}, "lookup_tokens = -1"},
    };
    for (const auto& [options, message] : choices) EXPECT_EQ(missing(with(options), message), "");
  }
  EXPECT_EQ(missing(error_of({"generate", "model", "--chunk-tokens", "0"}), "--chunk-tokens = 0"),
            "");
}

TEST_F(BadCheckpoint, ConfigsThatCannotBeAreErrors) {
  const auto config = nlohmann::ordered_json::parse(test::read_file(folder_ / "model/config.json"));
  const auto error = [&](const char* key, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json changed = config;
    changed[key] = value;
    test::write_file(folder_ / "model/config.json", changed.dump());
    return error_of({"info", "model"});
  };
  EXPECT_EQ(missing(error("num_heads", 0), "num_heads"), "");
  EXPECT_EQ(missing(error("num_heads", 3), "num_heads"), "");
  EXPECT_EQ(missing(error("window_size", -7), "config.json: attention.window: -7 must be >= 0"),
            "");
  EXPECT_EQ(missing(error("hidden_size", "8"), "hidden_size"), "");
  EXPECT_EQ(missing(error("hidden_size", int64_t{1} << 60), "hidden_size"), "");
  EXPECT_EQ(missing(error("model_type", "parrot"), "parrot"), "");
  test::write_file(folder_ / "model/config.json", "{");
  EXPECT_EQ(missing(error_of({"info", "model"}), "config.json"), "");
  EXPECT_EQ(missing(error_of({"info", "none"}), "none"), "");
}

TEST_F(BadCheckpoint, BadIdsAreErrors) {
  const auto error = [&](const std::string& text) {
    test::write_file(folder_ / "ids.json", text);
    return error_of({"score", "model", "--ids", "ids.json"});
  };
  for (const char* text : {"",
                           "[",
                           "{}",
                           "[]",
                           "[1]",
                           "[[1]]",
                           "[[1, 11]]",
                           "[[1, -1]]",
                           "[[1, 2.5]]",
                           "[[1, \"2\"]]",
                           "[[1, 18446744073709551615]]"}) {
    EXPECT_EQ(missing(error(text), "ids.json"), "") << text;
  }
  EXPECT_EQ(missing(error_of({"score", "model", "--ids", "none.json"}), "none.json"), "");
}

TEST_F(BadCheckpoint, APipeIsNotAFileOfIds) {
  ASSERT_EQ(::mkfifo((folder_ / "ids").c_str(), 0600), 0);
  EXPECT_EQ(missing(error_of({"score", "model", "--ids", "ids"}), "ids: is a pipe or a device"),
            "");
}

TEST_F(BadCheckpoint, SequencesBeyondTheMemoryAreErrors) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow memory is beyond any limit";
#endif
  std::string ids = "[[1";
  for (int i = 0; i < 1000000; ++i) ids += ",2";
  test::write_file(folder_ / "ids.json", ids + "]]");
  const ProgramResult result =
      test::run_program({.arguments = {"score", "model", "--ids", "ids.json"},
                         .folder = folder_.path(),
                         .memory_limit = int64_t{300} << 20});
  EXPECT_EQ(result.exit_code, 2) << result.errors;
  EXPECT_TRUE(result.errors.starts_with("reynard: out of memory")) << result.errors;
}

}  // namespace
