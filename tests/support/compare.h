#pragma once
// Comparisons whose failure prints the worst index and both values.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace reynard::test {

// Same shape, dtype and bits (NaN equals NaN of the same bits).
testing::AssertionResult bitwise_equal(const at::Tensor& actual, const at::Tensor& expected);

// |actual - expected| <= atol + rtol * |expected| everywhere; infinities must match.
testing::AssertionResult near(const at::Tensor& actual,
                              const at::Tensor& expected,
                              double atol,
                              double rtol);

// Relative error of a number rounded to the dtype: 2^-8 of bf16, 2^-11 of f16; of others an ulp of
// f32, 2^-23.
double rounding_of(at::ScalarType dtype);

// The error budget of a kernel: max |kernel - exact| <= 2 max |naive - exact| + noise, where exact
// is the f64 reference, naive the formula in the kernel's dtype, and noise the rounding of the
// output dtype (one ulp of max |exact|), or more where the caller derives it. A mean of |error|
// twice the naive one fails too.
testing::AssertionResult within_budget(const at::Tensor& kernel,
                                       const at::Tensor& naive,
                                       const at::Tensor& exact,
                                       double derived_noise = 0);

}  // namespace reynard::test

#define EXPECT_BITWISE_EQUAL(actual, expected) \
  EXPECT_TRUE(::reynard::test::bitwise_equal(actual, expected))
#define EXPECT_TENSORS_NEAR(actual, expected, atol, rtol) \
  EXPECT_TRUE(::reynard::test::near(actual, expected, atol, rtol))
#define EXPECT_WITHIN_BUDGET(...) EXPECT_TRUE(::reynard::test::within_budget(__VA_ARGS__))
