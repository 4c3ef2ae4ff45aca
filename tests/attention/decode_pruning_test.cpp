// Where decode begins to read, against the rules applied page by page in f64: whatever the length,
// behind a window, and beside what was evicted.

#include "reynard/attention/bias.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"
#include "reynard/attention/log_mass.h"
#include "reynard/attention/pruning_limits.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mv.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace reynard::attention {
namespace {

// A text in pages whose heads forget at rates of their own. The last 65 keys, the nearest two pages
// of a text that ends in the first slot of one, score as low as the bound allows.
struct ForgottenText {
  static constexpr int64_t H = 8, G = 4, D = 64;
  static constexpr double kBound = 4;

  test::AttentionInputs in;
  LayerCache cache;
  at::Tensor bound = test::on_test_device(at::full({H}, kBound, at::kFloat));

  explicit ForgottenText(int64_t T)
      : in(test::random_inputs({.B = 1, .Tq = T, .Tk = T, .H = H, .G = G, .D = D})),
        cache(std::make_shared<PagePool>(
                  PageLayout{.head_dim = D, .group = H / G, .device = test::test_device()}),
              G) {
    for (int64_t h = 0; h < H; ++h) {
      in.log_gate.select(2, h).fill_(-0.01 - 0.002 * static_cast<double>(h));
      in.q[0][T - 1][h].copy_(in.q[0][T - 1][h / 2 * 2]);  // one direction for each group
    }
    for (int64_t g = 0; g < G; ++g) set_logits(g, std::max<int64_t>(T - 65, 0), T, -3.5);
  }
  // Of the last query and keys [begin, end).
  void set_logits(int64_t g, int64_t begin, int64_t end, double logit) {
    const at::Tensor q = in.q[0][in.q.size(1) - 1][g * 2];
    const at::Tensor key = q * (logit * std::sqrt(D) / q.square().sum());
    in.k[0].slice(0, begin, end).select(1, g).copy_(key);
  }
  void write() { cache.append(in.k[0], in.v[0], in.log_gate[0]); }

  // Of the last query.
  PagedOutput answer(int64_t window, const AttentionOptions& options) const {
    const LayerCache* caches[] = {&cache};
    const int64_t offsets[] = {0, 1};
    const at::Tensor q = in.q[0].slice(0, cache.length() - 1);
    return paged_attention(q, offsets, caches, bound, window, options);
  }
  // (H) i32
  at::Tensor starts(int64_t window, const AttentionOptions& options) const {
    return answer(window, options).start.flatten().cpu();
  }

  // What the rule says where its limit is raised by `slack`.
  int64_t start_of_rule(int64_t h,
                        int64_t window,
                        const AttentionOptions& options,
                        double slack) const {
    const int64_t T = cache.length(), g = h / (H / G), num_pages = pages_for(T);
    const int64_t first_key = window > 0 ? std::max<int64_t>(T - window, 0) : 0;
    const at::Tensor c = gate_sums(in.log_gate)[0][h].cpu(), bias = c[T - 1] - c;
    const at::Tensor keys = in.k[0].select(1, g).to(at::kDouble).cpu();
    const at::Tensor q = in.q[0][T - 1][h].to(at::kDouble).cpu();
    const at::Tensor logits = at::mv(keys, q) / std::sqrt(D) + bias;
    const double evicted = kBound + c[T - 1].item<double>() + cache.evicted_masses()[h];
    int64_t n = std::max(first_key, cache.begin(g)) / kPageTokens;
    if (options.rule == PruningRule::kTight) {
      const int64_t nearest = std::max(first_key, (num_pages - 2) * kPageTokens);
      const double floor = at::logsumexp(logits.slice(0, nearest), {0}).item<double>();
      const double limit = options.log_pruning_tolerance - kFloorMargin + floor + slack;
      double dropped = evicted;
      for (; n < num_pages - 1; ++n) {
        const at::Tensor page = bias.slice(0, n * kPageTokens, (n + 1) * kPageTokens);
        dropped = log_add_exp(dropped, kBound + at::logsumexp(page, {0}).item<double>());
        if (dropped > limit) break;
      }
    } else {
      const double left = std::exp(options.log_pruning_tolerance) - std::exp(evicted + kBound);
      const double threshold =
          std::log(left) - 2 * kBound - std::log(static_cast<double>(T - first_key)) + slack;
      const auto last = [&](int64_t page) { return bias[(page + 1) * kPageTokens - 1]; };
      while (n < num_pages - 1 && last(n).item<double>() < threshold) ++n;
    }
    return std::max(n * kPageTokens, first_key);
  }

  // Returns the sum of the starts.
  int64_t expect_starts_of_rule(int64_t window, const AttentionOptions& options) const {
    constexpr double kRounding = 5e-3;
    const at::Tensor actual = starts(window, options);
    for (int64_t h = 0; h < H; ++h) {
      const int64_t start = actual[h].item<int32_t>();
      EXPECT_GE(start, start_of_rule(h, window, options, -kRounding)) << "head " << h;
      EXPECT_LE(start, start_of_rule(h, window, options, kRounding)) << "head " << h;
    }
    return actual.sum().item<int64_t>();
  }
};

TEST(DecodePruning, StartsAreThoseOfTheRulesPageByPage) {
  for (const int64_t T : {1537, 2700, 4161}) {
    ForgottenText text(T);
    text.write();
    for (const bool evicts : {false, true}) {
      if (evicts) {
        ASSERT_GT(text.cache.evict(text.bound, -5, T), 0);
      }
      for (const int64_t window : {0, 1300}) {
        for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
          SCOPED_TRACE(fmt::format("T {}, window {}, {}", T, window, config::name_of(rule)));
          // The published rule has nothing left of a tolerance that eviction has used up.
          EXPECT_GT(text.expect_starts_of_rule(window, {0, evicts ? -4.5 : -5.0, rule}), 0);
        }
      }
    }
  }
}

