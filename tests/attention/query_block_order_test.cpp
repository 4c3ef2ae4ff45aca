// The order in which the Hopper forward takes query blocks: plain arithmetic that needs no GPU.

#include "reynard/attention/cuda/sm90/query_block_order.h"

#include <gtest/gtest.h>

#include <algorithm>
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
          found.push_back({costly * blocks, others * blocks, key_blocks});
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
  const QueryBlockOrder order = {6 * 86, 18 * 86, 128};
  for (int i = 0; i < order.costly; ++i) EXPECT_EQ(order.place_of_costly(i), 4 * i);
}

// At 65,536 keys those of as many heads are little beside the costly ones.
TEST(QueryBlockOrder, TakesLongTasksFirstWhereTheOthersAreLittle) {
  const QueryBlockOrder order = {342, 3 * 342, 512};
  for (int i = 0; i < order.costly; ++i) EXPECT_EQ(order.place_of_costly(i), i);
}

}  // namespace
}  // namespace reynard::attention::cuda::sm90
