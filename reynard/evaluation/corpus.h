#pragma once
// The tokens that a task cuts its samples from, as one plain view: where they come from (a token
// file, text tokenized on the spot) is the caller's business.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

// The text of one document in the corpus, tokens [begin, end), without the BOS and EOS around it.
struct Document {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Corpus {
  std::string name = "text";  // what settings call it
  int64_t num_tokens = 0;     // BOS and EOS of documents included
  std::vector<Document> documents;
  // tokens [begin, end)
  std::function<std::vector<int64_t>(int64_t begin, int64_t end)> read;
  std::optional<int64_t> bos;  // token that the model was trained to see first; empty: none
  std::optional<int64_t> eos;
  int64_t num_text_bytes = 0;  // of all documents; 0: unknown (then no bits per byte)
  std::function<std::string(const std::vector<int64_t>&)> decode;  // tokens -> text
  // text -> tokens, without BOS and EOS
  std::function<std::vector<int64_t>(std::string_view)> encode;
  int64_t vocab_size = 0;      // of the tokenizer; a model's may be padded beyond it
  std::vector<Corpus> others;  // further texts under names of their own; they have no others
};

inline constexpr std::string_view kRandomSource = "random";

// The corpus itself ("text"), one of its others, or "random": `random_tokens` tokens drawn evenly
// from the vocabulary, the same for the same seed. Throws reynard::Error, listing the known names,
// for any other name.
Corpus source_named(const Corpus& corpus,
                    std::string_view name,
                    int64_t random_tokens,
                    int64_t seed);

}  // namespace reynard::evaluation
