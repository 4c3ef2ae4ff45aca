// Experiments, token files, texts and options that are wrong.

#include "tests/cli/bad_input.h"

#include <sys/wait.h>

#include <filesystem>
#include <utility>

namespace {

using namespace reynard;
using test::BadInput;
using test::ProgramResult;

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

TEST_F(BadInput, WordsThatNoCommandTakesAreNamed) {
  EXPECT_EQ(error_of({"generate", "model", "text", "--max_tokens", "3"}),
            "--max_tokens is not a known option; did you mean --max-tokens?\n");
  EXPECT_EQ(error_of({"generate", "model", "text", "--temprature=1"}),
            "--temprature is not a known option; did you mean --temperature?\n");
  EXPECT_EQ(error_of({"prepare", "a.txt", "--ouput", "data"}),
            "--ouput is not a known option; did you mean --output?\n");
  EXPECT_EQ(error_of({"prepare", "a.txt", "--out", "data"}),
            "--out is not a known option; did you mean --output?\n");
  EXPECT_EQ(error_of({"generate", "model", "text", "--prompt", "text"}),
            "--prompt is not a known option; see `reynard generate --help`\n");
  EXPECT_EQ(error_of({"eval", "model", "--tasks", "passkey"}),
            "--tasks is not a known option; did you mean --task?\n");
  EXPECT_EQ(error_of({"train", "a.toml", "--devise=cpu"}),
            "--devise is not a known option; did you mean --device?\n");
  EXPECT_EQ(error_of({"sweep", "a.toml", "--grids", "a.b=1"}),
            "--grids is not a known option; did you mean --grid?\n");
  EXPECT_EQ(error_of({"generate", "model", "to", "be", "or"}),
            "be or: more than generate takes; put quotes around a text with blanks; see `reynard "
            "generate --help`\n");
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
  test::write_file(folder_ / "a.txt", std::string(1000000, 'x'));
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

TEST_F(BadInput, APageMayNotTakeTheNameOfItsNumbers) {
  EXPECT_EQ(missing(error_of({"inspect", "model", "--text", "a.txt", "-o", "q.json"}),
                    "-o q.json: is the name of the numbers"),
            "");
}

// As that which they read.
TEST_F(BadInput, OutputsReplaceOnlyWhatTheCommandWrites) {
  test::write_file(folder_ / "book.txt", "precious");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"report", "run", "-o", "book.txt"},
        {"compare", "run", "other", "-o", "book.txt"},
        {"inspect", "model", "--text", "book.txt", "-o", "book.txt"}}) {
    EXPECT_EQ(error_of(command),
              command[0] +
                  ": -o book.txt: the file exists and is not a page; remove it or give "
                  "another name\n");
  }
  EXPECT_EQ(missing(error_of({"tokenizer", "train", "other.txt", "-o", "book.txt"}),
                    "-o book.txt: the file exists and is not a tokenizer.json"),
            "");
  EXPECT_EQ(missing(error_of({"dictionary", "-o", "book.txt"}), "-o book.txt: the file exists"),
            "");
  EXPECT_EQ(test::read_file(folder_ / "book.txt"), "precious");
}

// Whatever the seed draws.
TEST_F(BadInput, SimilarKeysAreTooFewForLongDictionaries) {
  for (const char* seed : {"1", "2", "3"}) {
    EXPECT_EQ(error_of({"dictionary",
                        "-o",
                        "new.jsonl",
                        "--documents",
                        "1",
                        "--similar",
                        "0.1",
                        "--tokens",
                        "4840",
                        "--seed",
                        seed}),
              "dictionary: --tokens = 4840; expected <= 4839, whose 241 records --similar has "
              "keys for\n");
  }
  EXPECT_EQ(run({"dictionary",
                 "-o",
                 "new.jsonl",
                 "--documents",
                 "20",
                 "--similar",
                 "1",
                 "--tokens",
                 "4839"})
                .exit_code,
            0);
  EXPECT_EQ(
      run({"dictionary", "-o", "new.jsonl", "--documents", "1", "--tokens", "4840"}).exit_code, 0);
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
  for (const char* key : {" key", "key\t", "a\nb"}) {
    EXPECT_EQ(missing(error_of({"serve", "model", "--api-key", key}), "no header can carry"), "");
  }
}

// More accuracies of one length are not tested for normality: all would be measured in vain.
TEST_F(BadInput, MoreRepeatsThanTheirStatisticsTakeAreNotMeasured) {
  EXPECT_EQ(
      missing(error_of({"eval", "model", "--forgetting_curve.repeats=5001"}), "between 1 and 5000"),
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

}  // namespace
