#pragma once
// A scorer made by hand, and a text and settings for it.

#include "reynard/evaluation/evaluation_config.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/error.h"
#include "tests/support/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::evaluation {

// Knows a token when the one before it was followed by the same token among the last `memory`
// tokens: copies text up to that distance. Otherwise wrong.
class Copier final : public Scorer {
 public:
  explicit Copier(int64_t memory) : memory_(memory) {}

  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      if (answered == fail_after) throw Error("out of patience");
      const Score& score = std::get<Score>(request.query);
      if (static_cast<int64_t>(score.context.size()) > most_context) throw std::bad_alloc();
      ++answered;
      std::vector<int64_t> tokens = score.context;
      Scored scored;
      for (const int64_t token : score.continuation) {
        scored.hits.push_back(knows(tokens, token) ? 1 : 0);
        // Loss falls with the position, so that averages can be checked.
        scored.logprobs.push_back(tokens.empty() ? std::nanf("")
                                                 : -1.0F / static_cast<float>(tokens.size()));
        tokens.push_back(token);
      }
      responses.emplace_back(std::move(scored));
    }
    return responses;
  }

  int64_t answered = 0;
  int64_t fail_after = std::numeric_limits<int64_t>::max();
  int64_t most_context = std::numeric_limits<int64_t>::max();

 private:
  bool knows(const std::vector<int64_t>& tokens, int64_t next) const {
    const auto n = static_cast<int64_t>(tokens.size());
    for (int64_t back = 1; back < std::min(n, memory_ + 1); ++back) {
      if (tokens[n - 1 - back] == tokens[n - 1] && tokens[n - back] == next) return true;
    }
    return false;
  }
  int64_t memory_;
};

// Distinct tokens: nothing can be known except by copying.
inline Corpus counting_corpus(int64_t tokens, const std::vector<int64_t>& ends = {}) {
  std::vector<int64_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), 10);
  Corpus corpus = test::corpus_of(std::move(ids), ends.empty() ? std::vector{tokens} : ends);
  corpus.bos = 1;
  corpus.eos = 2;
  return corpus;
}

inline EvaluationConfig small_config() {
  EvaluationConfig config;
  config.forgetting_curve = {.length = 64, .points = 8, .repeats = 3};
  config.per_position_loss = {.length = 128, .rows = 4};
  return config;
}

}  // namespace reynard::evaluation
