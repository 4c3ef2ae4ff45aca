#pragma once
// A folder with a short text and an experiment of a tiny model: what `reynard train` and `sweep` do
// there as a user runs them.

#include "reynard/checkpoint/sha256.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {

inline constexpr const char* kTrainExperiment = R"(
[model]
hidden_size = 16
num_layers = 1
intermediate_size = 16
[model.attention]
num_heads = 2
qk_norm = "per_head"
output_gate = "sigmoid"
output_norm = true
key_shift = true
value_shift = true
[data]
path = "text/train.tokens"
batch_size = 2
length = 32
[optimizer]
learning_rate = 1e-2
[schedule]
warmup_fraction = 0.1
[training]
tokens = 3200
log_every = 5
checkpoint_every = 64
permanent_every = 1600
)";

inline constexpr int64_t kTokensPerStep = 64;

// A token file with a letter of its text replaced: header and ends of documents stay.
inline std::string with_another_letter(std::string token_file) {
  token_file[token_file.find('l', 4096)] = 'k';
  return token_file;
}

class TrainCommand : public testing::Test {
 protected:
  TrainCommand() {
    // Two threads that wait for each other on a busy machine would make these tests slow.
    setenv("OMP_NUM_THREADS", "1", 1);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i % 97) + " of the text\n";
    write_file(folder_ / "text.txt", text);
    write_file(folder_ / "tiny.toml", kTrainExperiment);
    EXPECT_EQ(run({"prepare", "text.txt", "-o", "text", "--held-out", "0.2"}).exit_code, 0);
  }
  ProgramResult run(std::vector<std::string> arguments, double seconds_limit = 60) {
    return run_program({.arguments = std::move(arguments),
                        .folder = folder_.path().string(),
                        .seconds_limit = seconds_limit});
  }
  ProgramResult train(const std::string& name, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"train", "tiny.toml", "--quiet", "--run.folder=" + name});
    return run(std::move(more));
  }
  // Trains with these settings, which must be an error that says `part`.
  void expect_refused(const std::string& name,
                      std::vector<std::string> more,
                      const std::string& part) {
    const ProgramResult result = train(name, std::move(more));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  }
  // Gives a key of a run's experiment.toml another value.
  void set_in_experiment(const std::string& name,
                         const std::string& key,
                         const std::string& value) {
    const std::filesystem::path file = folder_ / (name + "/experiment.toml");
    std::string text = read_file(file);
    const std::size_t begin = text.find("\n" + key + " = ") + 1;
    ASSERT_NE(begin, 0) << key;
    text.replace(begin, text.find('\n', begin) - begin, key + " = " + value);
    write_file(file, text);
  }
  std::string weights_hash(const std::string& name) {
    return checkpoint::sha256_hex_of_file(folder_ / (name + "/model/model.safetensors"));
  }
  nlohmann::json json(const std::string& file) {
    return nlohmann::json::parse(read_file(folder_ / file));
  }
  std::vector<std::string> checkpoints(const std::string& name) {
    std::vector<std::string> found;
    const std::filesystem::path folder = folder_ / (name + "/checkpoints");
    if (!std::filesystem::exists(folder)) return found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  int64_t newest_checkpoint(const std::string& name) {
    int64_t newest = 0;
    for (const std::string& found : checkpoints(name)) {
      if (found.starts_with("step-")) newest = std::stoll(found.substr(std::strlen("step-")));
    }
    return newest;
  }
  // Of the whole lines of metrics.jsonl, whose steps rise; 0 where there is none.
  int64_t last_logged_step(const std::string& name) {
    const std::filesystem::path file = folder_ / (name + "/metrics.jsonl");
    if (!std::filesystem::exists(file)) return 0;
    std::istringstream metrics(read_file(file));
    int64_t before = 0;
    for (std::string line; std::getline(metrics, line) && !metrics.eof();) {
      const int64_t step = nlohmann::json::parse(line).at("step");
      EXPECT_GT(step, before);
      before = step;
    }
    return before;
  }
  TempDir folder_;
};

}  // namespace reynard::test
