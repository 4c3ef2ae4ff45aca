// The memory of one sequence: behind a memory that was read before it is what one memory of both
// would be.

#include "reynard/models/layer_memory.h"

#include "reynard/knn/streamed_search.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

namespace reynard::models {
namespace {

constexpr int64_t kKeyHeads = 2, kHeads = 4, kDim = 3;

using test::on_test_device;

// Few different keys: scores tie across memories.
knn::Entries random_entries(int64_t count) {
  return {on_test_device(at::randint(-2, 3, {count, kKeyHeads, kDim}, at::kFloat)),
          on_test_device(at::randn({count, kKeyHeads, kDim}))};
}

std::shared_ptr<knn::Memory> memory_of(const knn::Entries& entries, const MemoryStore& store) {
  auto memory = std::make_shared<knn::Memory>(knn::MemoryOptions{
      .of =
          {.model = {}, .layer = 0, .num_heads = kKeyHeads, .head_dim = kDim, .dtype = at::kFloat},
      .device = entries.keys.device(),
      .place = store.place});
  if (store.coded) memory->code_keys();
  memory->add(entries.keys.unsqueeze(0), entries.values.unsqueeze(0));
  return memory;
}

// Everything in a memory's pieces, in order.
knn::Entries all_of(const LayerMemory& memory) {
  std::vector<at::Tensor> keys, values;
  int64_t end = 0;
  for (const LayerMemory::Piece& piece : memory.pieces()) {
    EXPECT_EQ(piece.begin, end);
    end += piece.size;
    keys.push_back(memory.entries(piece).keys);
    values.push_back(memory.entries(piece).values);
  }
  EXPECT_EQ(end, memory.size());
  return {at::cat(keys), at::cat(values)};
}

void expect_equal(const LayerMemory& memory, const LayerMemory& expected) {
  ASSERT_EQ(memory.size(), expected.size());
  const knn::Entries all = all_of(memory), expected_all = all_of(expected);
  EXPECT_BITWISE_EQUAL(all.keys, expected_all.keys);
  EXPECT_BITWISE_EQUAL(all.values, expected_all.values);
  const at::Tensor queries = on_test_device(at::randn({1, 5, kHeads, kDim}));
  for (const int64_t k : {int64_t{1}, int64_t{7}, expected.size()}) {
    SCOPED_TRACE(testing::Message() << "k " << k);
    const knn::SearchResult found = memory.search(queries, k), wanted = expected.search(queries, k);
    EXPECT_BITWISE_EQUAL(found.ids, wanted.ids);
    EXPECT_BITWISE_EQUAL(found.scores, wanted.scores);
    const knn::Entries entries = memory.gather(found.ids), own = expected.gather(found.ids);
    EXPECT_TRUE(entries.keys.equal(own.keys));
    EXPECT_TRUE(entries.values.equal(own.values));
  }
}

std::vector<MemoryStore> stores() {
  MemoryStore store;
  std::vector<MemoryStore> all = {store};
  if (test::test_device().is_cpu()) {
    store.coded = true;
    all.push_back(store);
    return all;
  }
  for (const auto place : {knn::MemoryPlace::kHostValues, knn::MemoryPlace::kHost}) {
    store.place = place;
    all.push_back(store);
  }
  return all;
}

TEST(LayerMemory, BehindAnEarlierOneIsOneMemoryOfBoth) {
  const MemoryStore plain;
  for (const MemoryStore& store : stores()) {
    for (const int64_t capacity : {0, 8, 30, 45}) {
      SCOPED_TRACE(testing::Message() << "capacity " << capacity << " place "
                                      << static_cast<int>(store.place) << " coded " << store.coded);
      MemoryStore bounded = store, expected_store = plain;
      bounded.capacity = expected_store.capacity = capacity;
      const knn::Entries before = random_entries(40);
      LayerMemory memory(memory_of(before, store), capacity), expected;
      expected.add(before.keys, before.values, {}, expected_store);
      expect_equal(memory, expected);
      for (int step = 0; step < 4; ++step) {
        const knn::Entries more = random_entries(6);
        memory.add(more.keys, more.values, {}, bounded);
        expected.add(more.keys, more.values, {}, expected_store);
        expect_equal(memory, expected);
      }
    }
  }
}

TEST(LayerMemory, AnotherCapacityKeepsTheNewest) {
  MemoryStore store;
  const knn::Entries before = random_entries(10), one = random_entries(20), two = random_entries(3);
  LayerMemory memory(memory_of(before, store), 0);
  memory.add(one.keys, one.values, {}, store);
  for (const int64_t capacity : {28, 12}) {
    LayerMemory bounded = memory;
    store.capacity = capacity;
    bounded.add(two.keys, two.values, {}, store);
    const at::Tensor all = at::cat({before.values, one.values, two.values});
    EXPECT_BITWISE_EQUAL(all_of(bounded).values, all.narrow(0, 33 - capacity, capacity));
  }
  EXPECT_EQ(memory.size(), 30);
}

TEST(LayerMemory, CopiesThatGoOnDifferentlyShareWhatWasBefore) {
  const MemoryStore store;
  const knn::Entries before = random_entries(10), one = random_entries(3), two = random_entries(3);
  const LayerMemory begin(memory_of(before, store), 0);
  LayerMemory a = begin, b = begin;
  a.add(one.keys, one.values, {}, store);
  b.add(two.keys, two.values, {}, store);
  EXPECT_EQ(begin.size(), 10);
  EXPECT_BITWISE_EQUAL(all_of(a).values, at::cat({before.values, one.values}));
  EXPECT_BITWISE_EQUAL(all_of(b).values, at::cat({before.values, two.values}));
}

TEST(LayerMemory, TakesNothingMoreBehindWhatIsNotFinite) {
  for (const MemoryStore& store : stores()) {
    const knn::Entries one = random_entries(3), two = random_entries(3);
    knn::Entries bad = random_entries(3);
    bad.values[1][0][2] = std::nan("");
    LayerMemory memory;
    memory.add(one.keys, one.values, {}, store);
    const LayerMemory whole = memory;
    memory.add(bad.keys, bad.values, {}, store);
    EXPECT_EQ(memory.failure(), "memory: values hold NaN or an infinity; expected finite numbers");
    memory.add(two.keys, two.values, {}, store);
    EXPECT_BITWISE_EQUAL(all_of(memory).values, one.values);
    EXPECT_EQ(whole.failure(), "");
  }
}

}  // namespace
}  // namespace reynard::models
