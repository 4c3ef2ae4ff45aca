// A cache whose pool cannot grow: there is no memory for more pages.

#include "reynard/attention/cache.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>

namespace reynard::attention {
namespace {

// Every tensor on the CPU that is asked for is one too many.
struct NoMemory final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* data,
                         int64_t bytes,
                         size_t /*total_allocated*/,
                         size_t /*total_reserved*/,
                         c10::Device /*device*/) override {
    if (bytes <= 0) return;
    c10::free_cpu(data);  // libtorch does not, once this throws
    throw std::bad_alloc();
  }
  bool memoryProfilingEnabled() const override { return true; }
};

// The second head's page is the one that there is no room for.
TEST(LayerCache, IsAsItWasWhereItsPoolCannotGrow) {
  constexpr int64_t kTokens = kPageTokens + 2;
  test::AttentionInputs in = test::random_inputs(
      {.B = 1, .Tq = kTokens, .Tk = kTokens, .H = 2, .G = 2, .D = 8}, at::kFloat, 1);
  for (at::Tensor* x : {&in.k, &in.v, &in.log_gate}) *x = x->cpu();  // whose pages NoMemory counts
  const auto pool = std::make_shared<PagePool>(PageLayout{.head_dim = 8, .group = 1});
  LayerCache cache(pool, 2);
  const auto append_to = [&](LayerCache& to, int64_t begin, int64_t end) {
    to.append(in.k[0].slice(0, begin, end),
              in.v[0].slice(0, begin, end),
              in.log_gate[0].slice(0, begin, end));
  };
  append_to(cache, 0, kPageTokens);
  const int64_t capacity = pool->keys().size(0);
  while (pool->pages_in_use() + 1 < capacity) pool->allocate();
  const LayerCache fork = cache.fork();
  const CacheSnapshot before = cache.snapshot();

  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE,
                                    std::make_shared<NoMemory>());
    EXPECT_THROW(append_to(cache, kPageTokens, kPageTokens + 1), std::exception);
  }
  EXPECT_EQ(pool->keys().size(0), capacity);
  EXPECT_EQ(pool->pages_in_use(), capacity - 1);
  EXPECT_EQ(cache.length(), kPageTokens);
  for (const int64_t head : {0, 1}) EXPECT_EQ(cache.pages(head).size(), 1) << head;
  append_to(cache, kPageTokens, kTokens);
  const CacheSnapshot after = cache.snapshot(), kept = fork.snapshot();
  EXPECT_BITWISE_EQUAL(after.k, in.k[0]);
  EXPECT_BITWISE_EQUAL(after.v, in.v[0]);
  EXPECT_BITWISE_EQUAL(kept.k, before.k);
  EXPECT_BITWISE_EQUAL(kept.sums, before.sums);
}

}  // namespace
}  // namespace reynard::attention
