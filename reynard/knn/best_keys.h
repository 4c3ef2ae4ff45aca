#pragma once
// The best k keys of one query while keys stream by with approximate scores: keeps each key that
// may still be among them, and scores exactly only when too many are too close to tell apart.

#include "reynard/knn/order.h"
#include "reynard/knn/problem.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace reynard::knn {

// The exact scores of one query against one head's keys.
struct ExactScore {
  const float* query = nullptr;  // (D)
  const KeyRows* rows = nullptr;
  int64_t key_head = 0;
  int64_t head_dim = 0;
  bool bf16_keys = false;

  float operator()(int64_t id) const;
};

// rank(score) of key id is in [lower, upper].
struct Candidate {
  float lower = 0, upper = 0;
  int64_t id = 0;
};

// Memory: at most 2k + 64 candidates.
class BestKeys {
 public:
  BestKeys(int64_t k, ExactScore exact) : k_(k), exact_(exact) {}

  // At least k keys have this rank or a higher one; a key that cannot reach it is not among the
  // best. -inf at first.
  float floor() const { return floor_; }
  void add(const Candidate& candidate);
  void add_exact(int64_t id);
  // The best k keys, or all that were added if they are fewer, in any order.
  std::vector<Scored> take();

 private:
  void shrink();
  void settle();

  int64_t k_;
  ExactScore exact_;
  std::vector<Candidate> pool_;
  float floor_ = -std::numeric_limits<float>::infinity();
};

}  // namespace reynard::knn
