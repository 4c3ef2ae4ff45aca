#include "reynard/attention/cache.h"

#include "reynard/attention/decode.h"
#include "reynard/attention/step_tables.h"
#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/errors.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::random_inputs;

constexpr int64_t H = 4, G = 2, D = 64;  // a GPU's matrix unit takes D = 64 in half precision

std::shared_ptr<PagePool> make_pool(at::ScalarType dtype = at::kFloat, int64_t max_pages = 0) {
  return std::make_shared<PagePool>(PageLayout{.head_dim = D,
                                               .group = H / G,
                                               .dtype = dtype,
                                               .max_pages = max_pages,
                                               .device = test::test_device()});
}

AttentionInputs sequence(int64_t T, at::ScalarType dtype = at::kFloat, double gate_mean = 2) {
  return random_inputs({.B = 1, .Tq = T, .Tk = T, .H = H, .G = G, .D = D}, dtype, 7, gate_mean);
}

void append(LayerCache& cache, const AttentionInputs& in, int64_t begin, int64_t end) {
  cache.append(in.k[0].slice(0, begin, end),
               in.v[0].slice(0, begin, end),
               in.log_gate[0].slice(0, begin, end));
}

// The last num_queries rows of the cached sequence.
PagedOutput attend(const LayerCache& cache,
                   const AttentionInputs& in,
                   int64_t num_queries = 1,
                   const at::Tensor& bound = {},
                   int64_t window = 0,
                   const AttentionOptions& options = {}) {
  const LayerCache* caches[] = {&cache};
  const int64_t offsets[] = {0, num_queries};
  const at::Tensor q = in.q[0].slice(0, cache.length() - num_queries, cache.length());
  return paged_attention(q, offsets, caches, bound, window, options);
}

TEST(LayerCache, DecodesWhatItWasGiven) {
  const AttentionInputs in = sequence(3);
  LayerCache cache(make_pool(), G);
  for (int64_t t = 0; t < 3; ++t) {
    append(cache, in, t, t + 1);
    const AttentionOutput whole = attention(in.q.slice(1, 0, t + 1),
                                            in.k.slice(1, 0, t + 1),
                                            in.v.slice(1, 0, t + 1),
                                            in.log_gate.slice(1, 0, t + 1));
    EXPECT_TENSORS_NEAR(attend(cache, in).out[0], whole.out[0][t], 1e-6, 1e-5);
  }
}

TEST(LayerCache, PrefillThenDecodeIsFullAttention) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;  // two roundings of out in bf16
    const int64_t T = 333;
    const AttentionInputs in = sequence(T, dtype);
    const AttentionOutput whole = attention(in.q, in.k, in.v, in.log_gate);
    LayerCache cache(make_pool(dtype), G);
    append(cache, in, 0, 200);
    const PagedOutput first = attend(cache, in, 200);
    EXPECT_TENSORS_NEAR(first.out, whole.out[0].slice(0, 0, 200), tolerance, tolerance);
    append(cache, in, 200, 263);  // a chunk on a cache that holds tokens
    const PagedOutput second = attend(cache, in, 63);
    EXPECT_TENSORS_NEAR(second.out, whole.out[0].slice(0, 200, 263), tolerance, tolerance);
    for (int64_t t = 263; t < T; ++t) {
      append(cache, in, t, t + 1);
      const PagedOutput one = attend(cache, in);
      EXPECT_TENSORS_NEAR(one.out[0], whole.out[0][t], tolerance, tolerance);
      EXPECT_TENSORS_NEAR(one.lse.select(1, 0), whole.lse[0].select(1, t), 1e-4, 1e-5);
    }
  }
}

