#pragma once
// Which worker does what, where each (b, g) pair has tasks that share what lies in the caches or,
// in the backward pass, a slot of scratch. A worker stays with its pair; then it begins another,
// most expensive first, as long as slots are free, and helps where most is left when none may
// begin. Tasks of a pair begin in ascending order.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace reynard::attention::cpu {

struct PairTask {
  int64_t pair = 0, index = 0, slot = 0;
};

class PairTasks {
 public:
  // costs (pairs, per_pair)
  PairTasks(std::vector<int64_t> costs, int64_t per_pair, int64_t num_slots, int64_t num_workers);

  int64_t count() const { return static_cast<int64_t>(costs_.size()); }

  // The next task of a worker; waits where all that may begin have. At most count() calls, and
  // each task is finished before its worker takes the next.
  PairTask take(int64_t worker);
  void finish(const PairTask& task);

 private:
  struct Pair {
    int64_t slot = -1;           // while it is worked on
    int64_t next = 0;            // task to begin
    int64_t num_unfinished = 0;  // tasks
    int64_t cost = 0;            // of those that have not begun
  };
  bool has_tasks(int64_t pair) const { return pairs_[pair].next < per_pair_; }
  // The pair that a worker goes on with, or -1.
  int64_t choose(int64_t current);
  int64_t open_pair_with_most_left() const;

  const std::vector<int64_t> costs_;
  const int64_t per_pair_;
  std::mutex mutex_;
  std::condition_variable slot_is_free_;
  std::vector<Pair> pairs_;
  std::vector<int64_t> order_;  // pairs, most expensive first
  size_t num_begun_ = 0;        // of them
  std::vector<int64_t> free_slots_;
  std::vector<int64_t> pair_of_;  // each worker, or -1
};

}  // namespace reynard::attention::cpu
