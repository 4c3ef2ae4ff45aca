#pragma once
// The questions of the task few_shot with their answers, from a user's files: JSON lines, or TREC
// and WebQuestions as they are published.

#include "reynard/evaluation/retrieval_config.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

struct FewShotItem {
  std::string question;
  std::vector<std::string> answers;  // the first is shown in examples
};
struct FewShotFile {
  std::vector<FewShotItem> items;
  int64_t skipped = 0;  // malformed lines, where they are left out
};

// By the end of the name: .label is a TREC file (LABEL, blank, question), .json one of
// WebQuestions, anything else has {"question", "answer"} or {"question", "answers"} in each line.
// key: of the setting ("train" or "test"), for messages. Throws reynard::Error for a file that is
// not there, saying where to get it, and naming what is malformed unless config.skip_bad; of
// answers that are written that is also one of which compared_answer leaves nothing.
FewShotFile read_few_shot(const std::string& path,
                          std::string_view key,
                          const FewShotConfig& config);

// A written answer without regard to case, blanks around it and full stops behind it.
std::string compared_answer(std::string_view answer);

}  // namespace reynard::evaluation
