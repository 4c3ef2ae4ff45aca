// Products of many rows of bf16: the error budget against f64 in every layout, what they must not
// read, and bits that do not depend on threads.

#include "reynard/ops/block_product.h"
#include "reynard/ops/cpu/row_path.h"
#include "reynard/ops/product.h"
#include "tests/support/compare.h"
#include "tests/support/forced_path.h"
#include "tests/support/gradients.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace reynard::ops {
namespace {

using test::random_normal;

// In the middle of NaN, rows or columns contiguous.
at::Tensor bf16_among_nan(const at::Tensor& matrix, bool transposed) {
  const at::Tensor values = transposed ? matrix.t() : matrix;
  const int64_t rows = values.size(0), columns = values.size(1);
  const at::Tensor all = at::full({rows + 2, columns + 3},
                                  std::numeric_limits<double>::quiet_NaN(),
                                  matrix.options().dtype(at::kBFloat16));
  const at::Tensor inside = all.narrow(0, 1, rows).narrow(1, 1, columns);
  inside.copy_(values);
  return transposed ? inside.t() : inside;
}

class BlockProducts : public testing::TestWithParam<std::string> {
 protected:
  const test::ForcedPath path_{GetParam()};
};

TEST_P(BlockProducts, AreTheMatrixProduct) {
  const at::Tensor a = at::full({256, 64}, 2, at::kBFloat16);
  const at::Tensor b = at::full({64, 256}, 5, at::kBFloat16);
  EXPECT_BITWISE_EQUAL(product(a, b, at::kFloat), at::full({256, 256}, 640, at::kFloat));
}

struct Sizes {
  int64_t M, N, K;
};

TEST_P(BlockProducts, WithinBudgetInEveryLayout) {
  for (const auto [M, N, K] :
       {Sizes{64, 258, 127}, Sizes{259, 79, 1025}, Sizes{33, 1111, 64}, Sizes{130, 65, 257}}) {
    const at::Tensor x = random_normal({M, K}, 1), y = random_normal({K, N}, 2);
    for (const int layout : {0, 1, 2, 3}) {
      const at::Tensor a = bf16_among_nan(x, layout % 2 == 1);
      const at::Tensor b = bf16_among_nan(y, layout / 2 == 1);
      ASSERT_TRUE(has_block_product(a, b)) << M << " " << N << " " << K;
      const at::Tensor sum = at::mm(a.to(at::kFloat), b.to(at::kFloat));
      const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      EXPECT_WITHIN_BUDGET(product(a, b, at::kFloat), sum, exact) << layout << ", K " << K;
      EXPECT_WITHIN_BUDGET(product(a, b), sum.to(at::kBFloat16), exact) << layout << ", K " << K;
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        at::Tensor target = random_normal({M, N}, 3).to(dtype);
        const at::Tensor before = target.clone();
        add_product(target, a, b);
        EXPECT_WITHIN_BUDGET(
            target, (before.to(at::kFloat) + sum).to(dtype), before.to(at::kDouble) + exact)
            << layout << ", K " << K;
      }
    }
  }
}

TEST_P(BlockProducts, WriteNothingBesideTheResult) {
  const at::Tensor a = random_normal({67, 200}, 1).to(at::kBFloat16);
  const at::Tensor b = random_normal({200, 131}, 2).to(at::kBFloat16);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor all = at::full({69, 150}, 7, dtype);
    const BlockSum inside{.terms = {{a, b}}, .c = all.narrow(0, 1, 67).narrow(1, 9, 131)};
    block_products({&inside, 1});
    EXPECT_BITWISE_EQUAL(all.narrow(0, 1, 67).narrow(1, 9, 131).contiguous(), product(a, b, dtype));
    all.narrow(0, 1, 67).narrow(1, 9, 131).fill_(7);
    EXPECT_BITWISE_EQUAL(all, at::full({69, 150}, 7, dtype));
  }
}

// Of one matrix, of the same matrix read the other way, and of others; of one term and of several.
std::vector<SumOfProducts> several_sums(at::ScalarType out) {
  const auto bf16 = [](at::IntArrayRef shape, uint64_t seed, bool transposed) {
    return bf16_among_nan(random_normal(shape, seed), transposed);
  };
  const at::Tensor x = bf16({515, 200}, 1, false);
  return {{.terms = {{bf16({130, 515}, 2, true), x}}, .out = out},
          {.terms = {{bf16({18, 515}, 3, true), x}}, .out = out},
          {.terms = {{bf16({96, 200}, 4, false), x.t()}}, .out = out},
          {.terms = {{bf16({131, 300}, 5, false), bf16({300, 77}, 6, false)},
                     {bf16({131, 127}, 7, false), bf16({127, 77}, 8, true)},
                     {bf16({131, 300}, 9, true), bf16({300, 77}, 10, true)}},
           .out = out}};
}

