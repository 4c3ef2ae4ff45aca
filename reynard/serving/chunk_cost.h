#pragma once
// How many tokens of a prompt to read at once while others write: what chunks took so far says what
// a token costs and what any chunk costs, however short. The latter is most of it on a GPU, which
// is told what to do in as many kernels for one token as for a thousand.

#include <cstdint>
#include <optional>

namespace reynard::serving {

class ChunkCost {
 public:
  // Chunks have 1 <= least <= most tokens.
  ChunkCost(int64_t least, int64_t most);

  // A chunk of so many tokens, >= 1, took so long.
  void add(int64_t tokens, double seconds);
  // Tokens that take at most `seconds`, or, where any chunk takes more than half of that, as many
  // as double what any takes, since shorter ones would hardly be faster. At most twice what chunks
  // had so far, on average; the least where none is known. Now and then another number, so that
  // what was learned from a disturbed chunk is found out.
  int64_t tokens_within(double seconds) const;

 private:
  // A chunk's seconds as a line over its tokens.
  struct Line {
    double begin = 0, per_token = 0;
  };
  bool tells_a_line() const;
  double another_length() const;
  Line fitted() const;
  Line line_now() const;
  double wanted(double seconds) const;

  int64_t least_, most_;
  // Sums over chunks of which older ones count less: 1, n, t, n n, n t.
  double weight_ = 0, tokens_ = 0, seconds_ = 0, tokens_squared_ = 0, products_ = 0;
  std::optional<Line> line_;  // the last that chunks of different lengths told
  int64_t untold_ = 0;        // chunks since then
  int64_t patience_;          // of them, before one of another length
};

}  // namespace reynard::serving