// More keys than one run of pages holds, heads of every width, groups that fill no tile.
TEST(LayerCache, DecodesHeadsOfAnyShape) {
  struct Heads {
    int64_t H, G, D;
  };
  const int64_t T = 1100;
  for (const auto& [heads, groups, dim] : {Heads{2, 2, 64},
                                           Heads{20, 1, 64},
                                           Heads{6, 2, 128},
                                           Heads{12, 1, 128},
                                           Heads{5, 1, 256},
                                           Heads{4, 2, 37},
                                           Heads{2, 2, 37},
                                           Heads{1, 1, 8}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const AttentionInputs in =
          random_inputs({.B = 1, .Tq = T, .Tk = T, .H = heads, .G = groups, .D = dim}, dtype, 3, 4);
      LayerCache cache(std::make_shared<PagePool>(PageLayout{.head_dim = dim,
                                                             .group = heads / groups,
                                                             .dtype = dtype,
                                                             .device = test::test_device()}),
                       groups);
      append(cache, in, 0, T);
      const AttentionOutput whole = attention(in.q, in.k, in.v, in.log_gate);
      const PagedOutput one = attend(cache, in);
      const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;  // two roundings of out
      EXPECT_TENSORS_NEAR(one.out[0], whole.out[0][T - 1], tolerance, tolerance);
      EXPECT_TENSORS_NEAR(one.lse.select(1, 0), whole.lse[0].select(1, T - 1), 1e-4, 1e-5);
    }
  }
}

TEST(LayerCache, MixesChunksAndDecodesOfManySequences) {
  auto pool = make_pool();
  const std::vector<int64_t> lengths = {70, 1, 129, 64};
  const std::vector<int64_t> queries = {1, 1, 40, 0};
  std::vector<AttentionInputs> inputs;
  std::vector<LayerCache> caches;
  std::vector<const LayerCache*> pointers;
  std::vector<int64_t> offsets = {0};
  std::vector<at::Tensor> rows, expected;
  for (size_t s = 0; s < lengths.size(); ++s) {
    inputs.push_back(random_inputs(
        {.B = 1, .Tq = lengths[s], .Tk = lengths[s], .H = H, .G = G, .D = D}, at::kFloat, s));
    caches.emplace_back(pool, G);
    append(caches[s], inputs[s], 0, lengths[s]);
    offsets.push_back(offsets.back() + queries[s]);
    rows.push_back(inputs[s].q[0].slice(0, lengths[s] - queries[s]));
    const AttentionInputs& in = inputs[s];
    expected.push_back(
        attention(in.q, in.k, in.v, in.log_gate).out[0].slice(0, lengths[s] - queries[s]));
  }
  for (const LayerCache& cache : caches) pointers.push_back(&cache);
  const PagedOutput result = paged_attention(at::cat(rows), offsets, pointers);
  EXPECT_TENSORS_NEAR(result.out, at::cat(expected), 1e-5, 1e-5);
}

// A model may have a window longer than any text.
TEST(LayerCache, AWindowOfAnyLengthIsNone) {
  const AttentionInputs in = sequence(100);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 100);
  for (const int64_t num_queries : {1, 40}) {
    const PagedOutput whole = attend(cache, in, num_queries);
    for (const int64_t window : {int64_t{100}, int64_t{1} << 33, int64_t{1} << 62}) {
      EXPECT_BITWISE_EQUAL(attend(cache, in, num_queries, {}, window).out, whole.out);
    }
  }
}

TEST(LayerCache, WindowHidesOlderKeys) {
  const AttentionInputs in = sequence(200);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 200);
  const at::Tensor first = test::first_keys({.B = 1, .Tq = 200, .Tk = 200}, {.window = 70});
  const AttentionOutput whole = attention(in.q, in.k, in.v, in.log_gate, first);
  EXPECT_TENSORS_NEAR(attend(cache, in, 1, {}, 70).out[0], whole.out[0][199], 1e-5, 1e-5);
  EXPECT_TENSORS_NEAR(attend(cache, in, 90, {}, 70).out, whole.out[0].slice(0, 110), 1e-5, 1e-5);
  // Pages before the window may go, and nothing changes.
  EXPECT_EQ(cache.evict_before(200 - 70, 200), 2 * G);
  EXPECT_TENSORS_NEAR(attend(cache, in, 1, {}, 70).out[0], whole.out[0][199], 1e-5, 1e-5);
}

