// The exponential of the kernels, in the lanes of plain x86-64 (the other instruction sets compile
// the same lines).

#include "reynard/attention/cpu/vector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace reynard::attention::cpu {
namespace {

template <int degree>
float exp2_of(float x) {
  return exp2<degree>(splat(x))[0];
}

template <int degree>
double largest_relative_error() {
  double largest = 0;
  for (float x = -125.9f; x < 16; x += 0x1p-9f + 0x1p-14f) {
    const double exact = std::exp2(static_cast<double>(x));
    largest = std::max(largest, std::abs(exp2_of<degree>(x) - exact) / exact);
  }
  return largest;
}

// The stated bounds are for fused multiply-add; without it each step rounds twice.
TEST(Exp2, StaysWithinItsStatedError) {
  EXPECT_LT(largest_relative_error<6>(), 8e-8 + 6e-8);
  EXPECT_LT(largest_relative_error<5>(), 1.7e-7 + 6e-8);
}

TEST(Exp2, IsExactWhereMasksAndOpenGatesNeedIt) {
  EXPECT_EQ(exp2_of<6>(0.0f), 1.0f);
  EXPECT_EQ(exp2_of<6>(-127.0f), 0.0f);
  EXPECT_EQ(exp2_of<6>(-1e6f), 0.0f);
  EXPECT_EQ(exp2_of<5>(-std::numeric_limits<float>::infinity()), 0.0f);
  for (int n = -126; n <= 127; ++n) {
    EXPECT_EQ(exp2_of<5>(static_cast<float>(n)), std::exp2(static_cast<float>(n)));
  }
  EXPECT_TRUE(std::isnan(exp2_of<6>(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Conversion, OfBFloat16RoundsToNearestEvenAndKeepsNaN) {
  const auto bits = [](float x) {
    BFloat16 out{};
    from_float(x, out);
    return out.bits;
  };
  EXPECT_EQ(bits(1.0f), 0x3f80);
  EXPECT_EQ(bits(1.0f + 0x1p-8f), 0x3f80);             // half way, even is below
  EXPECT_EQ(bits(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // just above half way
  EXPECT_EQ(bits(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(to_float(BFloat16{bits(std::numeric_limits<float>::quiet_NaN())})));
}

}  // namespace
}  // namespace reynard::attention::cpu
