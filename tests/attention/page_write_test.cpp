// Tokens of several sequences written by one call, against sequences that are appended to alone.

#include "reynard/attention/bias.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/part_kernels.h"
#include "reynard/attention/pruning_limits.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/norm.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

namespace reynard::attention {
namespace {

constexpr int64_t kHeads = 4, kKeyHeads = 2, kHeadDim = 64;

std::shared_ptr<PagePool> grouped_pool() {
  return std::make_shared<PagePool>(
      PageLayout{.head_dim = kHeadDim, .group = kHeads / kKeyHeads, .device = test::test_device()});
}

void append_part(LayerCache& cache, const test::AttentionInputs& in, int64_t begin, int64_t end) {
  cache.append(in.k[0].slice(0, begin, end),
               in.v[0].slice(0, begin, end),
               in.log_gate[0].slice(0, begin, end));
}

// A value of each page of a cache, in order.
at::Tensor of_pages(const LayerCache& cache, const at::Tensor& values) {
  std::vector<at::Tensor> rows;
  for (int64_t g = 0; g < kKeyHeads; ++g) {
    for (const int32_t page : cache.pages(g)) rows.push_back(values.narrow(0, page, 1));
  }
  return at::cat(rows);
}

// One token, many, and so many that the pages between are whole; from an empty page, the last slot
// of one and a new sequence. One that has no length leaves pages alone, its table's too.
TEST(PageWrite, TakesSeveralSequences) {
  for (const int64_t T : {1, 5, 150}) {
    const std::vector<int64_t> before = {0, 63, 64, 130};
    const auto pool = grouped_pool(), expected_pool = grouped_pool();
    std::vector<LayerCache> caches, expected;
    std::vector<at::Tensor> k, v, log_gate;
    int64_t N = 0;
    for (std::size_t s = 0; s < before.size(); ++s) {
      const int64_t length = before[s] + T;
      const test::AttentionInputs in = test::random_inputs(
          {.B = 1, .Tq = length, .Tk = length, .H = kHeads, .G = kKeyHeads, .D = kHeadDim},
          at::kFloat,
          s,
          2.0);
      append_part(caches.emplace_back(pool, kKeyHeads), in, 0, before[s]);
      append_part(expected.emplace_back(expected_pool, kKeyHeads), in, 0, before[s]);
      append_part(expected.back(), in, before[s], length);
      caches.back().extend(T);
      k.push_back(in.k[0].slice(0, before[s], length));
      v.push_back(in.v[0].slice(0, before[s], length));
      log_gate.push_back(in.log_gate[0].slice(0, before[s], length));
      N = std::max(N, std::ssize(caches.back().pages(0)));
    }
    for (auto* rows : {&k, &v, &log_gate}) rows->push_back(rows->front());
    const auto S = static_cast<int64_t>(before.size());
    const at::Tensor table = at::full({S + 1, kKeyHeads, N + 1}, -1, at::kInt);
    const at::Tensor lengths = at::full({S + 1}, 0, at::kLong);
    for (int64_t s = 0; s < S; ++s) {
      lengths[s] = caches[s].length();
      for (int64_t g = 0; g < kKeyHeads; ++g) {
        std::ranges::copy(caches[s].pages(g), table[s][g].mutable_data_ptr<int32_t>());
      }
    }
    table[S].copy_(table[S - 1]);
    part_kernels(pool->keys())
        .write_pages({.keys = pool->keys(),
                      .values = pool->values(),
                      .sums = pool->sums(),
                      .norms = pool->norms(),
                      .masses = pool->masses(),
                      .scales = pool->scales(),
                      .page_table = test::on_test_device(table),
                      .lengths = test::on_test_device(lengths),
                      .k = at::cat(k),
                      .v = at::cat(v),
                      .log_gate = at::cat(log_gate),
                      .token_sums = {}});
    for (int64_t s = 0; s < S; ++s) {
      for (int64_t g = 0; g < kKeyHeads; ++g) {
        const LayerCache::Gathered actual = caches[s].gather(g), wanted = expected[s].gather(g);
        EXPECT_BITWISE_EQUAL(actual.k, wanted.k) << s << ", " << T;
        EXPECT_BITWISE_EQUAL(actual.v, wanted.v) << s << ", " << T;
        EXPECT_BITWISE_EQUAL(actual.sums, wanted.sums) << s << ", " << T;
      }
      EXPECT_BITWISE_EQUAL(of_pages(caches[s], pool->norms()),
                           of_pages(expected[s], expected_pool->norms()));
      EXPECT_BITWISE_EQUAL(of_pages(caches[s], pool->masses()),
                           of_pages(expected[s], expected_pool->masses()));
    }
  }
}

// Of the longest key that it holds, whatever the head dimension: with the margin that a GPU adds at
// most, and what f32 rounds.
TEST(PageWrite, NormsBoundTheKeysOfTheirPages) {
  for (const int64_t D : {1, 7, 37, 64, 100}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("D{} {}", D, c10::toString(dtype)));
      const test::AttentionInputs in = test::random_inputs(
          {.B = 1, .Tq = 150, .Tk = 150, .H = kHeads, .G = kKeyHeads, .D = D}, dtype);
      const auto pool = std::make_shared<PagePool>(PageLayout{.head_dim = D,
                                                              .group = kHeads / kKeyHeads,
                                                              .dtype = dtype,
                                                              .device = test::test_device()});
      LayerCache cache(pool, kKeyHeads);
      append_part(cache, in, 0, 150);
      for (int64_t g = 0; g < kKeyHeads; ++g) {
        const at::Tensor norms = in.k[0].select(1, g).to(at::kDouble).norm(2, -1).cpu();
        for (int64_t n = 0; n < 3; ++n) {
          const at::Tensor of_page = norms.slice(0, n * kPageTokens, (n + 1) * kPageTokens);
          const double longest = of_page.max().item<double>();
          const double kept = pool->norms()[cache.pages(g)[n]].item<double>();
          EXPECT_GE(kept, longest);
          EXPECT_LE(kept, longest * kNormMargin * (1 + 1e-6));
        }
      }
    }
  }
}

// Shut gates are clamped as those of a whole sequence are: sums stay finite.
TEST(PageWrite, SumsAreThoseOfTheWholeSequence) {
  test::AttentionInputs in = test::random_inputs(
      {.B = 1, .Tq = 150, .Tk = 150, .H = kHeads, .G = kKeyHeads, .D = kHeadDim});
  in.log_gate.select(1, 60).fill_(-std::numeric_limits<float>::infinity());
  in.log_gate.select(1, 100).fill_(-1e30);
  LayerCache cache(grouped_pool(), kKeyHeads);
  append_part(cache, in, 0, 100);
  append_part(cache, in, 100, 150);
  EXPECT_TENSORS_NEAR(
      cache.gather_sums(0, kKeyHeads).cpu(), gate_sums(in.log_gate.cpu())[0], 1e-9, 0);
}

}  // namespace
}  // namespace reynard::attention