TEST(LayerCache, ForkSharesPagesUntilOneWrites) {
  const AttentionInputs in = sequence(300);
  auto pool = make_pool();
  LayerCache trunk(pool, G);
  append(trunk, in, 0, 100);
  EXPECT_EQ(pool->pages_in_use(), 2 * G);
  {
    LayerCache branch = trunk.fork();
    EXPECT_EQ(pool->pages_in_use(), 2 * G);
    append(branch, in, 200, 201);  // another token than the trunk's next
    EXPECT_EQ(pool->pages_in_use(), 3 * G);
    append(trunk, in, 100, 101);
    EXPECT_EQ(branch.length(), 101);
  }
  EXPECT_EQ(pool->pages_in_use(), 2 * G);
  const AttentionOutput whole = attention(in.q.slice(1, 0, 101),
                                          in.k.slice(1, 0, 101),
                                          in.v.slice(1, 0, 101),
                                          in.log_gate.slice(1, 0, 101));
  EXPECT_TENSORS_NEAR(attend(trunk, in).out[0], whole.out[0][100], 1e-5, 1e-5);
}

TEST(LayerCache, TruncateThenAppendIsTheOtherContinuation) {
  const AttentionInputs in = sequence(200);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 90);
  append(cache, in, 150, 200);  // rejected draft over a page border
  cache.truncate(90);
  append(cache, in, 90, 130);
  LayerCache straight(make_pool(), G);
  append(straight, in, 0, 130);
  EXPECT_BITWISE_EQUAL(attend(cache, in).out, attend(straight, in).out);
  cache.truncate(0);
  EXPECT_EQ(cache.pool()->pages_in_use(), 0);
}

// What a cache without QK-norm can say of logits: those of the queries and keys that it has seen.
TEST(LayerCache, MeasuredBoundHoldsForWhatWasSeen) {
  const AttentionInputs in = sequence(200);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 200);
  EXPECT_EQ(cache.measured_bound(0.5)[0].item<float>(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(cache.evict(cache.measured_bound(0.5), -10, 200), 0);
  cache.note_queries(in.q[0].slice(0, 0, 50));
  cache.note_queries(in.q[0].slice(0, 50, 200));
  const at::Tensor keys = in.k[0].repeat_interleave(H / G, 1).to(at::kDouble);
  const at::Tensor logits = at::einsum("ihd,jhd->hij", {in.q[0].to(at::kDouble), keys}) * 0.5;
  const at::Tensor largest = logits.abs().amax({1, 2}).to(at::kFloat).cpu();
  const at::Tensor bound = cache.measured_bound(0.5).cpu();
  EXPECT_TRUE((bound >= largest).all().item<bool>());
  EXPECT_TRUE((bound <= 8 * largest).all().item<bool>());
  // It goes with the state.
  EXPECT_BITWISE_EQUAL(bound, cache.fork().measured_bound(0.5).cpu());
  EXPECT_BITWISE_EQUAL(
      bound, LayerCache::restore(make_pool(), cache.snapshot()).measured_bound(0.5).cpu());
  EXPECT_THROW(cache.note_queries(in.q[0].slice(2, 0, 3)), Error);
}

// What was evicted matters to no query from the horizon on; earlier ones would miss it.
TEST(LayerCache, QueriesBeforeTheHorizonAreRefused) {
  const AttentionInputs in = sequence(320, at::kFloat, -1);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 300);
  ASSERT_GT(cache.evict(test::on_test_device(at::full({H}, 2.0F)), -10, 300), 0);
  append(cache, in, 300, 320);
  EXPECT_EQ(attend(cache, in, 21).out.size(0), 21);
  try {
    attend(cache, in, 22);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "paged_attention: first query of sequence 0 = 298; expected at least 299: keys "
                 "were evicted that earlier queries see");
  }
}

