#include "reynard/attention/pruning.h"

#include "reynard/tensor/error.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <limits>

namespace reynard::attention {
namespace {

TEST(QkNormBound, HoldsAndIsReached) {
  const at::Tensor wq = at::tensor({1.0F, 2.0F, 3.0F, 0.5F}).reshape({1, 4});
  const at::Tensor wk = at::tensor({2.0F, 1.0F, 1.0F, 3.0F}).reshape({1, 4});
  // All of a normalised vector in dimension 2: q.k = 4 * 3 * 1, scale 1/2.
  EXPECT_NEAR(qk_norm_bound(wq, wk, 2, 0, false, at::kFloat)[1].item<double>(), 6, 1e-3);
  // Rotated pairs (0, 2), (1, 3): max q (3, 2) times max k (2, 3).
  EXPECT_NEAR(qk_norm_bound(wq, wk, 2, 0, true, at::kFloat)[0].item<double>(), 12, 1e-3);
  EXPECT_NEAR(
      qk_norm_bound(wq, wk, 2, 0, false, at::kBFloat16)[0].item<double>(), 6 * (1 + 0x1p-7), 1e-5);
  EXPECT_NEAR(qk_norm_bound(wq[0], wk[0], 2, 0, true, at::kBFloat16)[0].item<double>(),
              12 * (1 + 0x1p-6),
              1e-5);
  EXPECT_THROW(qk_norm_bound(wq, wk.slice(1, 0, 2), 2, 0, false, at::kFloat), Error);
}

// Four heads of q, two of k: each of these serves two of those. Negative weights count as much.
TEST(QkNormBound, PairsEachQueryHeadWithItsKeyHead) {
  const at::Tensor wq = at::tensor({1.0F, 1.0F, 2.0F, 1.0F, -3.0F, 1.0F, 1.0F, 4.0F}).view({4, 2});
  const at::Tensor wk = at::tensor({1.0F, 2.0F, 5.0F, 1.0F}).view({2, 2});
  EXPECT_TENSORS_NEAR(qk_norm_bound(wq, wk, 4, 0.5, false, at::kFloat),
                      at::tensor({2.0F, 2.0F, 15.0F, 5.0F}),
                      1e-3,
                      0);
}

// f64 weights and such as are no whole rows go through tensor operations, as on a GPU.
TEST(QkNormBound, IsTheSameForWeightsOfEveryLayout) {
  const at::Tensor wide = at::randn({4, 16});
  const at::Tensor wq = wide.slice(1, 0, 8), wk = wide.slice(0, 0, 2).slice(1, 8, 16);
  ASSERT_FALSE(wq.is_contiguous());
  for (const bool rotary : {false, true}) {
    const auto bound = [&](const at::Tensor& q, const at::Tensor& k) {
      return qk_norm_bound(q, k, 8, 0.5, rotary, at::kFloat);
    };
    const at::Tensor rows = bound(wq.contiguous(), wk.contiguous());
    EXPECT_TENSORS_NEAR(bound(wq, wk), rows, 0, 1e-6);
    EXPECT_TENSORS_NEAR(bound(wq.to(at::kDouble), wk.to(at::kDouble)), rows, 0, 1e-6);
    at::Tensor unknown = wq.clone();
    unknown[1][3] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor of_unknown = at::isnan(bound(unknown.to(at::kDouble), wk));
    EXPECT_TRUE(at::equal(of_unknown, at::isnan(bound(unknown, wk.contiguous()))));
    EXPECT_EQ(of_unknown.sum().item<int64_t>(), 2);  // heads that share the weight
  }
}

}  // namespace
}  // namespace reynard::attention