TEST_P(BlockProducts, OfSeveralSumsAreEachWithinBudget) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<SumOfProducts> sums = several_sums(dtype);
    const std::vector<at::Tensor> results = sums_of_products(sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      at::Tensor naive, exact;
      for (const auto& [a, b] : sums[i].terms) {
        ASSERT_TRUE(has_block_product(a, b));
        const at::Tensor wide = at::mm(a.to(at::kFloat), b.to(at::kFloat));
        const at::Tensor widest = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        naive = naive.defined() ? naive + wide : wide;
        exact = exact.defined() ? exact + widest : widest;
      }
      EXPECT_WITHIN_BUDGET(results[i], naive.to(dtype), exact) << i;
    }
  }
}

TEST_P(BlockProducts, OfSeveralSumsHaveTheBitsOfEachAlone) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<SumOfProducts> sums = several_sums(dtype);
    for (const int count : {1, 2, 3, 16}) {
      at::set_num_threads(count);
      const std::vector<at::Tensor> results = sums_of_products(sums);
      at::set_num_threads(1);
      for (size_t i = 0; i < sums.size(); ++i) {
        EXPECT_BITWISE_EQUAL(results[i], sums_of_products({&sums[i], 1})[0]) << i << ", " << count;
      }
    }
  }
  at::set_num_threads(threads);
}

// Two matrices of the same size that begin at the same value, and are not the same.
TEST_P(BlockProducts, OfViewsOfOneMatrixAreOfEachView) {
  const at::Tensor a = random_normal({130, 200}, 1).to(at::kBFloat16);
  const at::Tensor all = random_normal({600, 450}, 2).to(at::kBFloat16);
  const auto every = [&](int64_t step) {
    return all.slice(0, 0, 200 * step, step).slice(1, 0, 150 * step, step);
  };
  ASSERT_TRUE(has_block_product(a, every(2)));
  const SumOfProducts sums[] = {{.terms = {{a, every(2)}}, .out = at::kFloat},
                                {.terms = {{a, every(3)}}, .out = at::kFloat}};
  const std::vector<at::Tensor> results = sums_of_products(sums);
  EXPECT_BITWISE_EQUAL(results[0], product(a, every(2).contiguous(), at::kFloat));
  EXPECT_BITWISE_EQUAL(results[1], product(a, every(3).contiguous(), at::kFloat));
}

TEST(SumsOfProducts, AreTheSumsOfMatrixProducts) {
  const at::Tensor a = at::full({2, 3}, 2, at::kFloat), b = at::full({3, 4}, 5, at::kFloat);
  const SumOfProducts sums[] = {{.terms = {{a, b}}, .out = at::kFloat},
                                {.terms = {{a, b}, {a, b}}, .out = at::kFloat}};
  const std::vector<at::Tensor> results = sums_of_products(sums);
  EXPECT_BITWISE_EQUAL(results[0], at::full({2, 4}, 30, at::kFloat));
  EXPECT_BITWISE_EQUAL(results[1], at::full({2, 4}, 60, at::kFloat));
}

TEST_P(BlockProducts, SameBitsForAnyThreadCount) {
  const at::Tensor a = bf16_among_nan(random_normal({517, 515}, 3), true);
  const at::Tensor b = bf16_among_nan(random_normal({515, 1300}, 4), false);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor wide = product(a, b, at::kFloat), rounded = product(a, b);
  for (const int count : {2, 3, 16}) {
    at::set_num_threads(count);
    EXPECT_BITWISE_EQUAL(product(a, b, at::kFloat), wide) << count;
    EXPECT_BITWISE_EQUAL(product(a, b), rounded) << count;
  }
  at::set_num_threads(threads);
}

TEST_P(BlockProducts, LeaveOtherWorkToTheLibrary) {
  const at::Tensor a = random_normal({256, 64}, 1).to(at::kBFloat16);
  EXPECT_TRUE(has_block_product(a, a.t()));
  EXPECT_FALSE(has_block_product(a.to(at::kFloat), a.t().to(at::kFloat)));
  EXPECT_FALSE(has_block_product(a.narrow(0, 0, 8), a.t()));  // few rows
  const test::ForcedPath other("avx2");
  EXPECT_FALSE(has_block_product(a, a.t()));
}

// Machines without instructions for bf16 have no path.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BlockProducts);
INSTANTIATE_TEST_SUITE_P(Paths,
                         BlockProducts,
                         testing::ValuesIn(cpu::available_block_product_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace reynard::ops
