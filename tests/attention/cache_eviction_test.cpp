// What eviction goes by and leaves behind: every head of a group, the longest keys and queries that
// there were, the largest share.

#include "reynard/attention/cache.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <memory>

namespace reynard::attention {
namespace {

// Two query heads of one key/value head, and keys of norm 4.
struct TwoHeads {
  static constexpr int64_t D = 16;
  LayerCache cache{std::make_shared<PagePool>(
                       PageLayout{.head_dim = D, .group = 2, .device = test::test_device()}),
                   1};
  at::Tensor bound = at::full({2}, 2.0F);

  void append(int64_t tokens, double first_gate, double second_gate, double key_norm = 4) {
    at::Tensor log_gate = at::zeros({tokens, 2});
    log_gate.select(1, 0).fill_(first_gate);
    log_gate.select(1, 1).fill_(second_gate);
    const at::Tensor keys = at::full({tokens, 1, D}, static_cast<float>(key_norm / 4));
    cache.append(
        test::on_test_device(keys), test::on_test_device(keys), test::on_test_device(log_gate));
  }
};

TEST(CacheEviction, PagesStayWhileAnyHeadOfTheirGroupNeedsThem) {
  for (const bool first_forgets : {true, false}) {
    TwoHeads text;
    text.append(1000, first_forgets ? -1 : 0, first_forgets ? 0 : -1);
    EXPECT_EQ(text.cache.evict(text.bound, -10, 1000), 0) << first_forgets;
    text.append(200, -1, -1);
    EXPECT_GT(text.cache.evict(text.bound, -10, 1200), 0);
  }
}

TEST(CacheEviction, TheLongestKeysAndQueriesCountWhenTheyAreGone) {
  TwoHeads text;
  text.append(64, -1, -1, /*key_norm=*/8);
  text.append(300, -1, -1);
  text.cache.note_queries(test::on_test_device(at::full({1, 2, text.D}, 2.0F)));  // of norm 8
  text.cache.note_queries(test::on_test_device(at::ones({1, 2, text.D})));
  const at::Tensor bound = text.cache.measured_bound(/*scale=*/1);
  EXPECT_TENSORS_NEAR(bound, at::full({2}, 64.0F), 1e-3, 0);
  ASSERT_GT(text.cache.evict(text.bound, -10, 364), 0);
  EXPECT_NEAR(text.cache.evicted_norms()[0], 8, 1e-3);
  EXPECT_BITWISE_EQUAL(text.cache.measured_bound(1), bound);
}

TEST(CacheEviction, TheLargestShareIsTold) {
  TwoHeads text;
  text.append(300, -0.1, -0.1);
  ASSERT_GT(text.cache.evict(text.bound, -5, 300), 0);
  const double share = text.cache.evicted_share();
  EXPECT_LE(share, -5);
  text.append(1000, -0.1, -0.1);
  ASSERT_GT(text.cache.evict(text.bound, -20, 1300), 0);
  EXPECT_EQ(text.cache.evicted_share(), share);
  EXPECT_EQ(text.cache.fork().evicted_share(), share);
  EXPECT_EQ(LayerCache::restore(text.cache.pool(), text.cache.snapshot()).evicted_share(), share);
}

TEST(CacheEviction, ForksKeepWhatDecidedIt) {
  TwoHeads text;
  text.append(400, -1, -1);
  ASSERT_GT(text.cache.evict(text.bound, -10, 390), 0);
  LayerCache fork = text.cache.fork();
  EXPECT_EQ(fork.horizon(), 390);
  EXPECT_THROW(fork.truncate(389), Error);
}

}  // namespace
}  // namespace reynard::attention
