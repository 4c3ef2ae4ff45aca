// The propositions about forgetting attention (FoX, Lin et al. 2025) as properties over random
// sizes, gates and data: open gates are softmax, constant gates are ALiBi, bounded logits give a
// recency bound (and unbounded ones do not), and what pruning and eviction drop stays within the
// tolerance.

#include "reynard/attention/attention.h"
#include "reynard/attention/bias.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"
#include "reynard/attention/pruning.h"
#include "reynard/attention/reference.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::AttentionShape;
using test::random_inputs;

// rapidcheck prints the counterexample itself.
#define EXPECT_PROPERTY(...) EXPECT_TRUE(rc::check(__VA_ARGS__))

AttentionShape random_shape(int64_t longest) {
  AttentionShape shape;
  shape.B = *rc::gen::inRange<int64_t>(1, 3);
  shape.Tk = *rc::gen::inRange<int64_t>(1, longest);
  shape.Tq = *rc::gen::inRange<int64_t>(1, shape.Tk + 1);
  shape.G = *rc::gen::inRange<int64_t>(1, 3);
  shape.H = shape.G * *rc::gen::inRange<int64_t>(1, 3);
  shape.D = *rc::gen::inRange<int64_t>(1, 40);
  return shape;
}

uint64_t random_seed() {
  return *rc::gen::inRange<uint64_t>(0, 1U << 30);
}

TEST(Propositions, OpenGatesAreSoftmaxAttention) {
  EXPECT_PROPERTY("f = 1 is softmax, bit for bit", [] {
    AttentionInputs in = random_inputs(random_shape(140), at::kFloat, random_seed());
    const at::Tensor open = at::zeros_like(in.log_gate);
    const AttentionOutput forgetting = attention(in.q, in.k, in.v, open);
    const AttentionOutput softmax = attention(in.q, in.k, in.v);
    RC_ASSERT(test::bitwise_equal(forgetting.out, softmax.out));
    RC_ASSERT(test::bitwise_equal(forgetting.lse, softmax.lse));
  });
}

TEST(Propositions, ConstantGatesAreAlibi) {
  EXPECT_PROPERTY("constant f has ALiBi's slope -ln f", [] {
    const AttentionShape shape = random_shape(140);
    AttentionInputs in = random_inputs(shape, at::kFloat, random_seed());
    const double f = *rc::gen::inRange(1, 1000) / 1000.0;
    in.log_gate.fill_(std::log(f));
    const at::Tensor slopes = test::on_test_device(at::full({shape.H}, -std::log(f), at::kDouble));
    const at::Tensor sums = alibi_sums(slopes, shape.Tk).expand({shape.B, shape.H, shape.Tk});
    const KeyPart part = {in.k, in.v, sums, {}, true};
    const at::Tensor query_sums = sums.slice(2, shape.Tk - shape.Tq);
    const AttentionOutput alibi = attention(in.q, query_sums, {&part, 1}, {});
    RC_ASSERT(test::near(attention(in.q, in.k, in.v, in.log_gate).out, alibi.out, 1e-4, 1e-4));
  });
}

// Attention weights (T, T) of one head: with one-hot values they are the output.
at::Tensor weights_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_gate) {
  const int64_t T = q.size(1);
  const at::Tensor one_hot = at::eye(T, q.options()).reshape({1, T, 1, T});
  return attention(q, k, one_hot, log_gate).out[0].select(1, 0);
}

at::Tensor rms_normalised(const at::Tensor& x) {
  return x / x.square().mean({-1}, true).sqrt();
}

TEST(Propositions, RecencyBoundHoldsWithQkNorm) {
  EXPECT_PROPERTY("weight <= fbar^(i-j) exp(2B)", [] {
    const int64_t T = *rc::gen::inRange<int64_t>(2, 48);
    const double fbar = *rc::gen::inRange(50, 999) / 1000.0;
    AttentionInputs in = random_inputs(
        {.B = 1, .Tq = T, .Tk = T, .H = 1, .G = 1, .D = T}, at::kDouble, random_seed());
    const at::Tensor wq = in.dout[0][0][0].slice(0, 0, T), wk = in.v[0][0][0].slice(0, 0, T);
    in.q = rms_normalised(in.q) * wq;
    in.k = rms_normalised(in.k) * wk;
    in.log_gate = (in.log_gate.to(at::kDouble) + std::log(fbar)).clamp_max(std::log(fbar));
    const double B = qk_norm_bound(wq, wk, 1, 0, false, at::kFloat)[0].item<double>();
    const at::Tensor weights = weights_of(in.q, in.k, in.log_gate);
    const at::Tensor position = at::arange(T, weights.options());
    const at::Tensor gap = position.unsqueeze(1) - position.unsqueeze(0);
    const at::Tensor bound = (gap * std::log(fbar) + 2 * B).exp();
    RC_ASSERT(((weights <= bound * (1 + 1e-9)).logical_or(gap < 0)).all().item<bool>());
  });
}

