#pragma once
// LongBench (Bai et al. 2023): the 14 English tasks that the FoX paper reports, their published
// prompts and answer lengths, and how each is scored. The data is the user's (its files hold texts
// of other publications); reading them is here, asking the model is tasks/longbench.cpp.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

enum class LongbenchMetric { kF1, kRougeL, kClass, kCode };

struct LongbenchTask {
  std::string_view name;  // of its file too: NAME.jsonl
  LongbenchMetric metric;
  int64_t max_tokens;       // of an answer
  bool first_line;          // upstream scores the first line only
  std::string_view prompt;  // with {context} and {input}
};

std::span<const LongbenchTask> longbench_tasks();
// Throws reynard::Error, listing the known names, when there is no such task.
const LongbenchTask& longbench_task_named(std::string_view name);

struct LongbenchSample {
  std::string input, context;
  std::vector<std::string> answers;  // any of them is right
  std::vector<std::string> classes;  // of trec; else empty
  int64_t words = 0;                 // "length" of the file
  int64_t line = 0;                  // of the file, from 1
};
struct LongbenchFile {
  std::vector<LongbenchSample> samples;
  int64_t skipped = 0;  // malformed lines, where they are left out
};
// Throws reynard::Error for a file that is not there, saying where to get it, and naming line and
// field for a malformed sample unless skip_bad.
LongbenchFile read_longbench(const std::filesystem::path& path,
                             const LongbenchTask& task,
                             bool skip_bad);

std::string longbench_prompt(const LongbenchTask& task, const LongbenchSample& sample);

// The published buckets of LongBench-E: "0-4k", "4-8k" or "8k+" words.
std::string_view longbench_bucket(int64_t words);

// The score in [0, 1] of what was written against one answer. classes: of LongbenchSample.
double longbench_score(LongbenchMetric metric,
                       const std::string& written,
                       const std::string& answer,
                       const std::vector<std::string>& classes);

}  // namespace reynard::evaluation
