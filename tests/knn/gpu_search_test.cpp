// The search of a GPU against the definition: the same ids and scores to the last bit. Runs with
// REYNARD_TEST_DEVICE=cuda.

#include "reynard/knn/memory.h"
#include "reynard/knn/search.h"
#include "reynard/knn/streamed_search.h"

#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <thread>
#include <vector>

namespace reynard::test {
namespace {

using knn::KeyRing;
using knn::SearchResult;

class GpuSearch : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().is_cpu())
      GTEST_SKIP() << "set REYNARD_TEST_DEVICE=cuda on a machine with one";
  }
};

KeyRing moved(const KeyRing& ring) {
  return {
      .keys = on_test_device(ring.keys), .base = ring.base, .first = ring.first, .next = ring.next};
}

// checked: the tokens whose queries are also answered by the definition, whose loop is slow; none:
// all.
void expect_same(const at::Tensor& queries,
                 const std::vector<KeyRing>& rings,
                 int64_t k,
                 const std::vector<int64_t>& checked = {}) {
  std::vector<KeyRing> there;
  for (const KeyRing& ring : rings) there.push_back(moved(ring));
  SearchResult found = knn::search(on_test_device(queries), there, k);
  at::Tensor some = queries;
  if (!checked.empty()) {
    const at::Tensor rows = at::tensor(checked, at::kLong);
    some = queries.index_select(1, rows);
    found = {found.ids.cpu().index_select(1, rows), found.scores.cpu().index_select(1, rows)};
  }
  const SearchResult expected = knn::plain_search(some, rings, k);
  EXPECT_BITWISE_EQUAL(found.ids.cpu(), expected.ids);
  // Sums that overflow both ways are NaN; of which sign depends on the machine.
  const auto comparable = [](const at::Tensor& scores) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return scores.masked_fill(scores.isnan(), nan);
  };
  EXPECT_BITWISE_EQUAL(comparable(found.scores.cpu()), comparable(expected.scores));
}

TEST_F(GpuSearch, EqualsTheDefinition) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const int64_t D : {5, 8, 24, 64, 100, 128, 256}) {
      for (const auto& [Tq, N, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                        {1, 20000, 128},
                                                                        {2, 70000, 7},
                                                                        {5, 300, 300},
                                                                        {20, 20000, 32},
                                                                        {3, 9000, 5000}}) {
        SCOPED_TRACE(testing::Message() << dtype << " D " << D << " Tq " << Tq << " N " << N);
        const KeyRing ring{at::randn({2, N, D}).to(dtype), 0, 0, N};
        expect_same(at::randn({1, Tq, 4, D}), {ring}, k);
      }
    }
  }
}

TEST_F(GpuSearch, ManyQueriesOverManyKeys) {
  const KeyRing ring{at::randn({1, 70000, 64}).to(at::kBFloat16), 0, 0, 70000};
  // One of each warp's queries at least, and those at the ends of a warp's and of a block's.
  const std::vector<int64_t> checked = {0, 31, 32, 77, 127, 128, 150, 191, 192, 199};
  expect_same(at::randn({1, 200, 1, 64}), {ring}, 128, checked);
  expect_same(at::randn({1, 200, 1, 64}).to(at::kBFloat16), {ring}, 1, checked);
  // Longer keys, and more queries than a block's.
  const KeyRing longer{at::randn({1, 70000, 128}).to(at::kBFloat16), 0, 0, 70000};
  expect_same(at::randn({1, 200, 1, 128}), {longer}, 100, checked);
  expect_same(at::randn({1, 300, 1, 64}), {ring}, 100, {0, 255, 256, 299});
}

// A few keys far longer than all others: bounds of the error of approximate scores follow them and
// come down again.
TEST_F(GpuSearch, KeysLongerThanOthers) {
  at::Tensor keys = at::randn({1, 70000, 64});
  for (const int64_t at : {1000, 1001, 33333, 69999}) keys.select(1, at).mul_(1e4);
  keys.select(1, 20000).mul_(1e30);
  const KeyRing ring{keys.to(at::kBFloat16), 0, 0, 70000};
  for (const int64_t Tq : {2, 6, 70}) {
    SCOPED_TRACE(testing::Message() << "Tq " << Tq);
    expect_same(at::randn({1, Tq, 1, 64}), {ring}, 64, {0, Tq - 1});
  }
}

