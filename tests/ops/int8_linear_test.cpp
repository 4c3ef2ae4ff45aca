// int8 weights: the rounding of the weight, and the product against one in f64.

#include "reynard/ops/int8_linear.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/forced_path.h"
#include "tests/support/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace reynard::ops {
namespace {

using test::random_normal;

// (O, I) f32 again.
at::Tensor dequantized(const Int8Weight& weight) {
  return weight.values.to(at::kFloat) * weight.scales.unsqueeze(1);
}

TEST(QuantizeRows, NearestMultiplesOfTheScale) {
  const at::Tensor weight =
      at::tensor(std::vector<float>{254, -127, 3, 0, 0, 0}, at::kFloat).view({2, 3});
  const Int8Weight int8 = quantize_rows(weight);
  EXPECT_EQ(int8.scales[0].item<float>(), 2);
  EXPECT_EQ(int8.scales[1].item<float>(), 0);  // a row of zeros
  EXPECT_BITWISE_EQUAL(
      dequantized(int8),
      at::tensor(std::vector<float>{254, -128, 4, 0, 0, 0}, at::kFloat).view({2, 3}));
  const at::Tensor wide = random_normal({700, 33}, 1);
  const at::Tensor error = (dequantized(quantize_rows(wide)) - wide).abs();
  const at::Tensor step = quantize_rows(wide).scales.unsqueeze(1);
  EXPECT_LE((error / step).max().item<double>(), 0.5 + 1e-4);
  EXPECT_THROW(quantize_rows(at::ones({3})), Error);
}

// Each instruction set; few tokens (int8 values as they are) and many (widened), odd sizes.
TEST(Int8Linear, IsTheProductWithTheRoundedWeight) {
  for (const std::string& path : cpu::available_product_paths()) {
    const test::ForcedPath forced(path);
    for (const int64_t width : {1, 15, 33, 96}) {
      const Int8Weight weight = quantize_rows(random_normal({37, width}, 2));
      for (const int64_t tokens : {0, 1, 4, 7, 32, 33, 50}) {
        const at::Tensor x = random_normal({tokens, width}, 4).to(at::kBFloat16);
        const at::Tensor exact = x.to(at::kDouble).matmul(dequantized(weight).to(at::kDouble).t());
        const at::Tensor y = int8_linear(x, weight);
        ASSERT_EQ(y.scalar_type(), at::kBFloat16);
        // Two roundings to bf16 (many tokens: product and result) of numbers of this size.
        const double size = std::sqrt(static_cast<double>(width)) * 4 + 3;
        EXPECT_TENSORS_NEAR(y.to(at::kDouble), exact, size * 0x1p-8, 0x1p-7)
            << path << ", " << width << ", " << tokens;
        const at::Tensor sums = int8_linear(x, weight, at::kFloat);
        ASSERT_EQ(sums.scalar_type(), at::kFloat);
        EXPECT_TENSORS_NEAR(sums.to(at::kDouble), exact, size * 1e-6, 1e-6)
            << path << ", " << width << ", " << tokens;
      }
    }
  }
}

TEST(Int8Linear, Rejects) {
  const Int8Weight weight = quantize_rows(at::ones({3, 4}));
  EXPECT_THROW(int8_linear(at::ones({2, 5}), weight), Error);
  EXPECT_THROW(int8_linear(at::ones({2, 4}), {.values = at::ones({3, 4}), .scales = weight.scales}),
               Error);
  EXPECT_THROW(int8_linear(at::ones({2, 4}), {.values = weight.values, .scales = at::ones({2})}),
               Error);
}

}  // namespace
}  // namespace reynard::ops
