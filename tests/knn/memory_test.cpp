// The memory of one layer: what is in it after adding, evicting and resetting, and what it rejects.

#include "reynard/knn/memory.h"

#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/errors.h"
#include "tests/support/mutate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace reynard::test {
namespace {

using knn::Entries;
using knn::Memory;
using knn::MemoryLayer;
using knn::MemoryOptions;

MemoryLayer layer_of(int64_t num_heads, int64_t head_dim) {
  return {.model = "test", .num_heads = num_heads, .head_dim = head_dim, .dtype = at::kFloat};
}

// Entries (1,T,1,1) whose keys are first, first + 1, ...; values are 100 more.
void add_counted(Memory& memory, int64_t first, int64_t count) {
  const at::Tensor keys =
      (at::arange(count, at::kFloat) + first).view({1, count, 1, 1}).contiguous();
  memory.add(keys, keys + 100);
}

TEST(Memory, FindsWhatWasAdded) {
  Memory memory({.of = layer_of(1, 2)});
  const at::Tensor keys = at::tensor({1.0F, 0.0F, 0.0F, 1.0F, 2.0F, 2.0F}).view({1, 3, 1, 2});
  memory.add(keys, keys * 10);
  const at::Tensor query = at::tensor({1.0F, 0.5F}).view({1, 1, 1, 2});
  const knn::SearchResult found = memory.search(query, 2);
  EXPECT_BITWISE_EQUAL(found.ids.view({2}), at::tensor({2, 0}, at::kLong));
  const Entries entries = memory.gather(found.ids);
  EXPECT_BITWISE_EQUAL(entries.keys.view({2, 2}),
                       at::tensor({2.0F, 2.0F, 1.0F, 0.0F}).view({2, 2}));
  EXPECT_BITWISE_EQUAL(entries.values, entries.keys * 10);
}

TEST(Memory, OldestEntriesLeaveAFullRing) {
  Memory memory({.of = layer_of(1, 1), .capacity = 5});
  add_counted(memory, 0, 3);
  add_counted(memory, 3, 4);
  EXPECT_EQ(memory.first_id(0), 2);
  EXPECT_EQ(memory.next_id(0), 7);
  // Key = id, so the best five of query 1 are all ids, descending.
  const knn::SearchResult found = memory.search(at::ones({1, 1, 1, 1}), 5);
  EXPECT_BITWISE_EQUAL(found.ids.view({5}), at::tensor({6, 5, 4, 3, 2}, at::kLong));
  EXPECT_BITWISE_EQUAL(memory.gather(found.ids).values.view({5}),
                       at::tensor({106.0F, 105.0F, 104.0F, 103.0F, 102.0F}));
  EXPECT_BITWISE_EQUAL(memory.entries(0).keys.view({5}), at::arange(2, 7, at::kFloat));
  add_counted(memory, 7, 12);  // more than the capacity at once
  EXPECT_EQ(memory.first_id(0), 14);
  EXPECT_BITWISE_EQUAL(memory.entries(0).keys.view({5}), at::arange(14, 19, at::kFloat));
}

// Three copies of one ring: each goes its own way, also around the end and after a reset.
TEST(Memory, CopiesShareUntilTheyWrite) {
  for (const int64_t capacity : {0, 300}) {
    Memory first({.of = layer_of(1, 1), .capacity = capacity});
    add_counted(first, 0, 200);
    Memory second = first, third = first;
    const void* shared = first.key_rings()[0].keys.const_data_ptr();
    EXPECT_EQ(second.key_rings()[0].keys.const_data_ptr(), shared);
    add_counted(second, 1000, 20);  // there is room behind what all see
    EXPECT_EQ(second.key_rings()[0].keys.const_data_ptr(), shared);
    add_counted(first, 2000, 150);
    third.reset_row(0);
    add_counted(third, 3000, 5);
    const auto keys = [](const Memory& memory) { return memory.entries(0).keys.flatten(); };
    const at::Tensor begun = at::arange(200, at::kFloat);
    EXPECT_BITWISE_EQUAL(keys(second), at::cat({begun, at::arange(1000, 1020, at::kFloat)}));
    EXPECT_BITWISE_EQUAL(keys(first),
                         at::cat({begun.narrow(0, capacity > 0 ? 50 : 0, capacity > 0 ? 150 : 200),
                                  at::arange(2000, 2150, at::kFloat)}));
    EXPECT_BITWISE_EQUAL(keys(third), at::arange(3000, 3005, at::kFloat));
    EXPECT_EQ(third.first_id(0), 200);
  }
}

// The next entry of a full ring takes the place of its oldest, which a copy still holds.
TEST(Memory, AFullRingThatIsSharedIsNotWrittenInto) {
  Memory memory({.of = layer_of(1, 1), .capacity = 4});
  add_counted(memory, 0, 6);
  const Memory copy = memory;
  add_counted(memory, 6, 1);
  EXPECT_BITWISE_EQUAL(copy.entries(0).keys.flatten(), at::arange(2, 6, at::kFloat));
  EXPECT_BITWISE_EQUAL(copy.entries(0).values.flatten(), at::arange(102, 106, at::kFloat));
  EXPECT_BITWISE_EQUAL(memory.entries(0).keys.flatten(), at::arange(3, 7, at::kFloat));
}

TEST(Memory, CopiesStayWithoutCodes) {
  Memory coded({.of = layer_of(1, 1)});
  add_counted(coded, 0, 20);
  Memory copy = coded;
  coded.code_keys();
  EXPECT_TRUE(coded.key_rings()[0].codes.defined());
  EXPECT_FALSE(copy.key_rings()[0].codes.defined());
  // Codes that nobody keeps would say of later keys what they were before.
  add_counted(copy, 20, 20);
  EXPECT_BITWISE_EQUAL(copy.search(at::ones({1, 1, 1, 1}), 2).ids.flatten(),
                       at::tensor({39, 38}, at::kLong));
}

TEST(Memory, TakesNoMoreRoomThanItsCapacity) {
  Memory memory({.of = layer_of(1, 1), .capacity = 300});
  for (int64_t at = 0; at < 900; at += 90) {
    add_counted(memory, at, 90);
    EXPECT_LE(memory.key_rings()[0].keys.size(1), 300);
  }
  EXPECT_EQ(memory.size(0), 300);
}

TEST(Memory, EntriesCarryNoGradient) {
  Memory memory({.of = layer_of(1, 2)});
  const at::Tensor keys = at::randn({1, 3, 1, 2}).requires_grad_();
  const at::Tensor values = at::randn({1, 3, 1, 2}).requires_grad_();
  memory.add(keys, values);
  memory.add(keys, values, at::ones({1, 3}, at::kBool));
  EXPECT_FALSE(memory.entries(0).keys.requires_grad());
  EXPECT_FALSE(memory.entries(0).values.requires_grad());
  EXPECT_BITWISE_EQUAL(memory.entries(0, 3, 3).values, values.detach()[0]);
}

TEST(Memory, ReservedRoomIsNotCopied) {
  Memory memory({.of = layer_of(1, 1)});
  memory.reserve(5000);
  add_counted(memory, 0, 300);
  const void* begin = memory.key_rings()[0].keys.const_data_ptr();
  for (int64_t at = 300; at < 4900; at += 100) add_counted(memory, at, 100);
  EXPECT_EQ(memory.key_rings()[0].keys.const_data_ptr(), begin);
  EXPECT_EQ(memory.key_rings()[0].keys.size(1), 5000);
}

// Random additions and resets against lists that forget their front.
TEST(Memory, AgreesWithAListThatForgetsItsFront) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Mutator random(seed);
    const int64_t capacity = seed % 2 == 0 ? 0 : 300 + static_cast<int64_t>(random.below(500));
    const int64_t num_rows = 1 + static_cast<int64_t>(random.below(3));
    Memory memory({.of = layer_of(2, 3), .num_rows = num_rows, .capacity = capacity});
    if (seed % 3 == 0) memory.code_keys();
    std::vector<at::Tensor> lists(num_rows, at::zeros({0, 2, 3}));
    for (int step = 0; step < 30; ++step) {
      if (seed % 3 == 1 && step == 15) memory.code_keys();
      if (random.below(8) == 0) {
        const auto row = static_cast<int64_t>(random.below(num_rows));
        memory.reset_row(row);
        lists[row] = at::zeros({0, 2, 3});
      }
      const auto count = static_cast<int64_t>(random.below(120));
      const at::Tensor keys = at::randn({num_rows, count, 2, 3});
      const at::Tensor valid = at::randn({num_rows, count}) > 0;
      memory.add(keys, -keys, valid);
      int64_t largest = 0;
      for (int64_t row = 0; row < num_rows; ++row) {
        lists[row] = at::cat({lists[row], keys[row].index({valid[row]})});
        const int64_t extra = capacity == 0 ? 0 : lists[row].size(0) - capacity;
        if (extra > 0) lists[row] = lists[row].narrow(0, extra, capacity).clone();
        ASSERT_EQ(memory.size(row), lists[row].size(0));
        EXPECT_BITWISE_EQUAL(memory.entries(row).keys, lists[row]);
        EXPECT_BITWISE_EQUAL(memory.entries(row).values, -lists[row]);
        largest = std::max(largest, memory.size(row));
      }
      if (largest == 0) continue;
      const at::Tensor queries = at::randn({num_rows, 1, 2, 3});
      const int64_t k = (largest + 9) / 10;
      const knn::SearchResult found = memory.search(queries, k);
      const knn::SearchResult plain = knn::plain_search(queries, memory.key_rings(), k);
      EXPECT_BITWISE_EQUAL(found.ids, plain.ids);
      EXPECT_BITWISE_EQUAL(found.scores, plain.scores);
    }
  }
}

