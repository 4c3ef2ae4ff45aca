// What the k best keys are: examples, the shapes of batches, ties and rejected arguments.

#include "reynard/knn/search.h"

#include "tests/support/compare.h"
#include "tests/support/errors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace reynard::test {
namespace {

using knn::KeyRing;
using knn::SearchResult;

TEST(Search, FindsTheLargestInnerProducts) {
  const at::Tensor keys =
      at::tensor({1.0F, 0.0F, 0.0F, 1.0F, 2.0F, 2.0F, -1.0F, 0.0F}).view({4, 2});
  const at::Tensor query = at::tensor({1.0F, 0.5F}).view({1, 2});
  const SearchResult found = knn::search(query, keys, 3);
  EXPECT_BITWISE_EQUAL(found.ids, at::tensor({2, 0, 1}, at::kLong).view({1, 3}));
  EXPECT_BITWISE_EQUAL(found.scores, at::tensor({3.0F, 1.0F, 0.5F}).view({1, 3}));
}

TEST(Search, EqualScoresGoToTheSmallerId) {
  const at::Tensor keys = at::tensor({1.0F, 2.0F, 1.0F, 2.0F, 2.0F}).view({5, 1});
  const SearchResult found = knn::search(at::ones({1, 1}), keys, 5);
  EXPECT_BITWISE_EQUAL(found.ids, at::tensor({1, 3, 4, 0, 2}, at::kLong).view({1, 5}));
}

// The definition itself: f32, ascending d, each product and sum rounded.
TEST(Search, ScoresAreSumsInAscendingOrder) {
  const at::Tensor keys = at::tensor({1e8F, 1.0F, -1e8F, 0.1F}).view({1, 4});
  const SearchResult found =
      knn::search(at::tensor({1.0F, 1.0F, 1.0F, 0.3F}).view({1, 4}), keys, 1);
  const float sum = ((1e8F + 1.0F) + -1e8F) + 0.1F * 0.3F;
  EXPECT_EQ(found.scores.item<float>(), sum);
}

TEST(Search, EachRowAndHeadSearchesItsOwnKeys) {
  const int64_t batch = 2, tq = 3, heads = 4, key_heads = 2, dim = 5;
  const at::Tensor queries = at::randn({batch, tq, heads, dim});
  const std::vector<KeyRing> rings = {{at::randn({key_heads, 7, dim}), 0, 0, 7},
                                      {at::randn({key_heads, 9, dim}), 0, 0, 9}};
  const SearchResult found = knn::search(queries, rings, 4);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const SearchResult alone =
          knn::search(queries[b].select(1, h), rings[b].keys[h / (heads / key_heads)], 4);
      EXPECT_BITWISE_EQUAL(found.ids[b].select(1, h), alone.ids);
      EXPECT_BITWISE_EQUAL(found.scores[b].select(1, h), alone.scores);
    }
  }
}

TEST(Search, OneRingServesEveryRow) {
  const at::Tensor queries = at::randn({3, 2, 2, 8});
  const KeyRing ring{at::randn({1, 20, 8}), 0, 0, 20};
  const SearchResult shared = knn::search(queries, {&ring, 1}, 5);
  const std::vector<KeyRing> own(3, ring);
  EXPECT_BITWISE_EQUAL(shared.ids, knn::search(queries, own, 5).ids);
}

TEST(Search, IdsFollowTheRing) {
  const at::Tensor keys = at::randn({1, 6, 8}).to(at::kBFloat16);
  const at::Tensor query = at::randn({1, 1, 1, 8});
  // Slot 2 holds the oldest entry, id 108; slots 0 and 1 hold 112 and 113.
  const KeyRing ring{keys, 100, 108, 114};
  const SearchResult found = knn::search(query, {&ring, 1}, 6);
  const KeyRing straight{at::roll(keys, {-2}, {1}).contiguous(), 0, 0, 6};
  EXPECT_BITWISE_EQUAL(found.ids, knn::search(query, {&straight, 1}, 6).ids + 108);
}

