// Pages that a query skips, and what no token fills, hold NaN behind the cache's back and are not
// read, for every shape of heads that a kernel may take by itself.

#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <ostream>
#include <tuple>

namespace reynard::attention {
namespace {

using test::AttentionInputs;

struct CachedHeads {
  int64_t H, G, D;
};

void PrintTo(const CachedHeads& heads, std::ostream* stream) {
  *stream << fmt::format("H{}G{}D{}", heads.H, heads.G, heads.D);
}

class UnreadPages : public testing::TestWithParam<std::tuple<CachedHeads, at::ScalarType>> {
 protected:
  const CachedHeads heads = std::get<0>(GetParam());
  const at::ScalarType dtype = std::get<1>(GetParam());

  std::shared_ptr<PagePool> empty_pool() const {
    return std::make_shared<PagePool>(PageLayout{.head_dim = heads.D,
                                                 .group = heads.H / heads.G,
                                                 .dtype = dtype,
                                                 .device = test::test_device()});
  }
  AttentionInputs tokens(int64_t T, double gate_mean) const {
    return test::random_inputs(
        {.B = 1, .Tq = T, .Tk = T, .H = heads.H, .G = heads.G, .D = heads.D}, dtype, 7, gate_mean);
  }
  LayerCache cache_of(const AttentionInputs& in, const std::shared_ptr<PagePool>& pool) const {
    LayerCache cache(pool, heads.G);
    cache.append(in.k[0], in.v[0], in.log_gate[0]);
    return cache;
  }
  PagedOutput last_query(const LayerCache& cache,
                         const AttentionInputs& in,
                         const at::Tensor& bound = {},
                         const AttentionOptions& options = {}) const {
    const LayerCache* caches[] = {&cache};
    const int64_t offsets[] = {0, 1};
    return paged_attention(
        in.q[0].slice(0, cache.length() - 1), offsets, caches, bound, 0, options);
  }
};

INSTANTIATE_TEST_SUITE_P(LayerCache,
                         UnreadPages,
                         testing::Combine(testing::Values(CachedHeads{4, 2, 64},
                                                          CachedHeads{16, 2, 64},
                                                          CachedHeads{20, 1, 64},
                                                          CachedHeads{3, 3, 64},
                                                          CachedHeads{8, 1, 128},
                                                          CachedHeads{20, 1, 128},
                                                          CachedHeads{2, 2, 128}),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& info) {
                           return testing::PrintToString(std::get<0>(info.param)) +
                                  c10::toString(std::get<1>(info.param));
                         });

// Of 99 keys the last shares words of its page with a slot that none has taken.
TEST_P(UnreadPages, UnusedPagesAndSlotsAreNotRead) {
  for (const int64_t T : {100, 99}) {
    const auto pool = empty_pool();
    {
      LayerCache poison(pool, heads.G);  // its pages go back to the pool full of NaN
      const at::Tensor bad = test::on_test_device(
          at::full({1000, heads.G, heads.D}, std::numeric_limits<double>::quiet_NaN(), dtype));
      poison.append(bad, bad);
    }
    const AttentionInputs in = tokens(T, /*gate_mean=*/2);
    const at::Tensor out = last_query(cache_of(in, pool), in).out;
    EXPECT_TRUE(out.isfinite().all().item<bool>());  // free memory of the other pool may hold NaN
    EXPECT_BITWISE_EQUAL(out, last_query(cache_of(in, empty_pool()), in).out);
  }
}

TEST_P(UnreadPages, SkippedPagesAreNotRead) {
  const at::Tensor given = test::on_test_device(at::full({heads.H}, 12.0F, at::kFloat));
  const AttentionInputs in = tokens(1000, /*gate_mean=*/0);
  for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
    for (const at::Tensor& bound : {given, at::Tensor()}) {
      const LayerCache cache = cache_of(in, empty_pool());
      const AttentionOptions options = {0, -10, rule};
      const PagedOutput clean = last_query(cache, in, bound, options);
      // The two nearest pages are read in any case: they bound the query's log-sum-exp.
      const int64_t floor_page = 1000 / kPageTokens - 1;
      const int64_t skipped = std::min(clean.start.min().item<int32_t>() / kPageTokens, floor_page);
      ASSERT_GT(skipped, 5) << config::name_of(rule);
      for (int64_t g = 0; g < heads.G; ++g) {
        for (int64_t n = 0; n < skipped; ++n) {
          const int32_t page = cache.pages(g)[n];
          cache.pool()->keys()[page].fill_(std::numeric_limits<float>::quiet_NaN());
          cache.pool()->values()[page].fill_(std::numeric_limits<float>::quiet_NaN());
        }
      }
      const PagedOutput poisoned = last_query(cache, in, bound, options);
      EXPECT_BITWISE_EQUAL(poisoned.out, clean.out);
      EXPECT_BITWISE_EQUAL(poisoned.lse, clean.lse);
    }
  }
}

}  // namespace
}  // namespace reynard::attention