TEST_F(GpuSearch, TiesGoToTheSmallerId) {
  const KeyRing equal{at::ones({1, 50000, 64}).to(at::kBFloat16), 0, 0, 50000};
  expect_same(at::ones({1, 1, 1, 64}), {equal}, 100);
  expect_same(at::ones({1, 20, 1, 64}), {equal}, 100);
  // Few different scores, each many times.
  const at::Tensor levels = at::arange(50000, at::kFloat).remainder(7).view({1, -1, 1});
  const KeyRing some{levels.expand({1, 50000, 64}).contiguous().to(at::kBFloat16), 0, 0, 50000};
  expect_same(at::randn({1, 20, 1, 64}), {some}, 100);
}

// Scores that rise with the id: everything reaches a threshold taken from what came before.
TEST_F(GpuSearch, SortedKeysOverflowNoList) {
  const at::Tensor rising = at::arange(300000, at::kFloat).view({1, -1, 1}) / 1000;
  const KeyRing ring{rising.expand({1, 300000, 64}).contiguous(), 0, 0, 300000};
  expect_same(at::ones({1, 2, 1, 64}), {ring}, 16);
  const at::Tensor best_first =
      at::cat({at::full({1, 60000, 64}, 3.0), at::randn({1, 60000, 64})}, 1);
  const KeyRing clustered{best_first.to(at::kBFloat16), 0, 0, 120000};
  expect_same(at::ones({1, 20, 1, 64}), {clustered}, 50);
}

TEST_F(GpuSearch, RingsOfUnequalRows) {
  const at::Tensor keys = at::randn({2, 30000, 64}).to(at::kBFloat16);
  const KeyRing turned{keys, 100, 25000, 55000 - 7};
  const KeyRing small{keys.narrow(1, 0, 40), 0, 0, 33};
  const KeyRing strided{at::randn({300, 2, 64}).to(at::kBFloat16).transpose(0, 1), 0, 0, 300};
  expect_same(at::randn({3, 6, 4, 64}), {turned, small, strided}, 40);
  expect_same(at::randn({3, 6, 4, 64}), {turned}, 40);
}

// What a launch may use is told to the driver before it, for all threads.
TEST_F(GpuSearch, ThreadsSearchKeysOfUnequalLength) {
  const auto search_often = [](int64_t D) {
    const at::Tensor queries = on_test_device(at::randn({1, D}));
    const at::Tensor keys = on_test_device(at::randn({64, D}));
    const SearchResult expected = knn::search(queries, keys, 8);
    for (int i = 0; i < 500; ++i) {
      SearchResult found;
      ASSERT_NO_THROW(found = knn::search(queries, keys, 8)) << "D " << D;
      EXPECT_BITWISE_EQUAL(found.ids.cpu(), expected.ids.cpu());
    }
  };
  std::thread longer([&] { search_often(1024); });
  search_often(16);
  longer.join();
}

TEST_F(GpuSearch, LargeAndTinyNumbers) {
  const at::Tensor keys = at::randn({1, 40000, 64});
  for (const double size : {1e30, 1e-30, 1e-38}) {
    const KeyRing ring{(keys * size).to(at::kBFloat16), 0, 0, 40000};
    expect_same(at::randn({1, 16, 1, 64}), {ring}, 30);
    expect_same(at::randn({1, 16, 1, 64}) * size, {ring}, 30);
  }
}

// Keys in host memory, in one block and in several.
TEST_F(GpuSearch, KeysInHostMemory) {
  const at::Tensor levels = at::randint(-2, 3, {2, 30000, 64}, at::kFloat).to(at::kBFloat16);
  const std::vector<KeyRing> rings = {{levels, 100, 25000, 55000 - 7}, {levels, 0, 0, 40}};
  const at::Tensor queries = at::randn({2, 6, 4, 64});
  const SearchResult expected = knn::plain_search(queries, rings, 45);
  const auto expect_expected = [&](const SearchResult& found) {
    EXPECT_TRUE(found.ids.is_cuda());
    EXPECT_BITWISE_EQUAL(found.ids.cpu(), expected.ids);
    EXPECT_BITWISE_EQUAL(found.scores.cpu(), expected.scores);
  };
  expect_expected(knn::search(on_test_device(queries), rings, 45));
  for (const int64_t block_keys : {4000, 29993, 17}) {
    const int64_t bytes = block_keys * 2 * 64 * 2 * 2;
    expect_expected(knn::streamed_search(on_test_device(queries), rings, 45, bytes));
  }
}

