// The order in which the Hopper forward takes query blocks: plain arithmetic that needs no GPU.

#include "reynard/attention/cuda/sm90/query_block_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <string>
#include <vector>

namespace reynard::attention::cuda::sm90 {
namespace {

std::vector<QueryBlockOrder> orders() {
  std::vector<QueryBlockOrder> found;
  for (const int blocks : {1, 2, 22, 86, 1366}) {
    for (const int costly : {0, 1, 6, 8, 12, 24}) {
      for (const int others : {0, 1, 18, 36}) {
        for (const int key_blocks : {blocks, 3 * blocks / 2 + 1}) {
          found.push_back({costly * blocks, others * blocks, key_blocks, 132, 0});
        }
      }
    }
  }
  return found;
}

std::string described(const QueryBlockOrder& order) {
  return std::to_string(order.costly) + " costly of up to " + std::to_string(order.key_blocks) +
         " key blocks, " + std::to_string(order.others) + " others";
}

// A single row of a causal triangle, 192 queries a block, and `others` short rows.
QueryBlockOrder triangle(int blocks, int others) {
  const int key_blocks = 3 * blocks / 2;
  return {blocks, others * blocks, key_blocks, 132, int64_t{blocks} * key_blocks / 2};
}

TEST(QueryBlockOrder, EveryPlaceIsTakenOnceAndKindsKeepTheirOrder) {
  for (const QueryBlockOrder& order : orders()) {
    SCOPED_TRACE(described(order));
    std::vector<int> times(static_cast<size_t>(order.costly + order.others));
    for (int i = 0, last = -1; i < order.costly; ++i) {
      const int place = order.place_of_costly(i);
      ASSERT_GT(place, last);
      last = place;
      ++times.at(static_cast<size_t>(place));
    }
    for (int j = 0, last = -1; j < order.others; ++j) {
      const int place = order.place_of_other(j);
      ASSERT_GT(place, last);
      last = place;
      ++times.at(static_cast<size_t>(place));
    }
    EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
  }
}

// Three heads of four pruned, 16,384 keys: three others between two costly ones.
TEST(QueryBlockOrder, TakesShortTasksBetweenLongOnes) {
  const QueryBlockOrder order = {6 * 86, 18 * 86, 128, 132, 0};
  for (int i = 0; i < order.costly; ++i) EXPECT_EQ(order.place_of_costly(i), 4 * i);
}

// At 65,536 keys those of as many heads are little beside the costly ones.
TEST(QueryBlockOrder, TakesLongTasksFirstWhereTheOthersAreLittle) {
  const QueryBlockOrder order = {342, 3 * 342, 512, 132, 0};
  for (int i = 0; i < order.costly; ++i) EXPECT_EQ(order.place_of_costly(i), i);
}

TEST(QueryBlockOrder, TakesTheThirdTasksOfATriangleBehindTheFirst) {
  for (const int others : {0, 3}) {
    for (int blocks = 250; blocks <= 410; ++blocks) {
      const QueryBlockOrder order = triangle(blocks, others);
      const int third = 264 < blocks && blocks < 396 ? blocks - 264 : 0;
      SCOPED_TRACE(described(order));
      std::vector<int> taken(static_cast<size_t>(blocks));  // which one at each place
      for (int i = 0; i < blocks; ++i) taken.at(static_cast<size_t>(order.place_of_costly(i))) = i;
      std::vector<int> expected(static_cast<size_t>(blocks));
      std::iota(expected.begin(), expected.end(), 0);
      std::rotate(expected.begin() + 132, expected.end() - third, expected.end());
      std::reverse(expected.begin() + 132, expected.begin() + 132 + third);
      EXPECT_EQ(taken, expected);
    }
  }
}

// When the last of the tasks is done if who is free takes the next one.
int time_of(const std::vector<int>& costs, int processors) {
  std::priority_queue<int, std::vector<int>, std::greater<>> free_at;
  for (int i = 0; i < processors; ++i) free_at.push(0);
  int last = 0;
  for (const int cost : costs) {
    const int end = free_at.top() + cost;
    free_at.pop();
    free_at.push(end);
    last = std::max(last, end);
  }
  return last;
}

// Costs of a row whose queries see `window` key blocks at most, as they are taken and as they fall.
struct Times {
  int taken, falling;
};
Times times_of(int blocks, int window) {
  std::vector<int> costs;
  for (int i = blocks; i > 0; --i) costs.push_back(std::min((3 * i + 1) / 2, window));
  const int64_t cost = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const QueryBlockOrder order = {blocks, 0, (3 * blocks + 1) / 2, 132, cost};
  std::vector<int> taken(costs.size());
  for (int i = 0; i < blocks; ++i) {
    taken.at(static_cast<size_t>(order.place_of_costly(i))) = costs[static_cast<size_t>(i)];
  }
  return {time_of(taken, 132), time_of(costs, 132)};
}

TEST(QueryBlockOrder, TrianglesEndEarlierAndWindowsNoLater) {
  for (int blocks = 2; blocks < 600; ++blocks) {
    SCOPED_TRACE(blocks);
    const Times triangle = times_of(blocks, 3 * blocks);
    EXPECT_LE(triangle.taken, triangle.falling);
    if (295 < blocks && blocks < 380) {
      EXPECT_LE(triangle.taken, 0.97 * triangle.falling);
    }
    for (const int share : {2, 3, 8, 32}) {
      const Times window = times_of(blocks, 3 * blocks / (2 * share) + 1);
      EXPECT_LE(window.taken, window.falling) << "a window of 1/" << share;
    }
  }
}

}  // namespace
}  // namespace reynard::attention::cuda::sm90
