// Products of few rows: the error budget against f64 on every instruction set, what they must not
// read, and bits that depend neither on threads nor on the other rows.

#include "reynard/ops/few_row_products.h"
#include "reynard/ops/cpu/row_path.h"
#include "reynard/ops/int8_linear.h"
#include "reynard/ops/linear.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/forced_path.h"
#include "tests/support/gradients.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

namespace reynard::ops {
namespace {

using test::random_normal;

// In the middle of NaN: what is read beyond the matrix spoils the product.
at::Tensor among_nan(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0);
  const at::Tensor all = at::full(
      {rows + 2, matrix.size(1)}, std::numeric_limits<double>::quiet_NaN(), matrix.options());
  all.narrow(0, 1, rows).copy_(matrix);
  return all.narrow(0, 1, rows);
}

struct Dtypes {
  at::ScalarType x, weight;
};
constexpr Dtypes kDtypes[] = {{at::kFloat, at::kFloat},
                              {at::kBFloat16, at::kFloat},
                              {at::kBFloat16, at::kBFloat16},
                              {at::kBFloat16, at::kChar}};

RowWeight weight_of(const at::Tensor& exact, at::ScalarType dtype) {
  if (dtype != at::kChar) return {.values = among_nan(exact.to(dtype)), .scales = {}};
  const Int8Weight int8 = quantize_rows(exact);
  return {.values = int8.values, .scales = int8.scales};
}

at::Tensor widened(const RowWeight& weight, at::ScalarType dtype) {
  const at::Tensor values = weight.values.to(dtype);
  return weight.scales.defined() ? values * weight.scales.to(dtype).unsqueeze(1) : values;
}

class FewRowProducts : public testing::TestWithParam<std::string> {
 protected:
  const test::ForcedPath path_{GetParam()};
};

TEST(FewRowProduct, IsTheMatrixProduct) {
  const at::Tensor x = at::full({1, 3}, 2, at::kFloat);
  const RowWeight weight{.values = at::full({2, 3}, 5, at::kFloat), .scales = {}};
  EXPECT_BITWISE_EQUAL(few_row_products(x, {&weight, 1})[0], at::full({1, 2}, 30, at::kFloat));
}

TEST_P(FewRowProducts, WithinBudget) {
  for (const auto [x_dtype, dtype] : kDtypes) {
    for (const int64_t width : {1, 15, 31, 32, 33, 96, 769}) {
      const RowWeight weight = weight_of(random_normal({37, width}, 1), dtype);
      for (const int64_t tokens : {1, 2, 3, 4, 5, 8, 16, 17, 31, 32}) {
        const at::Tensor x = among_nan(random_normal({tokens, width}, 2).to(x_dtype));
        const at::Tensor y = few_row_products(x, {&weight, 1})[0];
        const bool wide = dtype == at::kFloat;
        ASSERT_EQ(y.scalar_type(), wide ? at::kFloat : at::kBFloat16);
        const at::Tensor naive =
            at::mm(x.to(at::kFloat), widened(weight, at::kFloat).t()).to(y.scalar_type());
        const at::Tensor exact = at::mm(x.to(at::kDouble), widened(weight, at::kDouble).t());
        const std::string where =
            fmt::format("{} by {}, {}, {}", toString(x_dtype), toString(dtype), tokens, width);
        EXPECT_WITHIN_BUDGET(y, naive, exact) << where;
        // The sums of which y is the rounding.
        RowWeight wide_y = weight;
        wide_y.rounds = false;
        const at::Tensor sums = few_row_products(x, {&wide_y, 1})[0];
        ASSERT_EQ(sums.scalar_type(), at::kFloat);
        EXPECT_BITWISE_EQUAL(sums.to(y.scalar_type()), y) << where;
        EXPECT_WITHIN_BUDGET(sums, at::mm(x.to(at::kFloat), widened(weight, at::kFloat).t()), exact)
            << where;
      }
    }
  }
}

// Several weights in one call, many tasks, for every number of threads; a row by itself.
TEST_P(FewRowProducts, SameBitsForAnyThreadCountAndBesideAnyRows) {
  const at::Tensor x = random_normal({7, 515}, 3).to(at::kBFloat16);
  std::vector<RowWeight> weights;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kChar, at::kFloat}) {
    weights.push_back(weight_of(random_normal({611, 515}, weights.size()), dtype));
  }
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = few_row_products(x, weights);
  for (const int count : {2, 3, 5}) {
    at::set_num_threads(count);
    const std::vector<at::Tensor> y = few_row_products(x, weights);
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_BITWISE_EQUAL(y[i], expected[i]);
  }
  at::set_num_threads(threads);
  for (int64_t row = 0; row < 7; ++row) {
    const std::vector<at::Tensor> y = few_row_products(x.narrow(0, row, 1), weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_BITWISE_EQUAL(y[i], expected[i].narrow(0, row, 1).contiguous()) << row;
    }
  }
}

