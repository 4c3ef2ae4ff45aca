#pragma once
// Tasks that give the model a prompt and judge what it writes: a list of prompts with expected
// answers becomes a Task. What is asked and how an answer is judged is the caller's (tasks/*.cpp);
// asking, recording and averaging are here.

#include "reynard/evaluation/corpus.h"
#include "reynard/evaluation/python_random.h"
#include "reynard/evaluation/task.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

struct Prompt {
  std::string id;                    // unique in the task
  nlohmann::json about;              // length, depth, ...: goes into the sample line
  std::vector<int64_t> tokens;       // all that the model reads, BOS included
  std::vector<std::string> answers;  // what it should write
  int64_t max_tokens = 64;
};

struct PromptSet {
  std::string name;
  nlohmann::json settings;
  int64_t size = 0;
  std::function<Prompt(int64_t)> at;
  // Score in [0, 1] of what the model wrote; `line` has the prompt's about and "answers".
  std::function<double(const std::string& written, const nlohmann::json& line)> score;
  std::vector<std::string> group_by;  // keys of about: scores are averaged where they are equal
  bool first_line = false;            // only the answer's first line with text counts
  // Further fields of the sample line, from all that the model wrote; may be empty. A number
  // "rating" is averaged too.
  std::function<nlohmann::json(const std::string& written)> rate = {};
  // More metrics from the averages; may be empty.
  std::function<void(Measured&)> finish = {};
};

// One line per prompt: about, "answers", "prompt_tokens", "answer" (what was written), "score".
// Metrics: "score", "standard_error", "samples"; series "groups": [{group keys, "score",
// "standard_error", "samples"}]. The corpus must outlive the task.
std::unique_ptr<Task> make_prompt_task(const Corpus& corpus, PromptSet set);

// Mean scores of sample lines by the values of some of their keys, in the order of the lines.
Measured average_scores(const Samples& samples, const std::vector<std::string>& group_by);

// The corpus's documents one after the other, without BOS and EOS, again from the beginning where
// they end.
class Haystack {
 public:
  // Throws reynard::Error, naming the task, for a corpus without text.
  Haystack(const Corpus& corpus, std::string_view task);
  int64_t num_tokens() const { return ends_.back(); }
  // `count` tokens from place `begin` on, begin >= 0.
  std::vector<int64_t> read(int64_t begin, int64_t count) const;

 private:
  const Corpus& corpus_;
  std::vector<int64_t> ends_;  // per document: tokens of it and all before it
};

// Each once, in the order of their first places.
std::vector<std::string> each_once(const std::vector<std::string>& names);
// Each once.
std::vector<int64_t> ascending(const std::vector<int64_t>& values);
// Context lengths to test: those that were asked for, each once and ascending, or those of 1/4,
// 1/2, 1, 2 and 4 times the training length (4096 where it is unknown) that hold the shortest
// prompt; the longest where none does.
std::vector<int64_t> test_lengths(const std::vector<int64_t>& asked,
                                  int64_t train_length,
                                  const std::function<bool(int64_t length)>& holds = {});

// What a request is about where a task asks for every length, at each of them every sub-task, and
// of each so many samples.
struct Cell {
  size_t task;
  int64_t length, sample;
};
Cell cell_of(int64_t request,
             const std::vector<int64_t>& lengths,
             size_t num_tasks,
             int64_t num_samples);

// The random stream of one sample, so that any of them can be made alone.
PythonRandom sample_random(int64_t seed, int64_t sample);

// Tokens that end an answer: EOS, where there is one.
std::vector<int64_t> stop_tokens(const Corpus& corpus);
// Tokens that hold line ends alone: they end an answer of one line (Generate::stop_after_text).
std::vector<int64_t> line_ends(const Corpus& corpus);

// Tokens of a text as it stands behind other text: some tokenizers put a mark before the first.
std::vector<int64_t> inner_tokens(const Corpus& corpus, std::string_view text);

// BOS, where the model has one, and the tokens of a text.
std::vector<int64_t> prompt_tokens(const Corpus& corpus, std::string_view text);

std::string first_line_of(std::string_view text);                    // leading blank lines left out
bool is_blank(std::string_view text);                                // nothing but white space
std::string lower_case(std::string_view text);                       // of every character
bool contains_folded(std::string_view text, std::string_view part);  // without regard to case
// Share of the answers that the text contains, without regard to case (RULER's string_match_all).
double share_contained(std::string_view text, const nlohmann::json& answers);

}  // namespace reynard::evaluation
