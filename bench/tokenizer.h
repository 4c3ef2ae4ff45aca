#pragma once
// Megabytes of text per second of CPU time that a tokenizer encodes in one thread, against the PyPI
// package of its format in another process, by turns on the same text.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct TokenizerBench {
  std::string text;                     // file
  std::vector<std::string> tokenizers;  // tokenizer.json or SentencePiece models
  int64_t max_bytes = 4'000'000;        // of the text
  int repeats = 5;
};

// Throws reynard::Error when the peer does not run or an id differs.
Rows bench_tokenizer(const TokenizerBench& options);

}  // namespace reynard::bench
