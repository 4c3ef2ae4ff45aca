#pragma once
// The best k keys of one query while keys stream by with approximate scores: keeps each key that
// may still be among them, and scores exactly only when too many are too close to tell apart.

#include "reynard/knn/order.h"
#include "reynard/knn/problem.h"

#include <atomic>
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
  void prefetch(int64_t id) const;

 private:
  int64_t offset(int64_t id) const;  // of the key, in elements
};

// rank(score) of key id is in [lower, upper].
struct Candidate {
  float lower = 0, upper = 0;
  int64_t id = 0;
};

// A rank that at least k keys of a query are known to have; -inf at first. Threads that search
// parts of the keys share it: when one raises it affects their work, not the result.
class Floor {
 public:
  float get() const { return value_.load(std::memory_order_relaxed); }
  void raise(float value) {
    float held = get();
    while (held < value && !value_.compare_exchange_weak(held, value, std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<float> value_ = -std::numeric_limits<float>::infinity();
};

// Memory: at most 2k + 64 candidates.
class BestKeys {
 public:
  BestKeys(int64_t k, ExactScore exact, Floor& floor) : k_(k), exact_(exact), floor_(&floor) {}

  // A key that cannot reach this is not among the best.
  float floor() const { return floor_->get(); }
  void add(const Candidate& candidate);
  void add_exact(int64_t id);
  // Of the keys that were added those that may be among the best; nothing is left here.
  std::vector<Candidate> take_candidates();
  // The best k of the keys that were added, or all if they are fewer, in any order.
  std::vector<Scored> take();

 private:
  void shrink();
  void settle();

  int64_t k_;
  ExactScore exact_;
  Floor* floor_;
  std::vector<Candidate> pool_;
};

}  // namespace reynard::knn
