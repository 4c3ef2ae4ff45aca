#include "reynard/evaluation/corpus.h"

#include "reynard/data/random.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reynard::evaluation {

namespace {

// Token i follows from i and the seed alone, so nothing is stored.
Corpus random_corpus(const Corpus& like, int64_t num_tokens, int64_t seed) {
  // The published script leaves the first ten ids out: special tokens of many vocabularies.
  constexpr int64_t kFirst = 10;
  tensor::check_value(like.vocab_size > kFirst + 2,
                      "eval",
                      "vocabulary for random text",
                      like.vocab_size,
                      "more than 12 tokens");
  Corpus corpus = like;
  corpus.name = kRandomSource;
  corpus.others.clear();
  corpus.num_tokens = num_tokens;
  corpus.documents = {{0, num_tokens}};
  corpus.num_text_bytes = 0;
  const auto choices = static_cast<uint64_t>(like.vocab_size - kFirst);
  corpus.read = [choices, seed, bos = like.bos, eos = like.eos](int64_t begin, int64_t end) {
    std::vector<int64_t> tokens;
    for (int64_t i = begin; i < end; ++i) {
      uint64_t bits = data::mix(static_cast<uint64_t>(i) ^ data::mix(static_cast<uint64_t>(seed)));
      int64_t token = kFirst + static_cast<int64_t>(bits % choices);
      while (token == bos || token == eos) {
        bits = data::mix(bits);
        token = kFirst + static_cast<int64_t>(bits % choices);
      }
      tokens.push_back(token);
    }
    return tokens;
  };
  return corpus;
}

}  // namespace

Corpus source_named(const Corpus& corpus,
                    std::string_view name,
                    int64_t random_tokens,
                    int64_t seed) {
  if (name == corpus.name) return corpus;
  if (name == kRandomSource) return random_corpus(corpus, random_tokens, seed);
  std::vector<std::string> known{corpus.name};
  for (const Corpus& other : corpus.others) {
    if (other.name == name) return other;
    known.push_back(other.name);
  }
  known.emplace_back(kRandomSource);
  throw Error(fmt::format("eval: no text is called '{}'; known: {}; give it with --text {}=FILE",
                          name,
                          fmt::join(known, ", "),
                          name));
}

}  // namespace reynard::evaluation
