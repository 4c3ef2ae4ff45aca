// Keys that are searched block by block: the same results as all at once, to the bit. What crosses
// a bus is tested on a GPU (gpu_search_test.cpp); blocks and their merging are the same here.

#include "reynard/knn/streamed_search.h"

#include "tests/support/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace reynard::test {
namespace {

using knn::KeyRing;
using knn::SearchResult;

constexpr int64_t kKeyHeads = 2, kDim = 3, kKeyBytes = kKeyHeads * kDim * 4;

void expect_equal(const SearchResult& found, const SearchResult& expected) {
  EXPECT_BITWISE_EQUAL(found.ids, expected.ids);
  EXPECT_BITWISE_EQUAL(found.scores, expected.scores);
}

// Rings that wrap, rows of unequal length and one without keys; few different scores, so that equal
// ones lie in different blocks.
TEST(StreamedSearch, EqualsASearchOfAllKeysAtOnce) {
  const at::Tensor queries = at::randint(-2, 3, {4, 3, 4, kDim}, at::kFloat);
  const auto keys = [](int64_t slots) {
    return at::randint(-2, 3, {kKeyHeads, slots, kDim}, at::kFloat);
  };
  const std::vector<KeyRing> rings = {
      {keys(50), 0, 0, 50}, {keys(40), 7, 70, 105}, {keys(9), 3, 5, 12}, {keys(6), 0, 4, 4}};
  for (const int64_t block_keys : {1, 7, 16, 49, 50, 1000}) {
    for (const int64_t k : {1, 5, 20, 50}) {
      SCOPED_TRACE(testing::Message() << block_keys << " keys in a block, k " << k);
      const int64_t bytes = block_keys * kKeyBytes * std::ssize(rings);
      expect_equal(knn::streamed_search(queries, rings, k, bytes),
                   knn::plain_search(queries, rings, k));
    }
  }
}

// Scores that overflow are keys all the same: they come before what is missing.
TEST(StreamedSearch, KeysOfAnyScoreComeBeforeNone) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const at::Tensor keys =
      at::tensor({-kLargest, 1.0F, -kLargest, kLargest, -kLargest, 2.0F}).view({1, 6, 1});
  const std::vector<KeyRing> rings = {{keys, 0, 0, 6}, {keys, 0, 0, 2}};
  const at::Tensor queries = at::full({2, 1, 1, 1}, 4.0F);
  const SearchResult found = knn::streamed_search(queries, rings, 6, /*block_bytes=*/8);
  expect_equal(found, knn::plain_search(queries, rings, 6));
  EXPECT_BITWISE_EQUAL(found.ids.select(0, 1).flatten(),
                       at::tensor({1, 0, -1, -1, -1, -1}, at::kLong));
}

TEST(StreamedSearch, NoQueriesFindNothing) {
  const std::vector<KeyRing> rings = {{at::randn({1, 5, 2}), 0, 0, 5}};
  const SearchResult found = knn::streamed_search(at::randn({1, 0, 1, 2}), rings, 3, 8);
  EXPECT_EQ(found.ids.sizes(), at::IntArrayRef({1, 0, 1, 3}));
}

}  // namespace
}  // namespace reynard::test
