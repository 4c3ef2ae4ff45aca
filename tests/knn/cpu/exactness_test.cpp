// Every instruction-set path gives the ids and scores of the plain loop, bit for bit: on data made
// to be mistaken, any sizes, any number of threads.

#include "reynard/knn/cpu/path.h"
#include "reynard/knn/search.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/forced_path.h"
#include "tests/support/mutate.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {
namespace {

using knn::KeyRing;
using knn::SearchResult;

class Exactness : public testing::TestWithParam<std::string> {
 protected:
  ForcedPath path_{GetParam()};
};

void expect_same(const SearchResult& actual, const SearchResult& expected) {
  EXPECT_BITWISE_EQUAL(actual.ids, expected.ids);
  EXPECT_BITWISE_EQUAL(actual.scores, expected.scores);
}

SearchResult search_codes(const at::Tensor& queries, const at::Tensor& keys, int64_t k) {
  KeyRing ring{keys.unsqueeze(0), 0, 0, keys.size(0)};
  ring.codes = knn::new_codes(1, keys.size(0), keys.size(1));
  knn::encode_keys(ring.keys, 0, ring.codes);
  return knn::search(queries.unsqueeze(0).unsqueeze(2), {&ring, 1}, k);
}

// In both dtypes of keys, with and without codes, few and many queries, few and many results.
void expect_exact(const at::Tensor& queries, const at::Tensor& keys) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor typed = keys.to(dtype);
    for (const int64_t num_queries :
         {int64_t{1}, std::min<int64_t>(queries.size(0), 3), queries.size(0)}) {
      const at::Tensor some = queries.narrow(0, 0, num_queries);
      for (const int64_t k : {int64_t{1}, (keys.size(0) + 9) / 10, keys.size(0)}) {
        SCOPED_TRACE(testing::Message() << "dtype " << dtype << ", N " << keys.size(0) << ", D "
                                        << keys.size(1) << ", Q " << num_queries << ", k " << k);
        const SearchResult expected = knn::plain_search(some, typed, k);
        expect_same(knn::search(some, typed, k), expected);
        const SearchResult coded = search_codes(some, typed, k);
        EXPECT_BITWISE_EQUAL(coded.ids.view_as(expected.ids), expected.ids);
        EXPECT_BITWISE_EQUAL(coded.scores.view_as(expected.scores), expected.scores);
      }
    }
  }
}

TEST_P(Exactness, OddSizes) {
  for (const int64_t num_keys : {1, 3, 63, 113, 257, 1023}) {
    for (const int64_t dim : {1, 3, 32, 63, 64, 100}) {
      expect_exact(at::randn({19, dim}), at::randn({num_keys, dim}));
    }
  }
}

// Small integers: most scores are equal to others.
TEST_P(Exactness, Ties) {
  expect_exact(at::randint(-1, 2, {17, 8}, at::kFloat), at::randint(-1, 2, {3000, 8}, at::kFloat));
  expect_exact(at::ones({5, 40}), at::ones({2000, 40}));
  expect_exact(at::zeros({5, 40}), at::ones({2000, 40}));
}

TEST_P(Exactness, DuplicatesOfKeys) {
  const at::Tensor keys = at::randn({40, 64});
  expect_exact(at::randn({17, 64}), at::cat({keys, keys, keys.flip(0), keys}));
}

// The same products in another order: equal in exact arithmetic, apart by rounding in f32. An
// approximate score says nothing about their order.
TEST_P(Exactness, NearTiesApartByRounding) {
  const int64_t dim = 64, count = 1500;
  const at::Tensor key = at::randn({dim});
  at::Tensor keys = at::empty({count, dim});
  for (int64_t i = 0; i < count; ++i) keys[i] = key.index({at::randperm(dim, at::kLong)});
  expect_exact(at::ones({17, dim}), keys);
  expect_exact(at::ones({17, dim}) * 3.3, keys);
}

// Scores that differ by a last bit of one element of the query: what bf16 queries cannot see.
TEST_P(Exactness, NearTiesBelowTheRoundingOfQueries) {
  const at::Tensor queries = 1 + at::randn({18, 64}) * 1e-4;
  expect_exact(queries, at::randint(0, 2, {2000, 64}, at::kFloat));
}

