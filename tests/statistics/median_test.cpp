#include "reynard/statistics/median.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reynard::statistics {
namespace {

TEST(Median, OfAnEvenCountLiesBetweenBothMiddles) {
  EXPECT_EQ(median({3, 1}), 2);
  EXPECT_EQ(median({9, 1, 4, 2}), 3);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({7}), 7);
  EXPECT_TRUE(std::isnan(median({})));
}

}  // namespace
}  // namespace reynard::statistics
