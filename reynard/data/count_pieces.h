#pragma once
// The pieces of text files, counted in parallel: what a vocabulary is learnt from.

#include "reynard/data/prepare.h"
#include "reynard/tokenizer/train_bpe.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace reynard::data {

struct CountOptions {
  std::vector<std::filesystem::path> inputs;  // files and folders, as `reynard prepare` takes them
  std::vector<std::string> patterns;          // of the files in folders (fnmatch); none: all
  std::filesystem::path output;               // of what is learnt: no text, where a folder has it
  std::optional<std::string> field;           // of the objects in .jsonl files, as for `prepare`
  tokenizer::SplitPattern pattern = tokenizer::SplitPattern::kGpt2;
  std::vector<std::string> special_tokens;  // left out where the text has them
  int64_t num_threads = 0;                  // 0: as many as the machine has
};

// The result does not depend on the number of threads. Throws reynard::Error for bad input; files
// in folders that are not text are left out.
tokenizer::PieceCounts count_pieces(const CountOptions& options,
                                    const PrepareProgress& progress = {});

}  // namespace reynard::data
