#include "reynard/evaluation/python_random.h"

#include "reynard/tensor/check.h"

#include <gtest/gtest.h>

#include <vector>

namespace reynard::evaluation {
namespace {

// What CPython prints: random.seed(0); random.getrandbits(32), ...
TEST(PythonRandom, FirstOutputsOfSeedZero) {
  PythonRandom random(0);
  EXPECT_EQ(random.next(), 3626764237U);
  EXPECT_EQ(random.next(), 1654615998U);
}

TEST(PythonRandom, RandintOfSeedZero) {
  PythonRandom random(0);
  for (const int64_t expected : {885440, 403958, 794772, 933488, 441001, 42450}) {
    EXPECT_EQ(random.up_to(1'000'000), expected);
  }
}

// random.seed(2**40 + 7); [random.randint(0, 2**40) for _ in range(3)]
TEST(PythonRandom, WideSeedsAndRanges) {
  PythonRandom random((uint64_t{1} << 40) + 7);
  for (const int64_t expected : std::vector<int64_t>{551799892330, 797660323531, 972351302369}) {
    EXPECT_EQ(random.up_to(int64_t{1} << 40), expected);
  }
}

TEST(PythonRandom, RefillsAfterAllOfItsState) {
  PythonRandom random(1);
  uint32_t last = 0;
  for (int i = 0; i < 2000; ++i) last = random.next();
  EXPECT_EQ(last, 1058062369U);
}

TEST(PythonRandom, NegativeRangeIsAnError) {
  PythonRandom random(0);
  EXPECT_THROW(random.up_to(-1), Error);
  EXPECT_EQ(random.up_to(0), 0);
}

}  // namespace
}  // namespace reynard::evaluation