TEST(Search, RowsWithFewerKeysAreFilledUp) {
  const at::Tensor queries = at::randn({2, 1, 1, 4});
  const std::vector<KeyRing> rings = {{at::randn({1, 3, 4}), 0, 0, 3}, {at::empty({1, 0, 4})}};
  const SearchResult found = knn::search(queries, rings, 3);
  EXPECT_BITWISE_EQUAL(found.ids[1], at::full({1, 1, 3}, -1, at::kLong));
  EXPECT_BITWISE_EQUAL(found.scores[1],
                       at::full({1, 1, 3}, -std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(found.ids[0].ge(0).all().item<bool>());
}

// 600 queries: also the kernels that round queries to bf16 before they choose candidates.
TEST(Search, MixedDtypesAreSearchedAsTheirF32Values) {
  for (const int64_t num_queries : {2, 600}) {
    const at::Tensor queries = at::randn({num_queries, 24}), keys = at::randn({700, 24});
    for (const at::ScalarType of_queries : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const at::ScalarType of_keys : {at::kFloat, at::kBFloat16}) {
        const at::Tensor q = queries.to(of_queries), k = keys.to(of_keys);
        const SearchResult found = knn::search(q, k, 9);
        const SearchResult widened = knn::search(q.to(at::kFloat), k.to(at::kFloat), 9);
        EXPECT_BITWISE_EQUAL(found.ids, widened.ids);
        EXPECT_BITWISE_EQUAL(found.scores, widened.scores);
      }
    }
  }
}

TEST(Search, NoQueriesGiveNoResults) {
  EXPECT_EQ(knn::search(at::zeros({0, 4}), at::zeros({3, 4}), 2).ids.sizes(),
            at::IntArrayRef({0, 2}));
}

// Contiguous, as all columns of one number are: their last stride says nothing.
TEST(Search, KeysOfOneNumberHaveAnyStride) {
  const at::Tensor keys = at::arange(7, at::kFloat).view({1, 7}).t();
  EXPECT_EQ(keys.stride(1), 7);
  EXPECT_BITWISE_EQUAL(knn::search(at::ones({1, 1}), keys, 3).ids,
                       at::tensor({6, 5, 4}, at::kLong).view({1, 3}));
}

TEST(Search, TheDefinitionRunsOnTheCpu) {
  const at::Tensor elsewhere = at::zeros({3, 4}).to(at::kMeta);
  EXPECT_SAYS(error_of([&] { knn::plain_search(elsewhere, elsewhere, 1); }),
              "plain_search: device of queries = meta; expected cpu");
}

TEST(Search, RejectsWhatDoesNotFit) {
  const auto with = [](const at::Tensor& queries, const at::Tensor& keys, int64_t k) {
    return error_of([&] { knn::search(queries, keys, k); });
  };
  const at::Tensor queries = at::zeros({2, 4}), keys = at::zeros({3, 4});
  EXPECT_SAYS(with(queries, keys, 4), "k = 4; expected 1 ... 3");
  EXPECT_SAYS(with(queries, keys, 0), "k = 0; expected 1 ... 3");
  EXPECT_SAYS(with(queries, at::zeros({0, 4}), 1), "knn: number of keys = 0; expected at least 1");
  EXPECT_SAYS(with(queries, at::zeros({3, 5}), 1), "keys has shape [3, 5]");
  EXPECT_SAYS(with(queries, keys.to(at::kDouble), 1), "keys has dtype Double");
  EXPECT_SAYS(with(queries.to(at::kLong), keys, 1), "queries has dtype Long");
  EXPECT_SAYS(with(queries / 0, keys, 1), "queries hold NaN");
  at::Tensor broken = at::zeros({300, 4});
  broken[298][2] = std::numeric_limits<float>::quiet_NaN();
  broken[299][2] = std::numeric_limits<float>::infinity();
  EXPECT_SAYS(with(queries, broken, 1), "key 298 of row 0, head 0 holds NaN");
  const KeyRing three{at::zeros({3, 2, 4}), 0, 0, 2}, too_many{at::zeros({1, 2, 4}), 0, 0, 3};
  const at::Tensor two_heads = at::zeros({1, 1, 2, 4});
  EXPECT_SAYS(error_of([&] {
                knn::search(two_heads, {&three, 1}, 1);
              }),
              "G of keys = 3; expected a divisor of H = 2");
  EXPECT_SAYS(error_of([&] {
                knn::search(two_heads, {&too_many, 1}, 1);
              }),
              "number of keys = 3; expected at most the 2 slots");
  const KeyRing gone{at::zeros({1, 2, 4}), /*base=*/3, /*first=*/2, /*next=*/4};
  EXPECT_SAYS(error_of([&] {
                knn::search(two_heads, {&gone, 1}, 1);
              }),
              "first id of keys = 2; expected 3 ... 4");
  const std::vector<KeyRing> unequal = {{at::zeros({1, 2, 4}), 0, 0, 2},
                                        {at::zeros({1, 2, 4}, at::kBFloat16), 0, 0, 2}};
  EXPECT_SAYS(error_of([&] {
                knn::search(at::zeros({2, 1, 2, 4}), unequal, 1);
              }),
              "keys has dtype BFloat16; expected Float");
  EXPECT_SAYS(error_of([&] {
                knn::search(at::zeros({3, 1, 2, 4}), unequal, 1);
              }),
              "rows of keys = 2; expected 1 or B = 3");
}

}  // namespace
}  // namespace reynard::test
