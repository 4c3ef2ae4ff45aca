#pragma once
// How many tokens of a prompt to read at once while others write: what chunks took so far says what
// a token costs and what any chunk costs, however short. The latter is most of it on a GPU, which
// is told what to do in as many kernels for one token as for a thousand.

#include <cstdint>

namespace reynard::serving {

class ChunkCost {
 public:
  // A chunk of so many tokens, >= 1, took so long.
  void add(int64_t tokens, double seconds);
  bool is_known() const { return weight_ > 0; }
  // Tokens that take at most `seconds`; where any chunk takes longer, as many as double what it
  // takes, since shorter ones would hardly be faster. At least 0.
  double tokens_within(double seconds) const;

 private:
  // A chunk's seconds as a line over its tokens. Without chunks of different lengths, or where a
  // line would begin below 0, all is the tokens'.
  struct Line {
    double begin = 0, per_token = 0;
  };
  Line line() const;

  double per_token_ = 0;  // running mean
  // Sums over chunks of which older ones count less: 1, n, t, n n, n t.
  double weight_ = 0, tokens_ = 0, seconds_ = 0, tokens_squared_ = 0, products_ = 0;
};

}  // namespace reynard::serving
