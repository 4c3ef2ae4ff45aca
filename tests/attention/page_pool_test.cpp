#include "reynard/attention/cache.h"

#include "reynard/tensor/check.h"
#include "tests/support/device.h"

#include <gtest/gtest.h>

#include <exception>
#include <set>
#include <vector>

namespace reynard::attention {
namespace {

// A list that keeps all its pages beside some that keep the last four of theirs: neighbours are
// read faster, so what is freed must not scatter it.
TEST(PagePool, ListsStayTogetherWhileOthersFreeTheirs) {
  PagePool pool({.head_dim = 64, .device = test::test_device()});
  std::vector<int32_t> whole;
  std::vector<std::vector<int32_t>> recent(5);
  const auto grow = [&](std::vector<int32_t>& pages) {
    for (int i = 0; i < 8; ++i) pages.push_back(pool.allocate(pages.empty() ? -1 : pages.back()));
  };
  for (int step = 0; step < 64; ++step) {
    for (std::vector<int32_t>& pages : recent) {
      grow(pages);
      for (; pages.size() > 4; pages.erase(pages.begin())) pool.release(pages[0]);
    }
    grow(whole);
  }
  int64_t jumps = 0;
  for (size_t i = 1; i < whole.size(); ++i) jumps += whole[i] == whole[i - 1] + 1 ? 0 : 1;
  EXPECT_LE(jumps, 512 / 16 + 8);
  EXPECT_EQ(pool.pages_in_use(), 512 + 5 * 4);
  EXPECT_LE(pool.keys().size(0), 1024);
}

// There is memory for the keys of 8M pages, but not for their gate sums.
TEST(PagePool, StaysAsItWasWhereMemoryRunsOut) {
  PagePool pool({.head_dim = 1, .group = 1 << 16, .max_pages = 1 << 23});
  pool.allocate();
  const int64_t capacity = pool.keys().size(0);
  EXPECT_THROW(pool.reserve(), std::exception);
  EXPECT_EQ(pool.keys().size(0), capacity);
  EXPECT_EQ(pool.values().size(0), capacity);
  EXPECT_EQ(pool.allocate(0), 1);
}

TEST(PagePool, GivesEveryPageOnce) {
  PagePool pool({.head_dim = 64, .max_pages = 20, .device = test::test_device()});
  std::set<int32_t> pages;
  for (int i = 0; i < 20; ++i) pages.insert(pool.allocate(i % 3 == 0 ? 18 : -1));
  EXPECT_EQ(pages.size(), 20U);
  EXPECT_EQ(*pages.begin(), 0);
  EXPECT_EQ(*pages.rbegin(), 19);
  EXPECT_EQ(pool.keys().size(0), 20) << "memory beyond max_pages";
  EXPECT_THROW(pool.allocate(), Error);
  for (const int32_t page : {3, 17, 4}) pool.release(page);
  EXPECT_EQ(pool.allocate(2), 3);
  EXPECT_EQ(pool.allocate(3), 4);
  EXPECT_EQ(pool.allocate(4), 17);
}

TEST(PagePool, RejectsWhatItCannotHold) {
  EXPECT_THROW(PagePool({.head_dim = 257}), Error);
  EXPECT_THROW(PagePool({.head_dim = 64, .dtype = at::kDouble}), Error);
}

}  // namespace
}  // namespace reynard::attention
