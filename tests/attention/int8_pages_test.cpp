// Pages that keep keys and values as int8 (CPU): what they keep, and that all of the cache's paths
// read exactly that.

#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"
#include "reynard/attention/pruning.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/tensor_memory.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace reynard::attention {
namespace {

using test::AttentionInputs;

constexpr int64_t kInt8Heads = 4, kInt8Groups = 2, kInt8Dim = 64;

std::shared_ptr<PagePool> pool_of(at::ScalarType dtype, bool int8) {
  return std::make_shared<PagePool>(PageLayout{
      .head_dim = kInt8Dim, .group = kInt8Heads / kInt8Groups, .dtype = dtype, .int8 = int8});
}

// On the CPU, where such pages lie, whatever device the suite runs on.
AttentionInputs on_cpu(AttentionInputs in) {
  for (at::Tensor* t : {&in.q, &in.k, &in.v, &in.log_gate}) *t = t->cpu();
  return in;
}

AttentionInputs text(int64_t T, at::ScalarType dtype, double gate_mean = 2) {
  return on_cpu(test::random_inputs(
      {.B = 1, .Tq = T, .Tk = T, .H = kInt8Heads, .G = kInt8Groups, .D = kInt8Dim},
      dtype,
      7,
      gate_mean));
}

void read(LayerCache& cache, const AttentionInputs& in, int64_t begin, int64_t end) {
  cache.append(in.k[0].slice(0, begin, end),
               in.v[0].slice(0, begin, end),
               in.log_gate[0].slice(0, begin, end));
}

PagedOutput answer(const LayerCache& cache,
                   const AttentionInputs& in,
                   int64_t num_queries = 1,
                   const at::Tensor& bound = {},
                   const AttentionOptions& options = {}) {
  const LayerCache* caches[] = {&cache};
  const int64_t offsets[] = {0, num_queries};
  const int64_t end = cache.length();
  return paged_attention(
      in.q[0].slice(0, end - num_queries, end), offsets, caches, bound, 0, options);
}

// The same text in f32 pages, with the rows that an int8 cache keeps.
AttentionInputs as_kept(const AttentionInputs& in, const LayerCache& cache) {
  const CacheSnapshot kept = cache.snapshot();
  AttentionInputs result = in;
  result.q = in.q.to(at::kFloat);
  result.k = kept.k.unsqueeze(0);
  result.v = kept.v.unsqueeze(0);
  return result;
}

void expect_rounded(const at::Tensor& kept, const at::Tensor& given) {
  const at::Tensor wide = given.to(at::kFloat);
  const at::Tensor half_step = wide.abs().amax(-1, /*keepdim=*/true) / 254;
  EXPECT_TRUE(((kept - wide).abs() <= half_step * 1.0001).all().item<bool>());
}

TEST(Int8Pages, KeepEachValueToHalfAStep) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const AttentionInputs in = text(200, dtype);
    LayerCache cache(pool_of(dtype, true), kInt8Groups);
    read(cache, in, 0, 130);
    read(cache, in, 130, 200);
    const CacheSnapshot kept = cache.snapshot();
    expect_rounded(kept.k, in.k[0]);
    expect_rounded(kept.v, in.v[0]);
  }
}

TEST(Int8Pages, RoundTiesToEven) {
  const std::vector<float> given = {127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 126.5, 0.75, -0.25};
  const std::vector<float> kept = {127, 0, 2, 2, 0, -2, -126, 126, 1, 0};
  AttentionInputs in = text(1, at::kFloat);
  for (int64_t d = 0; d < kInt8Dim; ++d) in.k[0][0].select(1, d).fill_(given[d % given.size()]);
  LayerCache cache(pool_of(at::kFloat, true), kInt8Groups);
  read(cache, in, 0, 1);
  const at::Tensor keys = cache.snapshot().k;
  for (int64_t d = 0; d < kInt8Dim; ++d) {
    EXPECT_EQ(keys[0][0][d].item<float>(), kept[d % kept.size()]) << given[d % given.size()];
  }
}

