#pragma once
// Who works on which key block of a backward pass, and when. Tasks of a pair begin in ascending
// order (BackwardTask says why); pairs begin most expensive first, as many at once as there are
// slots for what they share. A worker stays with its pair, whose sums its caches hold, then begins
// another, and helps where most is left when none may begin.

#include "reynard/attention/cpu/kernels.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace reynard::attention::cpu {

class BackwardTasks {
 public:
  // costs (pairs, num_blocks) of each key block.
  BackwardTasks(std::vector<int64_t> costs,
                int64_t num_blocks,
                int64_t num_slots,
                int64_t num_workers);

  int64_t count() const { return static_cast<int64_t>(costs_.size()); }

  // The next task of a worker; waits where all that may begin have. At most count() calls, and
  // each task is finished before its worker takes the next.
  BackwardTask take(int64_t worker);
  void finish(const BackwardTask& task);

 private:
  struct Pair {
    int64_t slot = -1;           // while it is worked on
    int64_t next = 0;            // block to begin
    int64_t num_unfinished = 0;  // blocks
    int64_t cost = 0;            // of the blocks that have not begun
  };
  bool has_blocks(int64_t pair) const { return pairs_[pair].next < num_blocks_; }
  // The pair that a worker goes on with, or -1.
  int64_t choose(int64_t current);
  int64_t open_pair_with_most_left() const;

  const std::vector<int64_t> costs_;
  const int64_t num_blocks_;
  std::mutex mutex_;
  std::condition_variable slot_is_free_;
  std::vector<Pair> pairs_;
  std::vector<int64_t> order_;  // pairs, most expensive first
  size_t num_begun_ = 0;        // of them
  std::vector<int64_t> free_slots_;
  std::vector<int64_t> pair_of_;  // each worker, or -1
};

}  // namespace reynard::attention::cpu