// A head that forgets within a page, beside one of its group that remembers all: each reads from
// where it begins, in whichever order they come. The window's pages lie in two runs of 32.
TEST(DecodePruning, HeadsOfAGroupReadFromTheirOwnStarts) {
  constexpr int64_t kLength = 2700, kWindow = 1300;
  for (const int64_t forgetful : {0, 1}) {
    ForgottenText text(kLength);
    for (int64_t h = 0; h < ForgottenText::H; ++h) {
      text.in.log_gate.select(2, h).fill_(h % 2 == forgetful ? -1.0 : -1e-4);
    }
    text.write();
    for (const int64_t window : {int64_t{0}, kWindow}) {
      SCOPED_TRACE(fmt::format("{} forgets, window {}", forgetful, window));
      const PagedOutput pruned = text.answer(window, {0, -10, PruningRule::kTight});
      const PagedOutput whole = text.answer(window, {});
      const at::Tensor start = pruned.start.flatten().cpu();
      for (int64_t h = 0; h < ForgottenText::H; ++h) {
        const bool forgets = h % 2 == forgetful;
        EXPECT_EQ(start[h].item<int32_t>() > kLength - kWindow, forgets) << h;
      }
      // Rounding, and the tolerance, by which an output moves from one value to another.
      const double moved = 2 * text.in.v.abs().max().item<double>() * std::exp(-10);
      EXPECT_TENSORS_NEAR(pruned.out, whole.out, moved + 1e-5, 0);
      EXPECT_TENSORS_NEAR(pruned.lse, whole.lse, std::exp(-10) + 1e-5, 0);
    }
  }
}

// 19 pages of equal weight before the query's own, of which eviction took the first 10: what these
// weighed is no longer there to drop. Without them both rules would drop all 19.
TEST(DecodePruning, WhatWasEvictedSharesTheTolerance) {
  constexpr int64_t kLength = 1281, kPlateau = 1216, kEvicted = 640;
  constexpr double kTolerance = -5, kBound = ForgottenText::kBound;
  const double weight = kTolerance - 2 * kBound - std::log(kEvicted) - 0.01;
  ForgottenText text(kLength);
  text.in.log_gate.zero_();
  text.in.log_gate.select(1, kPlateau).fill_(weight);
  text.write();
  ASSERT_EQ(text.cache.evict(text.bound, kTolerance, kLength), text.G * kEvicted / kPageTokens);
  // The tolerance is 2.5 times what was evicted; keys as heavy as these, twice as many, are more
  // than the rest.
  const AttentionOptions published = {0, kTolerance + std::log(2.5), PruningRule::kPublished};
  EXPECT_EQ(text.expect_starts_of_rule(0, published), text.H * kEvicted);
  // As 900 keys of the plateau weigh beside the 65 nearest ones of logit -3.5.
  const double of_900 = std::log(900.0) + weight + kBound, floor = std::log(65.0) - 3.5;
  const AttentionOptions tight = {0, of_900 - floor + kFloorMargin, PruningRule::kTight};
  EXPECT_EQ(text.expect_starts_of_rule(0, tight), text.H * (kEvicted + 4 * kPageTokens));
}

// A chunk of several queries is pruned by what eviction left of the tolerance.
TEST(DecodePruning, ChunksArePrunedBehindWhatWasEvicted) {
  constexpr int64_t kLength = 2700;
  ForgottenText text(kLength);
  text.write();
  ASSERT_GT(text.cache.evict(text.bound, -9, kLength - 2), 0);
  const LayerCache* caches[] = {&text.cache};
  const int64_t offsets[] = {0, 2};
  const at::Tensor q = text.in.q[0].slice(0, kLength - 2);
  for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
    const at::Tensor start =
        paged_attention(q, offsets, caches, text.bound, 0, {0, -0.5, rule}).start.cpu();
    for (int64_t h = 0; h < text.H; ++h) {
      EXPECT_GT(start[h][0].item<int32_t>(), text.cache.begin(h / 2)) << config::name_of(rule);
    }
  }
}

// A key before the window says nothing of what the query sees, though it lies in the nearest pages.
TEST(DecodePruning, HiddenKeysBoundNothing) {
  constexpr int64_t kLength = 641, kWindow = 61;
  ForgottenText text(kLength);
  for (int64_t g = 0; g < ForgottenText::G; ++g) text.set_logits(g, 577, 578, 60);
  text.write();
  const AttentionOptions options = {0, -10, PruningRule::kTight};
  EXPECT_EQ(text.expect_starts_of_rule(kWindow, options), ForgottenText::H * (kLength - kWindow));
}

}  // namespace
}  // namespace reynard::attention