TEST_F(GpuSearch, AMemoryLivesInEachPlace) {
  knn::MemoryOptions options{.of = {.model = "m", .num_heads = 2, .head_dim = 64}, .capacity = 500};
  const at::Tensor queries = at::randn({1, 3, 4, 64});
  for (const auto place :
       {knn::MemoryPlace::kDevice, knn::MemoryPlace::kHostValues, knn::MemoryPlace::kHost}) {
    SCOPED_TRACE(static_cast<int>(place));
    options.device = at::kCPU;
    knn::Memory here(options);
    options.device = test_device();
    options.place = place;
    knn::Memory there(options);
    for (int i = 0; i < 5; ++i) {
      const at::Tensor k = at::randn({1, 130, 2, 64}).to(at::kBFloat16);
      here.add(k, -k);
      // Entries may come from either side of the bus.
      if (i % 2 == 0) there.add(k, -k);
      if (i % 2 == 1) there.add(on_test_device(k), on_test_device(-k));
    }
    EXPECT_EQ(there.key_rings()[0].keys.is_cpu(), place == knn::MemoryPlace::kHost);
    EXPECT_EQ(there.key_rings()[0].keys.is_pinned(), place == knn::MemoryPlace::kHost);
    const SearchResult expected = here.search(queries, 9);
    const SearchResult found = there.search(on_test_device(queries), 9);
    EXPECT_BITWISE_EQUAL(found.ids.cpu(), expected.ids);
    EXPECT_BITWISE_EQUAL(found.scores.cpu(), expected.scores);
    const auto expect_entries = [](const knn::Entries& held, const knn::Entries& wanted) {
      EXPECT_TRUE(held.keys.is_cuda() && held.values.is_cuda());
      EXPECT_BITWISE_EQUAL(held.keys.cpu(), wanted.keys);
      EXPECT_BITWISE_EQUAL(held.values.cpu(), wanted.values);
    };
    expect_entries(there.gather(found.ids), here.gather(expected.ids));
    expect_entries(there.entries(0), here.entries(0));
    expect_entries(there.entries(0, 100, 333), here.entries(0, 100, 333));
    const TempDir folder;
    there.save(folder / "memory");
    const knn::Memory loaded =
        knn::Memory::load(folder / "memory", options.of, test_device(), place);
    expect_entries(loaded.entries(0), here.entries(0));
    const knn::Memory mapped = knn::Memory::map(folder / "memory", options.of, test_device());
    expect_entries(mapped.entries(0), here.entries(0));
    EXPECT_BITWISE_EQUAL(mapped.search(on_test_device(queries), 9).ids.cpu(), expected.ids);
  }
}

TEST_F(GpuSearch, ARowWithoutEntriesGivesZeros) {
  knn::MemoryOptions options{
      .of = {.model = "m", .num_heads = 1, .head_dim = 64}, .num_rows = 2, .device = test_device()};
  knn::Memory memory(options);
  const at::Tensor k = at::randn({2, 7, 1, 64}).to(at::kBFloat16);
  const at::Tensor valid = at::zeros({2, 7}, at::kBool);
  valid[0].fill_(true);
  memory.add(on_test_device(k), on_test_device(-k), valid);
  const SearchResult found = memory.search(on_test_device(at::randn({2, 3, 2, 64})), 5);
  EXPECT_TRUE(found.ids[1].eq(-1).all().item<bool>());
  const knn::Entries entries = memory.gather(found.ids);
  EXPECT_TRUE(entries.keys[0].equal(-entries.values[0]));
  EXPECT_EQ(entries.keys[1].count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(entries.values[1].count_nonzero().item<int64_t>(), 0);
}

}  // namespace
}  // namespace reynard::test