TEST(Memory, ANewDocumentResetsItsRowOnly) {
  Memory memory({.of = layer_of(1, 2), .num_rows = 2});
  const at::Tensor keys = at::randn({2, 4, 1, 2});
  memory.add(keys, keys);
  memory.reset_row(0);
  EXPECT_EQ(memory.size(0), 0);
  EXPECT_EQ(memory.size(1), 4);
  const at::Tensor more = at::randn({2, 2, 1, 2});
  memory.add(more, more);
  // Ids go on: one of the former document is never taken for one of this.
  EXPECT_EQ(memory.first_id(0), 4);
  const knn::SearchResult found = memory.search(at::randn({2, 1, 1, 2}), 6);
  EXPECT_EQ(found.ids[0].ge(4).sum().item<int64_t>(), 2);
  EXPECT_EQ(found.ids[1].ge(0).sum().item<int64_t>(), 6);
  EXPECT_SAYS(error_of([&] {
                memory.gather(at::zeros({2, 1, 1, 1}, at::kLong));
              }),
              "id for row 0 = 0; expected -1 or an id in [4, 6)");
}

TEST(Memory, OneRowServesAllDocuments) {
  Memory memory({.of = layer_of(2, 4)});
  const at::Tensor keys = at::randn({1, 10, 2, 4});
  memory.add(keys, keys);
  const at::Tensor queries = at::randn({3, 2, 4, 4});
  const knn::SearchResult found = memory.search(queries, 3);
  const Entries entries = memory.gather(found.ids);
  EXPECT_EQ(entries.keys.sizes(), at::IntArrayRef({3, 2, 4, 3, 4}));
  const at::Tensor scores = (entries.keys * queries.unsqueeze(3)).sum(-1);
  EXPECT_TENSORS_NEAR(scores, found.scores, 1e-5, 1e-5);
}

