#include "reynard/attention/cpu/pair_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace reynard::attention::cpu {
namespace {

std::vector<PairTask> taken_by_one(PairTasks& tasks) {
  std::vector<PairTask> taken;
  for (int64_t i = 0; i < tasks.count(); ++i) {
    taken.push_back(tasks.take(0));
    tasks.finish(taken.back());
  }
  return taken;
}

TEST(PairTasks, OneWorkerGoesThroughPairsByCostAndTasksInOrder) {
  // Pairs of costs 3, 9 and 3.
  std::vector<std::pair<int64_t, int64_t>> order;
  PairTasks tasks({2, 1, 4, 5, 0, 3}, 2, 1, 1);
  for (const PairTask& task : taken_by_one(tasks)) {
    EXPECT_EQ(task.slot, 0);
    order.emplace_back(task.pair, task.index);
  }
  EXPECT_EQ(
      order,
      (std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {1, 1}, {0, 0}, {0, 1}, {2, 0}, {2, 1}}));
}

TEST(PairTasks, AWorkerWithoutASlotHelpsWhereMostIsLeft) {
  PairTasks tasks({5, 1, 1, 5, 2, 2, 9, 9, 9}, 3, 2, 3);  // pairs of 7, 9, 27
  const PairTask a = tasks.take(0), b = tasks.take(1);
  EXPECT_EQ(a.pair, 2);
  EXPECT_EQ(b.pair, 1);
  EXPECT_NE(a.slot, b.slot);
  const PairTask c = tasks.take(2);  // 18 left in pair 2, 4 in pair 1
  EXPECT_EQ(c.pair, 2);
  EXPECT_EQ(c.index, 1);
  EXPECT_EQ(c.slot, a.slot);
}

TEST(PairTasks, AWorkerWaitsUntilASlotIsFree) {
  PairTasks tasks({1, 1}, 1, 1, 2);
  const PairTask first = tasks.take(0);
  PairTask second;
  std::thread other([&] { second = tasks.take(1); });
  tasks.finish(first);
  other.join();
  EXPECT_EQ(second.pair, 1);
  EXPECT_EQ(second.slot, 0);
}

// What tasks of any threads have to keep to; kept under one lock, as they take and finish.
struct Witness {
  std::mutex mutex;
  std::set<std::pair<int64_t, int64_t>> begun;
  std::map<int64_t, int64_t> pair_of_slot, unfinished;

  void begin(const PairTask& task, int64_t per_pair) {
    const std::scoped_lock lock(mutex);
    EXPECT_TRUE(begun.emplace(task.pair, task.index).second) << "begun twice";
    const auto [slot, is_new] = pair_of_slot.emplace(task.slot, task.pair);
    EXPECT_EQ(slot->second, task.pair) << "two pairs in a slot";
    if (is_new) unfinished[task.pair] = per_pair;
  }
  void finish(const PairTask& task) {
    const std::scoped_lock lock(mutex);
    if (--unfinished[task.pair] == 0) pair_of_slot.erase(task.slot);
  }
};

TEST(PairTasks, EachTaskIsDoneOnceAndSlotsAreNotShared) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t most) { return static_cast<int64_t>(random() % most) + 1; };
  for (int round = 0; round < 200; ++round) {
    const int64_t num_pairs = draw(9), per_pair = draw(7), num_workers = draw(6);
    const int64_t num_slots = draw(std::min(num_pairs, num_workers));
    std::vector<int64_t> costs(num_pairs * per_pair);
    for (int64_t& cost : costs) cost = draw(5) - 1;
    PairTasks tasks(costs, per_pair, num_slots, num_workers);
    Witness witness;
    std::atomic<int64_t> left = tasks.count();
    const auto work = [&](int64_t worker) {
      for (int64_t last = -1, pair = -1; left-- > 0;) {
        const PairTask task = tasks.take(worker);
        EXPECT_LT(task.slot, num_slots);
        EXPECT_TRUE(task.pair != pair || task.index > last) << "tasks of a pair out of order";
        pair = task.pair, last = task.index;
        witness.begin(task, per_pair);
        witness.finish(task);
        tasks.finish(task);
      }
    };
    std::vector<std::thread> threads;
    for (int64_t worker = 0; worker < num_workers; ++worker) threads.emplace_back(work, worker);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(static_cast<int64_t>(witness.begun.size()), num_pairs * per_pair);
  }
}

}  // namespace
}  // namespace reynard::attention::cpu