TEST_P(Exactness, GrowingScores) {
  const at::Tensor keys = at::randn({3000, 64});
  const at::Tensor query = at::randn({1, 64});
  const at::Tensor order = at::matmul(keys, query[0]).argsort();
  expect_exact(query, keys.index({order}));
  expect_exact(query, keys.index({order.flip(0)}));
}

TEST_P(Exactness, ExtremesOfTheRange) {
  const at::Tensor q = at::randn({5, 64}), k = at::randn({400, 64});
  expect_exact(q * 1e-20, k * 1e-20);  // products below the normal numbers
  expect_exact(q * 1e-30, k * 1e-38);  // denormal keys, all products zero
  expect_exact(q, k * 1e-38);
  expect_exact(q * 1e-38, k * 1e3);
  expect_exact(q * 1e18, k * 1e18);  // sums overflow, some both ways
  expect_exact(q * 1e37, k * 10);
  expect_exact(at::full({5, 64}, std::numeric_limits<float>::max()), k);
}

// A block of huge keys must not blur the bounds of the others.
TEST_P(Exactness, KeysOfUnequalSize) {
  at::Tensor keys = at::randn({3000, 64});
  keys.narrow(0, 700, 3).mul_(1e5);
  keys.narrow(0, 2000, 500).mul_(1e-3);
  expect_exact(at::randn({17, 64}), keys);
}

// Roundings to codes that add up, of keys by half of a scale and of queries by half of a factor: a
// bound that is a third smaller loses keys.
TEST_P(Exactness, CodesThatMissByAsMuchAsTheyMay) {
  const auto signs = [](at::IntArrayRef shape) {
    return at::randint(0, 2, shape, at::kFloat) * 2 - 1;
  };
  const int64_t dim = 64, count = 2000;
  const at::Tensor side = signs({dim});
  at::Tensor keys = at::randint(-1, 2, {count, dim}, at::kFloat) + 0.498 * side * signs({count, 1});
  keys.select(1, 0).fill_(127);  // so that the scale is 1
  at::Tensor queries = side.expand({5, dim}).clone();
  queries.select(1, 0).zero_();
  expect_exact(queries, keys);

  // Two kinds of keys: one's codes give the larger products, the other's keys do.
  keys =
      127 * side * signs({count, 1}).expand({count, dim}) * (at::rand({count, dim}) - 0.02).sign();
  keys.select(1, 0).zero_();
  queries = (0.498 * side).repeat({5, 1});
  queries.narrow(1, 1, 23).sub_(side.narrow(0, 1, 23));
  queries.select(1, 0).fill_(127);  // so that the factor is 1
  expect_exact(queries, keys);
}

// Lower halves of codes that all add to the product, or all take from it: a bound that is a third
// smaller without them loses keys.
TEST_P(Exactness, LowerHalvesOfCodesThatAddUp) {
  const int64_t dim = 64, count = 2000;
  const at::Tensor side = at::randint(0, 2, {dim}, at::kFloat) * 2 - 1;
  const at::Tensor lower = (side + 1) * 7.5, upper = at::randint(7, 9, {count, dim}, at::kFloat);
  at::Tensor keys = 16 * upper + lower - 128;
  keys.select(1, 0).fill_(127);  // so that the scale is 1
  at::Tensor queries = side.expand({5, dim}).clone();
  queries.select(1, 0).zero_();
  expect_exact(queries, keys);
  expect_exact(-queries, keys);
}

// Rings of codes begin and end within groups of slots.
TEST_P(Exactness, CodesOfRings) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Mutator random(seed);
    const auto size = [&](size_t most) { return 1 + static_cast<int64_t>(random.below(most)); };
    const int64_t heads = size(2), dim = size(150), slots = size(900), held = size(slots);
    const int64_t first = static_cast<int64_t>(random.below(2000));
    KeyRing ring{at::randn({heads, slots, dim}), 0, first, first + held};
    ring.codes = knn::new_codes(heads, slots, dim);
    for (int64_t slot = 0; slot < slots;) {  // in pieces, as a memory grows
      const int64_t piece = std::min(size(100), slots - slot);
      knn::encode_keys(ring.keys.narrow(1, slot, piece), slot, ring.codes);
      slot += piece;
    }
    const at::Tensor queries = at::randn({1, size(3), heads, dim});
    const int64_t k = size(static_cast<size_t>(held));
    expect_same(knn::search(queries, {&ring, 1}, k), knn::plain_search(queries, {&ring, 1}, k));
  }
}

