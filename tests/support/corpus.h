#pragma once
// A corpus for tests.

#include "reynard/evaluation/corpus.h"

#include <cstdint>
#include <vector>

namespace reynard::test {

// A corpus held in memory whose tokens are all text, with the bytes 0-255 as its tokenizer;
// document_ends: one past the last token of each document, ascending.
evaluation::Corpus corpus_of(std::vector<int64_t> tokens,
                             const std::vector<int64_t>& document_ends);

}  // namespace reynard::test
