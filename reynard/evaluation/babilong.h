#pragma once
// BABILong (Kuratov et al. 2024), tasks qa1 to qa5: small worlds of people, places and things told
// in sentences, a question about them, and the published prompts. The sentences are then spread
// over other text (tasks/babilong.cpp). Worlds are generated after the rules of bAbI (Weston et al.
// 2015), or read from its files.

#include "reynard/evaluation/python_random.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

struct BabiStory {
  std::vector<std::string> facts;  // sentences, in order
  std::string question, answer;
};

struct BabiTask {
  std::string_view name;
  std::string_view instruction, examples, format;  // of the published prompt
  std::vector<std::string_view> labels;            // all possible answers
  // A story of at most `most_facts` facts; at least two are always there.
  BabiStory (*make)(PythonRandom&, int64_t most_facts);
};

std::span<const BabiTask> babi_tasks();
// Throws reynard::Error, listing the known names, when there is no such task.
const BabiTask& babi_task_named(std::string_view name);

// The stories of a bAbI file: each question with all facts of its story before it. Throws
// reynard::Error naming file and line of what is malformed, unless skip_bad leaves it out.
struct BabiFile {
  std::vector<BabiStory> stories;
  int64_t skipped = 0;  // lines
};
BabiFile read_babi(const std::filesystem::path& path, bool skip_bad = false);

// The published prompt around a context.
std::string babilong_prompt(const BabiTask& task,
                            const std::string& context,
                            const std::string& question);

// Of the labels that the answer's first sentence names and the question does not, the right one is
// the only one.
bool babilong_correct(const BabiTask& task,
                      const std::string& written,
                      const std::string& question,
                      const std::string& answer);

}  // namespace reynard::evaluation