// On a GPU: several weights in one launch, rows longer than what is loaded ahead, tiles of tokens
// that are not full; nothing beyond the matrices is read, and a row has the same bits by itself.
TEST(FewRowProductsOfGpu, WithinBudgetAndAloneTheSame) {
  if (test::test_device().is_cpu()) GTEST_SKIP() << "needs REYNARD_TEST_DEVICE=cuda";
  for (const at::ScalarType x_dtype : {at::kBFloat16, at::kFloat}) {
    for (const int64_t width : {8, 64, 256, 776, 1536, 2056, 4104}) {
      std::vector<RowWeight> weights;
      for (const int64_t rows : {37, 1, 12, 611}) {
        const bool wide = x_dtype == at::kFloat || rows == 12;
        const at::Tensor exact = test::on_test_device(random_normal({rows, width}, rows));
        weights.push_back(weight_of(exact, wide ? at::kFloat : at::kBFloat16));
      }
      for (const int64_t tokens : {1, 2, 3, 5, 8, 9, 16}) {
        const at::Tensor x =
            among_nan(test::on_test_device(random_normal({tokens, width}, 2)).to(x_dtype));
        const std::string where = fmt::format("{}, {}", tokens, width);
        for (const RowWeight& weight : weights)
          ASSERT_TRUE(has_few_row_product(x, weight)) << where;
        const std::vector<at::Tensor> y = few_row_products(x, weights);
        const std::vector<at::Tensor> last = few_row_products(x.narrow(0, tokens - 1, 1), weights);
        for (size_t i = 0; i < weights.size(); ++i) {
          const at::Tensor& w = weights[i].values;
          ASSERT_EQ(y[i].scalar_type(), w.scalar_type());
          const at::Tensor naive =
              at::mm(x.to(at::kFloat), w.to(at::kFloat).t()).to(w.scalar_type());
          const at::Tensor exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
          EXPECT_WITHIN_BUDGET(y[i], naive, exact) << where << ", weight " << i;
          EXPECT_BITWISE_EQUAL(last[i], y[i].narrow(0, tokens - 1, 1).contiguous()) << where;
          RowWeight wide_y = weights[i];
          wide_y.rounds = false;
          const at::Tensor sums = few_row_products(x, {&wide_y, 1})[0];
          ASSERT_EQ(sums.scalar_type(), at::kFloat);
          EXPECT_BITWISE_EQUAL(sums.to(y[i].scalar_type()), y[i]) << where << ", weight " << i;
        }
      }
    }
  }
}

// The gates' product of more tokens than other products of few rows, with its own kernel.
TEST(FewRowProductsOfGpu, TakeMoreRowsOfAWeightWithFew) {
  if (test::test_device().is_cpu()) GTEST_SKIP() << "needs REYNARD_TEST_DEVICE=cuda";
  const at::Tensor x = test::on_test_device(random_normal({301, 768}, 2)).to(at::kBFloat16);
  const RowWeight w{.values = test::on_test_device(random_normal({12, 768}, 1)).to(at::kFloat),
                    .scales = {}};
  ASSERT_TRUE(has_few_output_product(x, w.values));
  const at::Tensor all = few_output_product(x, w.values);
  for (const int64_t row : {0, 15, 16, 300}) {
    EXPECT_BITWISE_EQUAL(all.narrow(0, row, 1), few_row_products(x.narrow(0, row, 1), {&w, 1})[0]);
  }
  EXPECT_FALSE(has_few_output_product(x.narrow(1, 0, 767), w.values.narrow(1, 0, 767)));
}

