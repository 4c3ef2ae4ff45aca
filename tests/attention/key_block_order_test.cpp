// The order in which the Hopper backward takes key blocks: plain arithmetic that needs no GPU.

#include "reynard/attention/cuda/sm90/key_block_order.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace reynard::attention::cuda::sm90 {
namespace {

using Counts = KeyBlockOrder::Counts;

std::vector<TakenKeyBlock> all_tasks(const Counts& counts) {
  const KeyBlockOrder order(counts);
  std::vector<TakenKeyBlock> tasks;
  for (int task = 0; task < (counts.whole + counts.others) * counts.blocks; ++task) {
    tasks.push_back(order.take(task));
  }
  return tasks;
}

std::vector<Counts> cases() {
  std::vector<Counts> found;
  for (const int processors : {1, 7, 57, 66, 114, 132}) {
    for (const int blocks : {1, 2, 19, 43, 86, 128, 131, 160, 342, 600}) {
      for (const auto& [whole, others] :
           {std::pair(0, 5), {1, 0}, {1, 3}, {2, 6}, {3, 2}, {7, 0}, {24, 0}, {5, 19}}) {
        for (const int tiles : {1, 30, 2 * blocks}) {
          found.push_back({processors, blocks, tiles, whole, others, 7, 512});
        }
      }
    }
  }
  return found;
}

std::string described(const Counts& c) {
  return std::to_string(c.processors) + " processors, " + std::to_string(c.blocks) +
         " key blocks, " + std::to_string(c.tiles) + " tiles, " + std::to_string(c.whole) +
         " whole rows, " + std::to_string(c.others) + " others";
}

TEST(KeyBlockOrder, TakesEachKeyBlockOnce) {
  for (const Counts& counts : cases()) {
    SCOPED_TRACE(described(counts));
    std::map<std::pair<int, int>, int> times;
    for (const TakenKeyBlock& taken : all_tasks(counts)) {
      ++times[{taken.pair, taken.n}];
      ASSERT_TRUE(taken.pair >= 0 && taken.pair < counts.whole + counts.others);
      ASSERT_TRUE(taken.begin >= 0 && taken.begin <= taken.n);
      ASSERT_TRUE(taken.n < taken.end && taken.end <= counts.blocks);
    }
    // As many as there are tasks, so none twice.
    ASSERT_EQ(times.size(), static_cast<size_t>((counts.whole + counts.others) * counts.blocks));
  }
}

// Else a key block could wait for one that nobody has taken yet, or two add at the same time.
TEST(KeyBlockOrder, TurnsAreTheOrderOfTasks) {
  for (const Counts& counts : cases()) {
    SCOPED_TRACE(described(counts));
    std::vector<std::vector<TakenKeyBlock>> of_pair(counts.whole + counts.others);
    for (const TakenKeyBlock& taken : all_tasks(counts)) of_pair[taken.pair].push_back(taken);
    std::srand(1);
    for (const auto& row : of_pair) {
      for (int range = 0; range < 4; ++range) {
        const int first = range == 0 ? 0 : std::rand() % counts.blocks;
        const int last =
            range == 0 ? counts.blocks - 1 : first + std::rand() % (counts.blocks - first);
        int turn = 0;
        for (const TakenKeyBlock& taken : row) {
          if (taken.n < first || taken.n > last) continue;
          ASSERT_EQ(taken.turn_among({first, last}), turn++)
              << taken.n << " of " << first << ".." << last;
        }
      }
    }
  }
}

// T = 16,384 at 128 dimensions on 132 processors: a row of 128 key blocks is a wave.
TEST(KeyBlockOrder, WalksWholeRowsUpwardsAndDownwardsByTurns) {
  const auto tasks = all_tasks({132, 128, 256, 2, 1, 7, 512});
  const auto is = [&](int task, int pair, int n, bool downwards) {
    EXPECT_EQ(std::tuple(tasks[task].pair, tasks[task].n, tasks[task].downwards),
              std::tuple(pair, n, downwards))
        << task;
  };
  is(0, 0, 127, false);
  is(127, 0, 0, false);
  is(128, 1, 0, true);
  is(255, 1, 127, true);
  is(256, 2, 127, false);  // of a row that is cut
}

// T = 65,536 at 128 dimensions, one row whole: waves of 132, 132, 132 and 116 key blocks.
TEST(KeyBlockOrder, SpreadsTheWavesOfOneLongRow) {
  const auto tasks = all_tasks({132, 512, 1024, 1, 3, 7, 512});
  std::vector<TakenKeyBlock> row;
  for (const TakenKeyBlock& taken : tasks) {
    if (taken.pair == 0) row.push_back(taken);
  }
  for (const auto& [place, n] : {std::pair(0, 131), {131, 0}, {132, 263}, {264, 264}, {511, 511}}) {
    EXPECT_EQ(row[place].n, n) << place;
    EXPECT_TRUE(row[place].downwards) << place;
  }
  // Six begin while 126 processors have tasks of other rows, then six more while 120 do.
  for (const auto& [task, pair] :
       {std::pair(5, 0), {6, 1}, {131, 3}, {132, 0}, {137, 0}, {138, 1}}) {
    EXPECT_EQ(tasks[task].pair, pair) << task;
  }
}

// With 100 key blocks two rows share a wave, 66 of each; what that leaves comes behind other rows.
TEST(KeyBlockOrder, LeavesShortTasksForTheEnd) {
  const auto tasks = all_tasks({132, 100, 200, 4, 2, 7, 512});
  EXPECT_EQ(tasks[4 * 66].pair, 4);
  EXPECT_EQ(std::pair(tasks[4 * 66 + 200].pair, tasks[4 * 66 + 200].n), std::pair(0, 98));
}

TEST(KeyBlockOrder, TakesAsManyOtherRowsTogetherAsStayInTheCache) {
  for (const auto& [tiles, together] : {std::pair(7, 8), {100, 5}, {600, 1}}) {
    const auto tasks = all_tasks({132, 20, 1000, 0, 10, tiles, 512});
    EXPECT_EQ(tasks[together - 1].pair, together - 1);
    EXPECT_EQ(std::pair(tasks[together].pair, tasks[together].n), std::pair(0, 18));
  }
}

// Few queries: with one row at a time all would add to the same four sums.
TEST(KeyBlockOrder, TakesManyRowsOfFewQueriesTogether) {
  const auto tasks = all_tasks({132, 128, 4, 0, 512, 4, 512});
  EXPECT_EQ(std::pair(tasks[63].pair, tasks[63].n), std::pair(63, 127));
  EXPECT_EQ(std::pair(tasks[64].pair, tasks[64].n), std::pair(0, 126));
}

}  // namespace
}  // namespace reynard::attention::cuda::sm90
