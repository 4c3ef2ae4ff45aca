#include "reynard/tensor/counted.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace reynard {
namespace {

TEST(Counted, OneIsNotSeveral) {
  EXPECT_EQ(counted(int64_t{1}, "token"), "1 token");
  EXPECT_EQ(counted(0, "different piece"), "0 different pieces");
  EXPECT_EQ(counted(size_t{1024}, "token"), "1024 tokens");
}

}  // namespace
}  // namespace reynard
