// The norm that gradients are clipped by.

#include "reynard/ops/global_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <limits>
#include <vector>

namespace reynard::ops {
namespace {

TEST(GlobalNorm, IsTheRootOfAllSquares) {
  const std::vector<at::Tensor> tensors = {at::ones({3, 3}), 2 * at::ones({4})};
  EXPECT_EQ(global_norm(tensors).item<double>(), 5.0);
  EXPECT_EQ(global_norm({}).item<double>(), 0.0);
}

TEST(GlobalNorm, IsExactToRoundingForAnyShapeLayoutAndDtype) {
  std::vector<at::Tensor> tensors;
  double exact = 0;
  for (const int64_t size : {0, 1, 15, 511, 513, 65537, 200000})
    tensors.push_back(at::randn({size}));
  tensors.push_back(at::randn({70, 90}).t());
  tensors.push_back(at::randn({33}).to(at::kBFloat16));
  for (const at::Tensor& x : tensors) exact += x.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(global_norm(tensors).item<double>(), std::sqrt(exact), 1e-6 * std::sqrt(exact));
}

TEST(GlobalNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const std::vector<at::Tensor> tensors = {at::randn({300000}), at::randn({77, 1001})};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double alone = global_norm(tensors).item<double>();
  for (const int count : {2, 3}) {
    at::set_num_threads(count);
    EXPECT_EQ(global_norm(tensors).item<double>(), alone) << count << " threads";
  }
  at::set_num_threads(threads);
}

TEST(GlobalNorm, ShowsWhatIsNotFinite) {
  at::Tensor x = at::ones({1000});
  x[700].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(global_norm({{x}}).item<double>()));
  x[700].fill_(std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isinf(global_norm({{x}}).item<double>()));
}

}  // namespace
}  // namespace reynard::ops
