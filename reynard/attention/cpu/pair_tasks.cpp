#include "reynard/attention/cpu/pair_tasks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace reynard::attention::cpu {

PairTasks::PairTasks(std::vector<int64_t> costs,
                     int64_t per_pair,
                     int64_t num_slots,
                     int64_t num_workers)
    : costs_(std::move(costs)),
      per_pair_(per_pair),
      pairs_(costs_.size() / per_pair),
      order_(pairs_.size()),
      free_slots_(num_slots),
      pair_of_(num_workers, -1) {
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    const auto first = costs_.begin() + static_cast<int64_t>(pair) * per_pair;
    pairs_[pair].num_unfinished = per_pair;
    pairs_[pair].cost = std::accumulate(first, first + per_pair, int64_t{0});
  }
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::stable_sort(order_, std::greater{}, [&](int64_t pair) { return pairs_[pair].cost; });
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
}

PairTask PairTasks::take(int64_t worker) {
  std::unique_lock lock(mutex_);
  int64_t pair = choose(pair_of_[worker]);
  while (pair < 0) {
    slot_is_free_.wait(lock);
    pair = choose(-1);
  }
  pair_of_[worker] = pair;
  Pair& state = pairs_[pair];
  const int64_t index = state.next++;
  state.cost -= costs_[pair * per_pair_ + index];
  return {.pair = pair, .index = index, .slot = state.slot};
}

void PairTasks::finish(const PairTask& task) {
  const std::scoped_lock lock(mutex_);
  if (--pairs_[task.pair].num_unfinished > 0) return;
  free_slots_.push_back(task.slot);
  slot_is_free_.notify_all();
}

int64_t PairTasks::choose(int64_t current) {
  if (current >= 0 && has_tasks(current)) return current;
  if (num_begun_ == order_.size() || free_slots_.empty()) return open_pair_with_most_left();
  const int64_t pair = order_[num_begun_++];
  pairs_[pair].slot = free_slots_.back();
  free_slots_.pop_back();
  return pair;
}

int64_t PairTasks::open_pair_with_most_left() const {
  int64_t most = -1;
  for (size_t i = 0; i < num_begun_; ++i) {
    const int64_t pair = order_[i];
    if (has_tasks(pair) && (most < 0 || pairs_[pair].cost > pairs_[most].cost)) most = pair;
  }
  return most;
}

}  // namespace reynard::attention::cpu