TEST(LayerCache, SnapshotRestoresTheSameState) {
  const AttentionInputs in = sequence(400, at::kBFloat16, -1);
  LayerCache cache(make_pool(at::kBFloat16), G);
  append(cache, in, 0, 300);
  ASSERT_GT(cache.evict(test::on_test_device(at::full({H}, 2.0F)), -10, 300), 0);
  LayerCache restored = LayerCache::restore(make_pool(at::kBFloat16), cache.snapshot());
  EXPECT_EQ(restored.length(), 300);
  EXPECT_EQ(restored.pool()->pages_in_use(), cache.pool()->pages_in_use());
  EXPECT_EQ(restored.evicted_share(), cache.evicted_share());
  EXPECT_TRUE(std::isfinite(restored.evicted_share()));
  append(cache, in, 300, 301);
  append(restored, in, 300, 301);
  EXPECT_BITWISE_EQUAL(attend(cache, in).out, attend(restored, in).out);
  EXPECT_THROW(restored.truncate(299), Error);
}

TEST(LayerCache, EvictedPagesOfASnapshotTakeNoRoom) {
  const AttentionInputs in = sequence(10 * kPageTokens);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 10 * kPageTokens);
  CacheSnapshot snapshot = cache.snapshot();
  snapshot.evicted_pages.fill_(8);
  snapshot.horizon = 10 * kPageTokens;
  const auto restored = [&](int64_t max_pages) {
    return LayerCache::restore(make_pool(at::kFloat, max_pages), snapshot);
  };
  EXPECT_EQ(restored(2 * G).pool()->pages_in_use(), 2 * G);
  EXPECT_SAYS(test::error_of([&] { restored(1); }), "pages needed = 4");
}

TEST(StepTables, AWindowCanBeTurnedOff) {
  const AttentionInputs in = sequence(200);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 200);
  StepTables tables(cache.pool(),
                    {.num_layers = 1, .num_sequences = 1, .num_kv_heads = G, .num_pages = 4});
  const LayerCache* const caches[] = {&cache};
  const auto attended = [&](int64_t window) {
    tables.update(caches, window);
    return tables.attend(0, in.q[0].slice(0, 199));
  };
  const at::Tensor whole = attended(0);
  EXPECT_FALSE(attended(64).equal(whole));
  EXPECT_BITWISE_EQUAL(attended(0), whole);
}

// A model with broken weights must not write as if it had read nothing.
TEST(LayerCache, NaNOfAQueryOrKeyShows) {
  constexpr auto kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {1, 100, 3000}) {
      const AttentionInputs in = sequence(T, dtype);
      LayerCache cache(make_pool(dtype), G);
      append(cache, in, 0, T);
      AttentionInputs broken = in;
      broken.q = in.q.clone().fill_(kNaN);
      EXPECT_TRUE(attend(cache, broken).out.isnan().all().item<bool>()) << T;
      cache.pool()->keys()[cache.pages(0)[0]].fill_(kNaN);
      EXPECT_TRUE(attend(cache, in).out.select(1, 0).isnan().all().item<bool>()) << T;
      EXPECT_FALSE(attend(cache, in).out.select(1, H - 1).isnan().any().item<bool>()) << T;
    }
  }
}

// Keys after it, of the same call and of later ones, do not make a page with a broken key known.
TEST(LayerCache, PagesWithABrokenKeyAreNotPruned) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionInputs in = sequence(1000, dtype, 0);
    in.k[0][5].select(1, 0).fill_(std::numeric_limits<float>::quiet_NaN());
    for (const int64_t first : {6, 30, 1000}) {
      LayerCache cache(make_pool(dtype), G);
      append(cache, in, 0, first);
      if (first < 1000) append(cache, in, first, 1000);
      for (int64_t g = 0; g < G; ++g) {
        EXPECT_EQ(cache.pool()->norms()[cache.pages(g)[0]].item<float>(),
                  std::numeric_limits<float>::infinity());
      }
      const PagedOutput seen = attend(cache, in, 1, {}, 0, {0, -10, PruningRule::kTight});
      EXPECT_EQ(seen.start.max().item<int32_t>(), 0);
    }
  }
}