// Many rows with a weight of few have the bits of each row by itself, for any number of threads.
TEST_P(FewRowProducts, AreThoseOfManyRowsWithFewOutputs) {
  const at::Tensor w = among_nan(random_normal({6, 387}, 1).to(at::kFloat));
  const at::Tensor x = among_nan(random_normal({301, 387}, 2).to(at::kBFloat16));
  ASSERT_TRUE(has_few_output_product(x, w));
  const RowWeight weight{.values = w, .scales = {}};
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    const at::Tensor y = few_output_product(x, w);
    for (const int64_t row : {0, 1, 150, 300}) {
      EXPECT_BITWISE_EQUAL(y.narrow(0, row, 1).contiguous(),
                           few_row_products(x.narrow(0, row, 1), {&weight, 1})[0]);
    }
  }
  at::set_num_threads(threads);
}

TEST_P(FewRowProducts, NothingIsMultipliedWhereThereIsNothing) {
  for (const auto& [tokens, width] : {std::pair<int64_t, int64_t>{0, 64}, {0, 0}, {3, 0}}) {
    const at::Tensor x = at::ones({tokens, width}, at::kFloat);
    const std::vector<Weight> weights = {{at::ones({5, width})}, {at::ones({0, width})}};
    const std::vector<at::Tensor> y = linears(x, weights);
    EXPECT_BITWISE_EQUAL(y[0], at::zeros({tokens, 5}));
    EXPECT_EQ(y[1].sizes(), (at::IntArrayRef{tokens, 0}));
  }
}

// linears() takes them where there is no graph, whatever the mixture of weights.
TEST_P(FewRowProducts, AreTheLinearsOfDecoding) {
  const at::Tensor x = random_normal({3, 64}, 4).to(at::kBFloat16);
  const at::Tensor gate = random_normal({5, 64}, 5).to(at::kFloat);
  const at::Tensor master = random_normal({9, 64}, 6).to(at::kFloat);
  const Int8Weight int8 = quantize_rows(master);
  std::vector<Weight> weights = {
      {gate}, {master, master.to(at::kBFloat16)}, {.value = int8.values, .scales = int8.scales}};
  const std::vector<at::Tensor> decoded = linears(x, weights);
  const std::vector<RowWeight> rows = {
      {gate, {}}, {weights[1].compute, {}}, {int8.values, int8.scales}};
  const std::vector<at::Tensor> direct = few_row_products(x, rows);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_BITWISE_EQUAL(decoded[i], direct[i]);

  gate.requires_grad_(true);
  master.requires_grad_(true);
  const std::vector<at::Tensor> trained = linears(x, weights);
  EXPECT_TRUE(trained[0].requires_grad() && trained[1].requires_grad());
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> without_record = linears(x, weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(trained[i].scalar_type(), decoded[i].scalar_type());
    EXPECT_TENSORS_NEAR(trained[i].detach(), decoded[i], 0.05, 0x1p-7) << i;
    EXPECT_BITWISE_EQUAL(without_record[i], trained[i].detach()) << i;
  }
}

TEST(FewRowProduct, LeavesWhatItHasNoLoopFor) {
  const RowWeight weight{.values = random_normal({4, 8}, 1).to(at::kBFloat16), .scales = {}};
  const at::Tensor x = random_normal({kFewRows, 8}, 2).to(at::kBFloat16);
  EXPECT_TRUE(has_few_row_product(x, weight));
  EXPECT_FALSE(has_few_row_product(x.repeat({2, 1}), weight));   // many rows
  EXPECT_FALSE(has_few_row_product(x.to(at::kFloat), weight));   // f32 by bf16
  EXPECT_FALSE(has_few_row_product(x.to(at::kDouble), weight));  // the reference
  EXPECT_FALSE(has_few_row_product(x, {.values = weight.values.t(), .scales = {}}));
}

INSTANTIATE_TEST_SUITE_P(Paths,
                         FewRowProducts,
                         testing::ValuesIn(cpu::available_product_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace reynard::ops
