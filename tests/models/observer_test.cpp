#include "reynard/models/observer.h"

#include "reynard/tensor/error.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

namespace reynard::models {
namespace {

// 300 tokens: query blocks 0-127, 128-255, 256-299 see 2, 4 and 5 key tiles of 64.
AttentionView view_of(const std::vector<int32_t>& starts) {
  AttentionView view;
  view.first_key = at::zeros({300}, at::kInt);
  view.start = at::tensor(starts, at::kInt).view({3, 3});
  return view;
}

TEST(AttentionView, ACopyKeepsWhatWasShown) {
  AttentionView view = view_of({0, 0, 0, 0, 64, 192, 0, 127, 130});
  view.memory_k = at::zeros({300, 1, 2});
  view.first_local = at::zeros({300}, at::kInt);
  view.memory_share = at::zeros({1});
  const AttentionView copy = copied_to_cpu(view);
  view.start.zero_();
  view.memory_k.fill_(1);
  view.first_local.fill_(16);
  view.memory_share.fill_(1);
  EXPECT_EQ(copy.start[1][2].item<int32_t>(), 192);
  EXPECT_EQ(copy.first_key.size(0), 300);
  EXPECT_FALSE(copy.q.defined());
  EXPECT_EQ(copy.memory_k.max().item<float>(), 0);
  EXPECT_EQ(copy.first_local.max().item<int32_t>(), 0);
  EXPECT_EQ(copy.memory_share.max().item<float>(), 0);
}

TEST(PrunedTiles, AreWholeTilesBeforeTheFirstKeyKept) {
  const std::vector<double> shares = pruned_tiles(view_of({0, 0, 0, 0, 64, 192, 0, 127, 130}));
  EXPECT_DOUBLE_EQ(shares[0], 0);
  EXPECT_DOUBLE_EQ(shares[1], 4.0 / 11);
  EXPECT_DOUBLE_EQ(shares[2], 3.0 / 11);  // partly kept tiles are computed
}

// What another document or the window hides counts neither as pruned nor as kept.
TEST(PrunedTiles, HiddenTilesCountNowhere) {
  AttentionView view = view_of({0, 128, 128, 0, 128, 192, 0, 128, 256});
  view.first_key.slice(0, 128).fill_(128);  // blocks see 2, 2 and 3 tiles
  const std::vector<double> shares = pruned_tiles(view);
  EXPECT_DOUBLE_EQ(shares[0], 0);
  EXPECT_DOUBLE_EQ(shares[1], 1.0 / 7);
  EXPECT_DOUBLE_EQ(shares[2], 2.0 / 7);
}

TEST(PrunedTiles, StartsMustBeThoseOfTheTokens) {
  AttentionView view = view_of({0, 0, 0, 0, 0, 0, 0, 0, 0});
  view.first_key = at::zeros({500}, at::kInt);
  EXPECT_THROW(pruned_tiles(view), Error);
}

}  // namespace
}  // namespace reynard::models