TEST(Memory, MissingEntriesAreZeros) {
  const Memory memory({.of = layer_of(1, 3)});
  const Entries entries = memory.gather(at::zeros({1, 1, 1, 2}, at::kLong) - 1);
  EXPECT_BITWISE_EQUAL(entries.values, at::zeros({1, 1, 1, 2, 3}));
}

TEST(Memory, NoIdsGatherNothing) {
  const Memory memory({.of = layer_of(1, 3), .device = test_device()});
  const Entries entries = memory.gather(on_test_device(at::zeros({0, 2, 1, 4}, at::kLong)));
  EXPECT_EQ(entries.keys.sizes(), at::IntArrayRef({0, 2, 1, 4, 3}));
  EXPECT_EQ(entries.values.device(), on_test_device(at::ones({1})).device());
}

TEST(Memory, RejectsEntriesThatItDoesNotHold) {
  Memory memory({.of = layer_of(1, 1)});
  add_counted(memory, 0, 4);
  const auto error_at = [&](int64_t first, int64_t size) {
    return error_of([&] { memory.entries(0, first, size); });
  };
  EXPECT_SAYS(error_at(0, 4), "no error");
  EXPECT_SAYS(error_at(4, 0), "no error");
  EXPECT_SAYS(error_at(-1, 1), "first entry to read = -1; expected 0 ... 4");
  EXPECT_SAYS(error_at(5, 0), "first entry to read = 5; expected 0 ... 4");
  EXPECT_SAYS(error_at(1, -1), "number of entries to read = -1; expected 0 ... 3");
  EXPECT_SAYS(error_at(1, 4), "number of entries to read = 4; expected 0 ... 3");
}

