// Attention over the best keys, of a key part and of a sequence's memory.

#include "reynard/models/mixers/top_k_attention.h"

#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace reynard::models {
namespace {

using test::on_test_device;

TEST(TopKAttention, AllKeysAsTheBestAreDenseAttention) {
  const at::Tensor q = at::randn({2, 150, 4, 16}), k = at::randn({2, 40, 2, 16}),
                   v = at::randn({2, 40, 2, 16});
  const std::vector<attention::KeyPart> parts = {
      {.k = k, .v = v, .sums = {}, .first_key = {}, .causal = false}};
  const auto dense = attention::attention(q, {}, parts, {});
  const auto best = top_k_attention(q, {}, parts[0], 40);
  EXPECT_TENSORS_NEAR(best.out, dense.out, 1e-5, 1e-5);
  EXPECT_TENSORS_NEAR(best.lse, dense.lse, 1e-5, 1e-5);
}

// A search takes no such queries. To keys that are all below zero an infinite one has logits of
// -inf, which must not look as if it saw nothing.
TEST(TopKAttention, QueriesThatAreNotFiniteGiveNaNAndLeaveTheOthers) {
  const int64_t T = 6, M = 20, G = 2, H = 4, D = 8, k = 3;
  const at::Tensor q = on_test_device(at::randn({1, T, H, D}));
  const at::Tensor keys = on_test_device(-at::rand({1, M, G, D}) - 0.1);
  const at::Tensor values = on_test_device(at::randn({1, M, G, D}));
  const attention::KeyPart part{
      .k = keys, .v = values, .sums = {}, .first_key = {}, .causal = false};
  LayerMemory memory;
  memory.add(keys[0], values[0], {}, {});
  at::Tensor bad = q.clone();
  bad[0][1][0][2] = std::nan("");
  bad[0][4][3][0] = std::numeric_limits<float>::infinity();
  const at::Tensor is_bad = at::isfinite(bad).all(-1).logical_not();  // (1, T, H)
  const auto attend = [&](const at::Tensor& queries) {
    return std::vector{top_k_attention(queries, {}, part, k),
                       top_k_attention(queries, {}, memory, k)};
  };
  const auto expected = attend(q), found = attend(bad);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::isnan(found[i].out).all(-1).equal(is_bad)) << i;
    EXPECT_TRUE(at::isnan(found[i].lse).transpose(1, 2).equal(is_bad)) << i;
    const at::Tensor rows = is_bad.unsqueeze(-1);
    EXPECT_BITWISE_EQUAL(found[i].out.masked_fill(rows, 0), expected[i].out.masked_fill(rows, 0));
  }
}

}  // namespace
}  // namespace reynard::models
