#pragma once
// Cuts rows of equal length from a corpus: inside single documents, so that every row is one piece
// of connected text, at places that do not depend on the distance from the document's beginning.

#include "reynard/evaluation/corpus.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

struct Row {
  int64_t document = 0;
  int64_t begin = 0;  // first token, in the corpus
};

struct RowOptions {
  int64_t length = 0;  // tokens of a row
  int64_t rows = 0;    // at most this many
  int64_t seed = 0;
  bool across_documents = false;  // the whole corpus as one document
};

// Each document holds floor(size / length) rows one after the other, shifted by a random offset
// that leaves them inside; of all these, `rows` are taken evenly spread. No two rows overlap.
// Throws TextTooShort, naming the task, when no document is long enough.
std::vector<Row> cut_rows(const Corpus& corpus, const RowOptions& options, std::string_view task);

}  // namespace reynard::evaluation