// Every rejected call leaves the memory as it was.
TEST(Memory, RejectsAndStaysAsItWas) {
  Memory memory({.of = layer_of(2, 3), .num_rows = 2, .capacity = 6, .evict = false});
  const at::Tensor kept = at::randn({2, 4, 2, 3});
  memory.add(kept, kept);
  const at::Tensor good = at::randn({2, 2, 2, 3});
  const auto rejected =
      [&](const at::Tensor& keys, const at::Tensor& values, const at::Tensor& valid = {}) {
        std::string error = error_of([&] { memory.add(keys, values, valid); });
        EXPECT_EQ(memory.size(0), 4);
        EXPECT_BITWISE_EQUAL(memory.entries(0).keys, kept[0]);
        EXPECT_BITWISE_EQUAL(memory.entries(1).values, kept[1]);
        return error;
      };
  EXPECT_SAYS(rejected(at::randn({2, 3, 2, 3}), at::randn({2, 3, 2, 3})),
              "row 0 holds 4 of at most 6 entries and 3 more do not fit");
  EXPECT_SAYS(rejected(at::randn({2, 2, 2, 4}), good), "keys has shape [2, 2, 2, 4]");
  EXPECT_SAYS(rejected(good, at::randn({2, 1, 2, 3})), "values has shape");
  EXPECT_SAYS(rejected(at::randn({3, 2, 2, 3}), good), "expected [B = 2, T, G = 2");
  EXPECT_SAYS(rejected(good.to(at::kBFloat16), good), "keys has dtype BFloat16; expected Float");
  EXPECT_SAYS(rejected(good, good, at::ones({2, 3}, at::kBool)), "valid has shape");
  at::Tensor broken = good.clone();
  broken[1][0][0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_SAYS(rejected(broken, good), "keys hold NaN");
  EXPECT_SAYS(rejected(good, broken), "values hold NaN");
  // What is not an entry may hold anything.
  at::Tensor valid = at::ones({2, 2}, at::kBool);
  valid[1][0] = false;
  memory.add(broken, broken, valid);
  EXPECT_EQ(memory.size(0), 6);
  EXPECT_EQ(memory.size(1), 5);
  EXPECT_SAYS(error_of([&] {
                memory.search(at::randn({2, 1, 2, 3}), 7);
              }),
              "k = 7; expected 1 ... 6");
  EXPECT_SAYS(error_of([&] { memory.reset_row(2); }), "row = 2; expected 0 ... 1");
}

TEST(Memory, RejectsSizesOutOfRange) {
  const auto with = [](const MemoryOptions& options) {
    return error_of([&] { const Memory memory(options); });
  };
  EXPECT_SAYS(with({.of = layer_of(0, 4)}), "num_heads = 0");
  EXPECT_SAYS(with({.of = layer_of(1, 0)}), "head_dim = 0");
  EXPECT_SAYS(with({.of = layer_of(1, 4), .num_rows = 0}), "num_rows = 0");
  EXPECT_SAYS(with({.of = layer_of(1, 4), .capacity = -1}), "capacity = -1");
  MemoryLayer half = layer_of(1, 4);
  half.dtype = at::kHalf;
  EXPECT_SAYS(with({.of = half}), "dtype = Half; expected Float or BFloat16");
}

}  // namespace
}  // namespace reynard::test