TEST_P(Exactness, BatchesHeadsAndRings) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Mutator random(seed);
    const auto size = [&](size_t most) { return 1 + static_cast<int64_t>(random.below(most)); };
    const int64_t batch = size(3), key_heads = size(3), heads = key_heads * size(3);
    const int64_t dim = size(80), tq = size(30);
    const at::ScalarType dtype = random.below(2) == 0 ? at::kBFloat16 : at::kFloat;
    std::vector<KeyRing> rings;
    int64_t largest = 1;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t slots = size(900), base = static_cast<int64_t>(random.below(1000));
      const int64_t first = base + static_cast<int64_t>(random.below(2000));
      const int64_t held = size(static_cast<size_t>(slots));
      // Slots (S,G,D) read as (G,S,D): strides that are not those of a contiguous tensor.
      const at::Tensor keys = at::randn({slots, key_heads, dim}).to(dtype).transpose(0, 1);
      rings.push_back({keys, base, first, first + held});
      largest = std::max(largest, held);
    }
    const at::Tensor queries = at::randn({batch, tq, heads, dim});
    const int64_t k = size(static_cast<size_t>(largest));
    expect_same(knn::search(queries, rings, k), knn::plain_search(queries, rings, k));
  }
}

// Sizes at which keys and queries are cut into tasks.
TEST_P(Exactness, SameForAnyNumberOfThreads) {
  const at::Tensor keys = at::randn({40000, 16}).to(at::kBFloat16);
  const at::Tensor queries = at::randn({300, 16});
  const int threads = at::get_num_threads();
  const SearchResult one_query = knn::plain_search(queries.narrow(0, 0, 1), keys, 50);
  SearchResult all;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    expect_same(knn::search(queries.narrow(0, 0, 1), keys, 50), one_query);
    const SearchResult found = knn::search(queries, keys, 50);
    if (all.ids.defined()) expect_same(found, all);
    all = found;
  }
  at::set_num_threads(threads);
  for (const int64_t i : {0, 16, 255, 299}) {
    const SearchResult alone = knn::plain_search(queries.narrow(0, i, 1), keys, 50);
    EXPECT_BITWISE_EQUAL(all.ids.narrow(0, i, 1), alone.ids);
  }
}

// One query finds it while it is scored, many before: in any vector of an even or odd row.
TEST_P(Exactness, NamesTheFirstBrokenKey) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const auto& [broken, dim] : {std::pair{20010, 12}, {20011, 23}, {28999, 12}}) {
      at::Tensor keys = at::randn({29001, 24}).to(dtype);
      keys[29000][3] = std::numeric_limits<float>::infinity();
      keys[broken][dim] = -std::numeric_limits<float>::quiet_NaN();
      for (const int64_t queries : {1, 2, 40}) {
        EXPECT_SAYS(error_of([&] {
                      knn::search(at::randn({queries, 24}), keys, 3);
                    }),
                    fmt::format("key {} of row 0, head 0 holds NaN", broken));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths,
                         Exactness,
                         testing::ValuesIn(knn::cpu::available_paths()),
                         [](const auto& info) { return info.param; });

TEST(SearchPaths, CodesAreReadWhereProductsOfBytesAre) {
  for (const std::string& name : knn::cpu::available_paths()) {
    const ForcedPath path(name);
    EXPECT_EQ(knn::cpu::scan_tables().codes.reach != nullptr, name != "portable") << name;
  }
}

TEST(SearchPaths, AnUnknownPathIsAnError) {
  const ForcedPath path("avx3");
  EXPECT_SAYS(error_of([&] {
                knn::search(at::randn({1, 4}), at::randn({3, 4}), 1);
              }),
              "knn: REYNARD_CPU_PATH = avx3; expected one of ");
}

}  // namespace
}  // namespace reynard::test