// Without a bound on the logits the geometric decay bounds nothing: one far key with a large
// product takes almost all of the mass.
TEST(Propositions, RecencyBoundFailsWithoutQkNorm) {
  const int64_t T = 32;
  const double fbar = 0.5;
  const at::Tensor log_gate = at::full({1, T, 1}, std::log(fbar), at::kDouble);
  const at::Tensor q = at::ones({1, T, 1, T}, at::kDouble);
  at::Tensor k = at::zeros({1, T, 1, T}, at::kDouble);
  k[0][0].fill_(10);  // scale q.k = 10 sqrt(32) = 57, against a decay of 31 ln 2 = 21
  const at::Tensor weights = weights_of(q, k, log_gate);
  const double bounded = std::pow(fbar, T - 1) * std::exp(2 * 1.0);  // as if |scale q.k| <= 1
  EXPECT_GT(weights[T - 1][0].item<double>(), 0.99);
  EXPECT_LT(bounded, 1e-8);
}

// Attention weights in f64: (H, T, T).
at::Tensor exact_weights(const AttentionInputs& in) {
  const at::Tensor sums = gate_sums(in.log_gate);
  const KeyPart part = {in.k.to(at::kDouble), in.v.to(at::kDouble), sums, {}, true};
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(3)));
  return reference_logits(in.q.to(at::kDouble), sums, part, scale, {})[0].softmax(-1);
}

TEST(Propositions, PruningDropsAtMostTheTolerance) {
  EXPECT_PROPERTY("dropped mass <= tolerance", [] {
    const AttentionShape shape = random_shape(260);
    const double mean = *rc::gen::inRange(-2, 5);
    const double tolerance = -*rc::gen::inRange(1, 100) / 10.0;
    const auto rule = *rc::gen::element(PruningRule::kTight, PruningRule::kPublished);
    AttentionInputs in = random_inputs(shape, at::kFloat, random_seed(), mean);
    in.q.mul_(*rc::gen::inRange(1, 40) / 10.0);
    const AttentionOutput pruned =
        attention(in.q, in.k, in.v, in.log_gate, {}, {}, {0, tolerance, rule});
    const at::Tensor sums = gate_sums(in.log_gate);
    const KeyPart part = {in.k.to(at::kDouble), in.v.to(at::kDouble), sums, {}, true};
    const at::Tensor query_sums = sums.slice(2, shape.Tk - shape.Tq);
    const at::Tensor q = in.q.to(at::kDouble);
    const at::Tensor all = reference_attention(q, query_sums, {&part, 1}).lse;
    const at::Tensor kept =
        reference_attention(q, query_sums, {&part, 1}, 0, {&pruned.start, 1}).lse;
    RC_ASSERT((1 - (kept - all).exp()).max().item<double>() <= std::exp(tolerance));
  });
}

// A sequence that is read `chunk` tokens at a time, evicting as it goes and skipping pages; single
// tokens are asked for every 23rd time.
struct Decoded {
  double most_dropped = 0;  // mass of one query, exact
  int64_t evicted_pages = 0;
  int64_t pages_in_use = 0;
};
Decoded decode_evicting(AttentionInputs in,
                        PruningRule rule,
                        double tolerance,
                        int64_t evict_every,
                        int64_t chunk = 1,
                        bool measured = false) {
  in.q = rms_normalised(in.q), in.k = rms_normalised(in.k);
  const int64_t T = in.k.size(1), G = in.k.size(2), H = in.q.size(2), D = in.q.size(3);
  const at::Tensor ones = test::on_test_device(at::ones({D}));
  const at::Tensor bound = qk_norm_bound(ones, ones, H, 0, false, at::kFloat);
  auto pool = std::make_shared<PagePool>(
      PageLayout{.head_dim = D, .group = H / G, .device = test::test_device()});
  LayerCache cache(pool, G);
  const at::Tensor weights = exact_weights(in);
  Decoded result;
  for (int64_t t = 0; t < T; t += chunk) {
    const int64_t end = std::min(t + chunk, T);
    const auto tokens = [&](const at::Tensor& x) { return x[0].slice(0, t, end); };
    cache.append(tokens(in.k), tokens(in.v), tokens(in.log_gate));
    if ((t + 1) / evict_every != (t + 1 - chunk) / evict_every) {
      result.evicted_pages += cache.evict(bound, tolerance, t + 1);
    }
    if (chunk == 1 && t % 23 != 0) continue;
    const LayerCache* caches[] = {&cache};
    const int64_t offsets[] = {0, end - t};
    const PagedOutput rows = paged_attention(
        tokens(in.q), offsets, caches, measured ? at::Tensor() : bound, 0, {0, tolerance, rule});
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = t; i < end; ++i) {
        const int64_t start = rows.start[h][i - t].item<int32_t>();
        const double dropped = weights[h][i].slice(0, 0, start).sum().item<double>();
        result.most_dropped = std::max(result.most_dropped, dropped);
      }
    }
  }
  result.pages_in_use = pool->pages_in_use();
  return result;
}

