// What rows are made of.

#include "bench/rows.h"

#include <gtest/gtest.h>

namespace reynard::bench {
namespace {

TEST(Rows, TheMedianOfAnEvenCountLiesBetweenBothMiddles) {
  EXPECT_EQ(median({3, 1}), 2);
  EXPECT_EQ(median({9, 1, 4, 2}), 3);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({7}), 7);
}

}  // namespace
}  // namespace reynard::bench