TEST(Int8Pages, AreAttendedToAsTheRowsThatTheyKeep) {
  const int64_t T = 1300;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    const AttentionInputs in = text(T, dtype, /*gate_mean=*/6);  // all pages count
    LayerCache cache(pool_of(dtype, true), kInt8Groups);
    read(cache, in, 0, T);
    const AttentionInputs kept = as_kept(in, cache);
    LayerCache wide(pool_of(at::kFloat, false), kInt8Groups);
    read(wide, kept, 0, T);
    for (const int64_t queries : {1, 70}) {  // decoded, and a chunk of a prompt
      const PagedOutput ours = answer(cache, in, queries), theirs = answer(wide, kept, queries);
      EXPECT_TENSORS_NEAR(ours.out.to(at::kFloat), theirs.out, tolerance, tolerance);
      EXPECT_TENSORS_NEAR(ours.lse, theirs.lse, tolerance, tolerance);
    }
  }
}

TEST(Int8Pages, ForksTruncationsAndSnapshotsAreTheSameText) {
  const AttentionInputs in = text(300, at::kBFloat16);
  LayerCache straight(pool_of(at::kBFloat16, true), kInt8Groups);
  read(straight, in, 0, 300);
  const PagedOutput expected = answer(straight, in);
  LayerCache cache(pool_of(at::kBFloat16, true), kInt8Groups);
  read(cache, in, 0, 250);
  LayerCache fork = cache.fork();
  read(fork, in, 250, 300);
  EXPECT_BITWISE_EQUAL(answer(fork, in).out, expected.out);
  read(cache, in, 200, 230);  // other tokens, forgotten again
  cache.truncate(250);
  read(cache, in, 250, 300);
  EXPECT_BITWISE_EQUAL(answer(cache, in).out, expected.out);
  const LayerCache restored =
      LayerCache::restore(pool_of(at::kBFloat16, true), straight.snapshot());
  EXPECT_BITWISE_EQUAL(answer(restored, in).out, expected.out);
  EXPECT_BITWISE_EQUAL(answer(restored, in).lse, expected.lse);
}

TEST(Int8Pages, ArePrunedByTheNormsOfWhatTheyKeep) {
  const AttentionInputs in = text(1000, at::kFloat, /*gate_mean=*/3);
  LayerCache cache(pool_of(at::kFloat, true), kInt8Groups);
  read(cache, in, 0, 1000);
  const AttentionOptions pruned = {0, -10, PruningRule::kTight};
  const PagedOutput measured = answer(cache, in, 1, {}, pruned);
  EXPECT_TENSORS_NEAR(measured.out, answer(cache, in).out, 1e-3, 1e-3);

  const int64_t skipped = measured.start.min().item<int32_t>() / kPageTokens;
  ASSERT_GT(skipped, 5);
  for (int64_t g = 0; g < kInt8Groups; ++g) {
    for (int64_t n = 0; n < std::min<int64_t>(skipped, 1000 / kPageTokens - 1); ++n) {
      cache.pool()->scales()[cache.pages(g)[n]].fill_(std::numeric_limits<float>::quiet_NaN());
    }
  }
  EXPECT_BITWISE_EQUAL(answer(cache, in, 1, {}, pruned).out, measured.out);
}