TEST(LayerCache, EvictionLeavesNothingForTheNextOne) {
  const AttentionInputs in = sequence(10000, at::kFloat, /*gate_mean=*/2);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 10000);
  const at::Tensor bound = at::full({H}, 2.0F);
  EXPECT_GT(cache.evict(bound, -10, 10000), G * 100);
  EXPECT_EQ(cache.evict(bound, -10, 10000), 0);
}

// Whose pages, bounds and horizons differ; one whose horizon is 0 is left alone.
TEST(LayerCache, SeveralAreEvictedAsEachAlone) {
  const AttentionInputs in = sequence(900, at::kFloat, /*gate_mean=*/1);
  const auto pool = make_pool(), other_pool = make_pool();
  const std::vector<int64_t> lengths = {900, 64, 500, 700}, horizons = {900, 60, 0, 650};
  std::vector<LayerCache> together, alone;
  std::vector<Eviction> evictions;
  int64_t expected = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    append(together.emplace_back(pool, G), in, 0, lengths[i]);
    append(alone.emplace_back(other_pool, G), in, 0, lengths[i]);
    // The last one has evicted before.
    if (i == 3) {
      const at::Tensor ones = at::ones({H});
      EXPECT_EQ(together[i].evict(ones, -8, 300), alone[i].evict(ones, -8, 300));
    }
    const at::Tensor bound = at::full({H}, 2.0F + static_cast<float>(i));
    expected += alone[i].evict(test::on_test_device(bound), -10, horizons[i]);
    evictions.push_back({.cache = nullptr, .logit_bound = bound, .horizon = horizons[i]});
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) evictions[i].cache = &together[i];
  ASSERT_GT(expected, 10);
  EXPECT_EQ(LayerCache::evict(evictions, -10), expected);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(together[i].evicted_masses(), alone[i].evicted_masses()) << i;
    EXPECT_EQ(together[i].evicted_norms(), alone[i].evicted_norms()) << i;
    EXPECT_EQ(together[i].evicted_share(), alone[i].evicted_share()) << i;
    EXPECT_EQ(together[i].horizon(), alone[i].horizon()) << i;
    for (int64_t g = 0; g < G; ++g) EXPECT_EQ(together[i].begin(g), alone[i].begin(g)) << i;
  }
  EXPECT_EQ(pool->pages_in_use(), other_pool->pages_in_use());
}

// Where a head begins to read is found before the work is divided, by who attends to the few pages
// that eviction left, or not at all where nothing can be dropped: the results are the same.
TEST(LayerCache, EvictionDoesNotChangeWhatIsPruned) {
  AttentionInputs in = sequence(3000, at::kFloat, /*gate_mean=*/2);
  in.log_gate = in.log_gate.detach().clone();
  in.log_gate.slice(2, H / G).fill_(-1e-5);  // the second group forgets nothing
  const at::Tensor bound = test::on_test_device(at::full({H}, 12.0F, at::kFloat));
  for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
    LayerCache whole(make_pool(), G), evicted(make_pool(), G);
    append(whole, in, 0, 3000);
    append(evicted, in, 0, 3000);
    ASSERT_GT(evicted.evict(bound, -10, 3000), 30);
    ASSERT_EQ(evicted.begin(1), 0);
    const AttentionOptions options = {0, -10, rule};
    const PagedOutput of_whole = attend(whole, in, 1, bound, 0, options);
    const PagedOutput of_evicted = attend(evicted, in, 1, bound, 0, options);
    EXPECT_GT(of_whole.start.slice(0, 0, H / G).min().item<int32_t>(), 2000);
    EXPECT_EQ(of_whole.start.slice(0, H / G).max().item<int32_t>(), 0);
    EXPECT_BITWISE_EQUAL(of_whole.start, of_evicted.start);
    EXPECT_BITWISE_EQUAL(of_whole.out, of_evicted.out);
    EXPECT_BITWISE_EQUAL(of_whole.lse, of_evicted.lse);
  }
}