TEST(Propositions, EvictionAndSkippedReadsShareTheTolerance) {
  EXPECT_PROPERTY("dropped mass <= tolerance", [] {
    AttentionShape shape = random_shape(400);
    shape.B = 1, shape.Tq = shape.Tk;
    const AttentionInputs in =
        random_inputs(shape, at::kFloat, random_seed(), *rc::gen::inRange(-2, 3));
    const double tolerance = -*rc::gen::inRange(1, 100) / 10.0;
    const auto rule = *rc::gen::element(PruningRule::kTight, PruningRule::kPublished);
    const int64_t evict_every = *rc::gen::inRange<int64_t>(1, 100);
    const int64_t chunk = *rc::gen::element<int64_t>(1, 2, 30, 130);
    const bool measured = *rc::gen::arbitrary<bool>();
    RC_ASSERT(decode_evicting(in, rule, tolerance, evict_every, chunk, measured).most_dropped <=
              std::exp(tolerance));
  });
}

TEST(Propositions, EvictionFreesPages) {
  const int64_t T = 700, H = 4, G = 2;
  const AttentionInputs in =
      random_inputs({.B = 1, .Tq = T, .Tk = T, .H = H, .G = G, .D = 16}, at::kFloat, 11, 1.0);
  for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
    const Decoded result = decode_evicting(in, rule, -2, 50);
    EXPECT_GT(result.evicted_pages, 0) << config::name_of(rule);
    EXPECT_LT(result.pages_in_use, G * (T / kPageTokens));
  }
}

// Far keys +u, one strong gate, own key -u: eviction drops as much as it may and not more.
TEST(Propositions, EvictionReachesTheToleranceOnThePlateau) {
  const int64_t far = 4096, D = 16;
  const double U = 4, tolerance = -10, u = std::sqrt(U / 4);
  for (const double slack : {-1e-3, 1e-3}) {
    AttentionInputs in;
    in.q = at::full({1, far + 1, 1, D}, u, at::kFloat);
    in.k = at::full({1, far + 1, 1, D}, u, at::kFloat);
    in.k[0][far].neg_();
    in.v = at::ones({1, far + 1, 1, D}, at::kFloat);
    in.log_gate = at::zeros({1, far + 1, 1}, at::kFloat);
    in.log_gate[0][far][0] = tolerance - 2 * U - std::log(static_cast<double>(far)) + slack;
    LayerCache cache(std::make_shared<PagePool>(PageLayout{.head_dim = D}), 1);
    cache.append(in.k[0], in.v[0], in.log_gate[0]);
    const at::Tensor bound = at::full({1}, static_cast<float>(U), at::kFloat);
    const int64_t dropped = cache.evict(bound, tolerance, far + 1);
    const at::Tensor sums = gate_sums(in.log_gate);
    const KeyPart part = {in.k.to(at::kDouble), in.v.to(at::kDouble), sums, {}, true};
    const at::Tensor weights =
        reference_logits(in.q.slice(1, far).to(at::kDouble), sums.slice(2, far), part, 0.25, {})
            .softmax(-1);
    const double share = weights.slice(3, 0, dropped * kPageTokens).sum().item<double>();
    EXPECT_LE(share, std::exp(tolerance));
    if (slack < 0) {
      EXPECT_EQ(dropped, far / kPageTokens);
      EXPECT_GE(share, 0.98 * std::exp(tolerance));
    } else {
      EXPECT_LT(dropped, far / kPageTokens);
    }
  }
}

// Evicted keys are short, a query's own key is long and points away: its mass is smaller than that
// of a key as long as the evicted ones could be.
TEST(Propositions, ChunksShareTheToleranceWhereOwnKeysAreLong) {
  const int64_t past = 5 * kPageTokens, D = 16;
  const double fading = -22.5, tolerance = -10;
  AttentionInputs in;
  in.q = test::on_test_device(at::ones({1, past + 2, 1, D}));  // scale |q| = 1
  in.k = test::on_test_device(at::full({1, past + 2, 1, D}, 0.1 / 4, at::kFloat));
  in.k.slice(1, past).fill_(-8.0 / 4);
  in.v = in.k.clone();
  in.log_gate = test::on_test_device(at::zeros({1, past + 2, 1}));
  in.log_gate[0][past].fill_(fading);
  LayerCache cache(
      std::make_shared<PagePool>(PageLayout{.head_dim = D, .device = test::test_device()}), 1);
  cache.append(in.k[0], in.v[0], in.log_gate[0]);
  const at::Tensor bound = test::on_test_device(at::full({1}, 0.1F));
  const double one_page = std::log(1.5 * kPageTokens) + 2 * 0.1 + fading;
  ASSERT_EQ(cache.evict(bound, one_page, past + 1), 1);
  const at::Tensor weights = exact_weights(in);
  for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
    const LayerCache* caches[] = {&cache};
    const int64_t offsets[] = {0, 2};
    const PagedOutput rows =
        paged_attention(in.q[0].slice(0, past), offsets, caches, {}, 0, {0, tolerance, rule});
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t start = rows.start[0][i].item<int32_t>();
      EXPECT_GE(start, kPageTokens);
      EXPECT_LE(weights[0][past + i].slice(0, 0, start).sum().item<double>(), std::exp(tolerance))
          << config::name_of(rule);
    }
  }
}

}  // namespace
}  // namespace reynard::attention
