#include "reynard/attention/pruning.h"

#include "reynard/tensor/error.h"

#include <gtest/gtest.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace reynard::attention {
namespace {

TEST(AttentionStatistics, CountsTilesOf128By64) {
  // 256 causal tokens: block 0 has tiles 0, 1; block 1 has tiles 0..3.
  const at::Tensor start = at::tensor({0, 128}, at::kInt).reshape({1, 1, 2});
  const AttentionStatistics whole = attention_statistics(start, {}, 256, 256);
  EXPECT_DOUBLE_EQ(whole.pruned_tiles[0].item<double>(), 2.0 / 6);
  EXPECT_DOUBLE_EQ(whole.pruned_flops[0].item<double>(), 2.0 / 6);
  EXPECT_EQ(whole.first_block[0][0][1].item<int32_t>(), 2);
  // A document that starts at 64 for the second block: tile 0 is empty there, not pruned.
  at::Tensor first = at::zeros({1, 256}, at::kInt);
  first.slice(1, 128).fill_(64);
  EXPECT_DOUBLE_EQ(attention_statistics(start, first, 256, 256).pruned_tiles[0].item<double>(),
                   1.0 / 5);
  EXPECT_THROW(attention_statistics(start, first, 300, 300), Error);
}

// Tiles at the edges count in full, their products by what lies within.
TEST(AttentionStatistics, WeighTilesAtTheEdgesBySize) {
  const at::Tensor start = at::tensor({0, 128}, at::kInt).reshape({1, 1, 2});
  const AttentionStatistics edges = attention_statistics(start, {}, 200, 200);
  EXPECT_DOUBLE_EQ(edges.pruned_tiles[0].item<double>(), 2.0 / 6);
  EXPECT_DOUBLE_EQ(edges.pruned_flops[0].item<double>(), 72.0 * 128 / (128 * 128 + 72 * 200));
}

// The second row's second block begins a document: its tiles 0 and 1 are empty, not pruned.
TEST(AttentionStatistics, CountTheRowsOfABatch) {
  const at::Tensor start = at::tensor({0, 128, 0, 128}, at::kInt).reshape({2, 1, 2});
  at::Tensor first = at::zeros({2, 256}, at::kInt);
  first[1].slice(0, 128).fill_(128);
  EXPECT_DOUBLE_EQ(attention_statistics(start, first, 256, 256).pruned_tiles[0].item<double>(),
                   2.0 / 10);
}

}  // namespace
}  // namespace reynard::attention
