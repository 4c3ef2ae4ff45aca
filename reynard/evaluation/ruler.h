#pragma once
// RULER (Hsieh et al. 2024): the 13 tasks as generators of prompts of any size. Prompts are those
// that were published, word for word; essays, words and question data are the caller's. How samples
// are sized to a length and scored: tasks/ruler.cpp.

#include "reynard/evaluation/python_random.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

struct RulerSample {
  std::string text;  // the prompt with the beginning of the answer
  std::vector<std::string> answers;
};

// A question with the documents that answer it and others to mix in.
struct RulerQuestion {
  std::string question;
  std::vector<std::string> answers;
  std::vector<size_t> documents;  // that belong to it, as indices into all documents
  std::vector<size_t> nearby;     // of the same article: mixed in before all others
};
struct RulerQuestions {
  std::vector<std::string> documents;
  std::vector<RulerQuestion> questions;
  int64_t skipped = 0;  // malformed entries, where they are left out
};

struct RulerSources {
  std::vector<std::string> words;              // distinct
  std::vector<std::string> adjectives, nouns;  // keys are pairs of them; empty: pairs of words
  std::vector<std::string> essay_words;        // of the haystack, in order
  RulerQuestions squad, hotpot;                // empty: qa_1, qa_2 cannot be made
  int64_t example_lines = 5;                   // other lines of the solved example of vt
};

struct RulerTask {
  std::string_view name;
  int64_t max_tokens;      // of an answer, as published
  int64_t least;           // parts of the smallest haystack that holds what is asked for
  int64_t unit;            // it grows by so much
  bool any_answer_counts;  // score: the best of the answers, else their share
  // A sample whose haystack has `size` parts (words, lines, documents). length: of the whole, which
  // decides the variant; index: of the sample.
  RulerSample (*make)(
      const RulerSources&, PythonRandom&, int64_t size, int64_t length, int64_t index);
};

std::span<const RulerTask> ruler_tasks();
// Throws reynard::Error, listing the known names, when there is no such task.
const RulerTask& ruler_task_named(std::string_view name);

// Files as published: SQuAD (qa_1) and HotpotQA distractor (qa_2) development sets. Throw
// reynard::Error naming file and place of what is wrong, unless skip_bad leaves it out.
inline constexpr const char* kWhereToGetSquad =
    "download https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json and name it with "
    "--ruler.squad=FILE";
inline constexpr const char* kWhereToGetHotpot =
    "download http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json and name it "
    "with --ruler.hotpot=FILE";
RulerQuestions read_squad(const std::filesystem::path& path, bool skip_bad = false);
RulerQuestions read_hotpot(const std::filesystem::path& path, bool skip_bad = false);

// vt without its solved example: one chain of assignments among `lines` other lines, at least five.
// Names of variables have name_size letters.
RulerSample ruler_variables(PythonRandom& random, int64_t lines, int64_t name_size);

// The index-th question with `size` documents: its own, then others of their article, then any.
RulerSample ruler_question(const RulerQuestions& data,
                           PythonRandom& random,
                           int64_t size,
                           int64_t index);

// Distinct words of 3 to 12 letters, all of them a to z, in the order in which they first occur, at
// most `most`. Parts of other words, as of "Walking" and "café", are none.
std::vector<std::string> words_of(std::string_view text, size_t most);

}  // namespace reynard::evaluation
