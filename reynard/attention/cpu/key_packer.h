#pragma once
// Packs the blocks of keys of a forward pass when they are first asked for: while they are still in
// the caches, and only those that any query sees.

#include "reynard/attention/cpu/prepared_problem.h"

#include <atomic>
#include <cstdint>
#include <vector>

namespace reynard::attention::cpu {

class KeyPacker {
 public:
  KeyPacker(const PreparedProblem& prepared, const PackedKeys& packed);

  // The blocks that hold these keys of a pair.
  void pack(int64_t pair, KeyRange keys);

 private:
  enum class State : char { kOpen, kBeingPacked, kPacked };

  const PreparedProblem& prepared_;
  const PackedKeys& packed_;
  std::vector<std::atomic<State>> states_;  // (pairs, key blocks)
};

}  // namespace reynard::attention::cpu