TEST(LayerCache, SameBitsForAnyNumberOfThreads) {
  AttentionInputs in = sequence(3000, at::kFloat, /*gate_mean=*/2);
  in.log_gate = in.log_gate.detach().clone();
  in.log_gate.slice(2, H / G).fill_(-1e-5);  // the second group forgets nothing
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 3000);
  const at::Tensor bound = test::on_test_device(at::full({H}, 12.0F, at::kFloat));
  const int before = at::get_num_threads();
  for (const double log_tolerance : {0.0, -10.0}) {
    const AttentionOptions options = {0, log_tolerance, PruningRule::kTight};
    at::set_num_threads(1);
    const PagedOutput one = attend(cache, in, 1, bound, 0, options);
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      const PagedOutput many = attend(cache, in, 1, bound, 0, options);
      EXPECT_BITWISE_EQUAL(one.start, many.start);
      EXPECT_BITWISE_EQUAL(one.out, many.out);
      EXPECT_BITWISE_EQUAL(one.lse, many.lse);
    }
  }
  at::set_num_threads(before);
}

TEST(LayerCache, RejectsWhatItCannotHold) {
  const AttentionInputs in = sequence(200);
  LayerCache cache(make_pool(at::kFloat, 4), G);
  append(cache, in, 0, 100);
  EXPECT_THROW(append(cache, in, 100, 200), Error);  // pool is full
  EXPECT_EQ(cache.length(), 100);                    // and the cache as it was
  EXPECT_THROW(cache.append(in.k[0], in.v[0].slice(0, 1), {}), Error);
  EXPECT_THROW(cache.append(in.k[0].to(at::kBFloat16), in.v[0].to(at::kBFloat16), {}), Error);
  const at::Tensor nowhere = in.k[0].slice(0, 0, 1).to(at::kMeta);
  EXPECT_THROW(cache.append(nowhere, nowhere, {}), Error);  // of another device than the pages
  EXPECT_THROW(cache.truncate(101), Error);
  EXPECT_THROW(cache.evict(at::zeros({H}), 0, 100), Error);
  EXPECT_THROW(cache.evict(at::zeros({H}), -10, 101), Error);
  EXPECT_THROW(attend(cache, in, 101), Error);
  EXPECT_THROW(attend(cache, in, 1, {}, 0, {.log_pruning_tolerance = 5}), Error);
  EXPECT_THROW(attend(cache, in, 1, {}, 0, {.scale = -1}), Error);
}

TEST(LayerCache, RejectsSnapshotsThatNoCacheWrote) {
  const AttentionInputs in = sequence(200);
  LayerCache cache(make_pool(), G);
  append(cache, in, 0, 200);
  const auto restored = [&](const std::function<void(CacheSnapshot&)>& change) {
    CacheSnapshot snapshot = cache.snapshot();
    change(snapshot);
    return LayerCache::restore(make_pool(), snapshot);
  };
  restored([](CacheSnapshot&) {});
  for (const int64_t pages : {int64_t{-1}, int64_t{4}, int64_t{1} << 58}) {
    EXPECT_THROW(restored([&](CacheSnapshot& s) { s.evicted_pages.fill_(pages); }), Error) << pages;
  }
  EXPECT_THROW(restored([](CacheSnapshot& s) { s.horizon = 201; }), Error);
  EXPECT_THROW(restored([](CacheSnapshot& s) { s.v = s.v.slice(0, 1); }), Error);
  EXPECT_THROW(restored([](CacheSnapshot& s) { s.query_norms = at::zeros({1}); }), Error);
}

}  // namespace
}  // namespace reynard::attention
