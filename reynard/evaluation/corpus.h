#pragma once
// The tokens that a task cuts its samples from, as one plain view: where they come from (a token
// file, text tokenized on the spot) is the caller's business.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace reynard::evaluation {

// The text of one document in the corpus, tokens [begin, end), without the BOS and EOS around it.
struct Document {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Corpus {
  int64_t num_tokens = 0;  // BOS and EOS of documents included
  std::vector<Document> documents;
  // tokens [begin, end)
  std::function<std::vector<int64_t>(int64_t begin, int64_t end)> read;
  std::optional<int64_t> bos;  // token that the model was trained to see first; empty: none
  std::optional<int64_t> eos;
  // Bytes of text per token over the whole corpus; 0: unknown (then no bits per byte).
  double bytes_per_token = 0;
  std::function<std::string(const std::vector<int64_t>&)> decode;  // tokens -> text
};

}  // namespace reynard::evaluation