// A key that one dimension dominates, the others just above half of its step: rounding doubles
// them, and the query weighs them most. So U times 1 + sqrt(D) / 254 is no bound.
TEST(Int8Pages, KeysStayWithinTheirBoundOfWeights) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor wq = at::ones({kInt8Dim}), wk = at::full({kInt8Dim}, 0.0245F);
    wq[0] = 0.0245F;
    wk[0] = 1;
    at::Tensor keys = at::rand({200, 1, kInt8Dim}) * 0.1 + 0.8;
    keys.select(2, 0).fill_(4.87);
    keys = (wk * keys * (std::sqrt(kInt8Dim) / keys.norm(2, -1, /*keepdim=*/true))).to(dtype);
    LayerCache cache(
        std::make_shared<PagePool>(PageLayout{.head_dim = kInt8Dim, .dtype = dtype, .int8 = true}),
        1);
    cache.append(keys, keys);
    // The largest product of a normalised query with each key: sqrt(D) |wq k|, scale 1 / sqrt(D).
    const at::Tensor kept = cache.gather(0).k.to(at::kDouble);
    const double largest = (kept * wq).norm(2, -1).max().item<double>();
    const double given = qk_norm_bound(wq, wk, 1, 0, false, dtype).item<double>();
    const double bound = qk_norm_bound_of_int8_keys(wq, wk, 1, 0, false, dtype).item<double>();
    EXPECT_GT(largest, given * (1 + std::sqrt(kInt8Dim) / 254));
    EXPECT_LE(largest, bound);
    // Equal weights: the factor.
    const at::Tensor same = at::ones({kInt8Dim});
    EXPECT_NEAR(qk_norm_bound_of_int8_keys(same, same, 1, 0, true, at::kFloat).item<double>(),
                std::sqrt(kInt8Dim) * (1 + std::sqrt(kInt8Dim) / 254),
                1e-3);
  }
}

TEST(Int8Pages, RowsOfZerosStayAndWhatIsNotFiniteShows) {
  AttentionInputs in = text(100, at::kFloat);
  in.k[0][3].zero_();
  in.v[0][4].zero_();
  LayerCache cache(pool_of(at::kFloat, true), kInt8Groups);
  read(cache, in, 0, 100);
  EXPECT_EQ(cache.snapshot().k[3].abs().max().item<float>(), 0);
  EXPECT_EQ(cache.snapshot().v[4].abs().max().item<float>(), 0);
  EXPECT_TRUE(answer(cache, in).out.isfinite().all().item<bool>());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const bool is_key : {true, false}) {  // one value of one row, in the middle of a page
      AttentionInputs broken = text(100, at::kFloat);
      (is_key ? broken.k : broken.v)[0][80].select(1, 0).fill_(bad);
      LayerCache other(pool_of(at::kFloat, true), kInt8Groups);
      read(other, broken, 0, 100);
      EXPECT_TRUE(answer(other, broken).out.isnan().all().item<bool>());
    }
  }
}

TEST(Int8Pages, WithABrokenKeyAreNotPruned) {
  const AttentionOptions pruned = {0, -10, PruningRule::kTight};
  for (const bool int8 : {true, false}) {
    AttentionInputs in = text(1000, at::kFloat, /*gate_mean=*/0);
    in.k[0][5].select(1, 0).fill_(std::numeric_limits<float>::quiet_NaN());
    LayerCache cache(pool_of(at::kFloat, int8), kInt8Groups);
    read(cache, in, 0, 1000);
    EXPECT_EQ(answer(cache, in, 1, {}, pruned).start.max().item<int32_t>(), 0);
  }
}

// A chunk of queries reads copies of so many heads at once that these stay small: rows of int8 are
// copied three times.
TEST(Int8Pages, AreWidenedForAFewHeadsAtOnce) {
  constexpr int64_t kHeads = 8, kDim = 128, kTokens = 8192, kQueries = 64;
  const AttentionInputs in = on_cpu(test::random_inputs(
      {.B = 1, .Tq = kTokens, .Tk = kTokens, .H = kHeads, .G = kHeads, .D = kDim}, at::kBFloat16));
  LayerCache cache(std::make_shared<PagePool>(
                       PageLayout{.head_dim = kDim, .dtype = at::kBFloat16, .int8 = true}),
                   kHeads);
  read(cache, in, 0, kTokens);
  const int64_t bytes = test::peak_tensor_bytes([&] { answer(cache, in, kQueries); });
  EXPECT_LT(bytes, int64_t{48} << 20);
}

TEST(Int8Pages, AreForTheCpu) {
  const PageLayout on_gpu = {
      .head_dim = kInt8Dim, .device = at::Device(at::kCUDA, 0), .int8 = true};
  EXPECT_THROW(PagePool{on_gpu}, Error);
}

}  // namespace
}  // namespace reynard::attention
