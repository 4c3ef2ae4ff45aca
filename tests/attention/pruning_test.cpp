#include "reynard/attention/pruning.h"

#include "reynard/attention/bias.h"
#include "reynard/attention/reference.h"
#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <vector>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::AttentionShape;
using test::expect_same_bits;
using test::expect_within_budget;
using test::first_keys;
using test::random_inputs;
using test::run_attention;

constexpr PruningRule kRules[] = {PruningRule::kTight, PruningRule::kPublished};

// The largest share of any query's attention mass, in f64, that the kept keys leave out.
double dropped_share(const at::Tensor& q,
                     const at::Tensor& query_sums,
                     std::span<const KeyPart> parts,
                     std::span<const at::Tensor> starts) {
  const at::NoGradGuard no_grad;
  std::vector<KeyPart> wide(parts.begin(), parts.end());
  for (KeyPart& part : wide) part.k = part.k.to(at::kDouble), part.v = part.v.to(at::kDouble);
  const at::Tensor all = reference_attention(q.to(at::kDouble), query_sums, wide).lse;
  const at::Tensor kept = reference_attention(q.to(at::kDouble), query_sums, wide, 0, starts).lse;
  const at::Tensor share = at::where(all.isinf(), at::zeros_like(all), 1 - at::exp(kept - all));
  return share.max().item<double>();
}

double dropped_share(const AttentionInputs& in, const at::Tensor& start) {
  const at::Tensor sums = gate_sums(in.log_gate);
  const KeyPart part = {in.k, in.v, sums, in.first_key, true};
  return dropped_share(in.q, sums.slice(2, in.k.size(1) - in.q.size(1)), {&part, 1}, {&start, 1});
}

TEST(Pruning, DropsALocalHeadsPastAndKeepsAGlobalOnes) {
  AttentionInputs in = random_inputs({.B = 1, .Tq = 2048, .Tk = 2048, .H = 2, .G = 2, .D = 64});
  in.log_gate.select(2, 0).fill_(std::log(0.5));  // half-life of one token
  in.log_gate.select(2, 1).zero_();               // never forgets
  const AttentionOutput result =
      attention(in.q, in.k, in.v, in.log_gate, {}, {}, {.log_pruning_tolerance = -10});
  const AttentionStatistics statistics = attention_statistics(result.start, {}, 2048, 2048);
  EXPECT_GT(statistics.pruned_tiles[0].item<double>(), 0.7);
  EXPECT_EQ(statistics.pruned_tiles[1].item<double>(), 0);
  // The last block reads only a few key blocks before its diagonal.
  EXPECT_GE(statistics.first_block[0][0][15].item<int32_t>(), 28);
  EXPECT_EQ(statistics.first_block[0][1][15].item<int32_t>(), 0);
}

struct PruningCase {
  AttentionShape shape;
  test::Visibility visibility;
  double gate_mean;
  at::ScalarType dtype = at::kFloat;
};

std::vector<PruningCase> pruning_cases() {
  return {
      {{.B = 1, .Tq = 511, .Tk = 511, .H = 2, .G = 1, .D = 64}, {}, 0},
      {{.B = 1, .Tq = 511, .Tk = 511, .H = 2, .G = 2, .D = 64}, {}, 0, at::kBFloat16},
      {{.B = 1, .Tq = 140, .Tk = 900, .H = 2, .G = 1, .D = 16}, {}, 1},
      {{.B = 1, .Tq = 1, .Tk = 900, .H = 2, .G = 1, .D = 16}, {}, 1},
      // More key blocks than a warp looks at together.
      {{.B = 1, .Tq = 200, .Tk = 4500, .H = 2, .G = 1, .D = 16}, {}, 4},
      {{.B = 2, .Tq = 600, .Tk = 600, .H = 2, .G = 2, .D = 32},
       {.documents = {300, 400, 401}, .padding = {100, 0}, .window = 250},
       0},
      {{.B = 2, .Tq = 350, .Tk = 350, .H = 4, .G = 2, .D = 128},
       {.documents = {40, 300, 301}, .padding = {100, 0}, .window = 220},
       0,
       at::kBFloat16},
      {{.B = 1, .Tq = 140, .Tk = 900, .H = 4, .G = 1, .D = 64}, {}, 1, at::kHalf},
      {{.B = 1, .Tq = 350, .Tk = 350, .H = 2, .G = 2, .D = 256},
       {.documents = {1, 330}},
       0,
       at::kBFloat16},
      {{.B = 1, .Tq = 300, .Tk = 300, .H = 2, .G = 2, .D = 24}, {}, -1, at::kHalf},
      {{.B = 1, .Tq = 200, .Tk = 430, .H = 2, .G = 1, .D = 200}, {}, 0, at::kHalf},
  };
}

TEST(Pruning, DropsAtMostTheTolerance) {
  for (const PruningCase& c : pruning_cases()) {
    AttentionInputs in = random_inputs(c.shape, c.dtype, 3, c.gate_mean);
    if (c.visibility.hides_keys()) in.first_key = first_keys(c.shape, c.visibility);
    for (const PruningRule rule : kRules) {
      for (const double tolerance : {-1.0, -10.0}) {
        const AttentionOutput result =
            attention(in.q, in.k, in.v, in.log_gate, in.first_key, {}, {0, tolerance, rule});
        EXPECT_LE(dropped_share(in, result.start), std::exp(tolerance))
            << config::name_of(rule) << " Tk " << c.shape.Tk;
        if (tolerance == -1 && c.shape.Tq > 1) {
          const AttentionStatistics statistics =
              attention_statistics(result.start, in.first_key, c.shape.Tq, c.shape.Tk);
          EXPECT_GT(statistics.pruned_tiles.max().item<double>(), 0.02) << config::name_of(rule);
        }
      }
    }
  }
}

// Floors and norms of half-precision inputs, which kernels of their own may measure, are those of
// the same numbers in f32.
TEST(Pruning, StartsAreThoseOfTheWidenedInputs) {
  const std::vector<PruningCase> cases = {
      {{.B = 2, .Tq = 600, .Tk = 600, .H = 4, .G = 2, .D = 64}, {}, 1, at::kBFloat16},
      {{.B = 1, .Tq = 511, .Tk = 511, .H = 2, .G = 1, .D = 128}, {}, 1, at::kHalf},
      {{.B = 1, .Tq = 700, .Tk = 700, .H = 2, .G = 2, .D = 256}, {}, 1, at::kBFloat16},
      {{.B = 1, .Tq = 300, .Tk = 300, .H = 2, .G = 2, .D = 24}, {}, 1, at::kHalf},
      {{.B = 1, .Tq = 140, .Tk = 900, .H = 2, .G = 1, .D = 64}, {}, 1, at::kBFloat16},
      {{.B = 2, .Tq = 600, .Tk = 600, .H = 2, .G = 2, .D = 64},
       {.documents = {300, 400, 401}, .padding = {100, 0}, .window = 250},
       0,
       at::kBFloat16},
      // Masses of neighbouring blocks that are hundreds and tens of thousands of nats apart.
      {{.B = 1, .Tq = 2500, .Tk = 2500, .H = 2, .G = 1, .D = 64}, {}, -5, at::kBFloat16},
      {{.B = 1, .Tq = 2500, .Tk = 2500, .H = 2, .G = 2, .D = 128}, {}, -600, at::kHalf},
  };
  for (const PruningCase& c : cases) {
    AttentionInputs in = random_inputs(c.shape, c.dtype, 8, c.gate_mean);
    if (c.visibility.hides_keys()) in.first_key = first_keys(c.shape, c.visibility);
    in.k.select(1, 70).mul_(4), in.q.select(1, c.shape.Tq - 5).mul_(4);  // the norms of two blocks
    const auto starts = [&](at::ScalarType dtype) {
      return attention(in.q.to(dtype),
                       in.k.to(dtype),
                       in.v.to(dtype),
                       in.log_gate,
                       in.first_key,
                       {},
                       {.log_pruning_tolerance = -8})
          .start;
    };
    const at::Tensor expected = starts(at::kFloat);
    EXPECT_GT(expected.max().item<int32_t>(), 0);
    EXPECT_BITWISE_EQUAL(starts(c.dtype), expected) << " D " << c.shape.D;
  }
}

// The diagonal tile and the key block before it, or the last 128 keys, from whole blocks on.
TEST(Pruning, NearestKeysBeginAtWholeBlocks) {
  const auto nearest = [](int64_t Tq, int64_t Tk, bool causal) {
    const at::Tensor k = at::zeros({1, Tk, 1, 16});
    const KeyPart part = {k, k, {}, {}, causal};
    const at::Tensor starts = nearest_starts(at::zeros({1, Tq, 1, 16}), part).flatten();
    return std::vector<int32_t>(starts.const_data_ptr<int32_t>(),
                                starts.const_data_ptr<int32_t>() + starts.numel());
  };
  EXPECT_EQ(nearest(300, 300, true), (std::vector<int32_t>{0, 64, 192}));
  EXPECT_EQ(nearest(300, 310, true), (std::vector<int32_t>{0, 64, 192}));
  EXPECT_EQ(nearest(300, 364, true), (std::vector<int32_t>{0, 128, 256}));
  EXPECT_EQ(nearest(300, 500, false), (std::vector<int32_t>{320, 320, 320}));
  EXPECT_EQ(nearest(300, 100, false), (std::vector<int32_t>{0, 0, 0}));
}

// Gradients are those of the pruned function: compared with the definition under the same starts.
TEST(Pruning, ForwardAndBackwardAreThoseOfThePrunedFunction) {
  for (const PruningCase& c : pruning_cases()) {
    AttentionInputs in = random_inputs(c.shape, c.dtype, 4, c.gate_mean);
    if (c.visibility.hides_keys()) in.first_key = first_keys(c.shape, c.visibility);
    for (const PruningRule rule : kRules) {
      const AttentionOptions options = {0, -2, rule};
      const at::Tensor start =
          attention(in.q, in.k, in.v, in.log_gate, in.first_key, {}, options).start;
      expect_within_budget(in, options, start);
    }
  }
}

// The hardest data: queries +u and far keys +u, the own key -u, one strong gate between, gate 1
// elsewhere. The logits are as far apart as their bound allows, so the dropped mass comes as near
// to the tolerance as the rules let it.
struct Plateau {
  at::Tensor q, k, v, log_gate, bound;
  int64_t T, far;
};

Plateau plateau(int64_t T, double gate, double U) {
  const int64_t D = 16;
  Plateau p;
  p.T = T;
  p.far = T - kQueryBlock;
  // scale q.k = +-U with scale 1/sqrt(D) = 1/4.
  const double u = std::sqrt(U * 4 / static_cast<double>(D));
  p.q = test::on_test_device(
      at::full({1, kQueryBlock, 1, D}, u, at::kFloat));  // the queries after the gate
  p.k = test::on_test_device(at::full({1, T, 1, D}, u, at::kFloat));
  p.k.slice(1, p.far).neg_();
  p.v = test::on_test_device(at::ones({1, T, 1, D}, at::kFloat));
  p.log_gate = test::on_test_device(at::zeros({1, T, 1}, at::kFloat));
  p.log_gate[0][p.far][0] = gate;
  p.bound = test::on_test_device(at::full({1}, static_cast<float>(U), at::kFloat));
  return p;
}

double plateau_share(const Plateau& p, PruningRule rule, double tolerance, bool measured) {
  const AttentionOutput result = attention(
      p.q, p.k, p.v, p.log_gate, {}, measured ? at::Tensor() : p.bound, {0, tolerance, rule});
  AttentionInputs in;
  in.q = p.q, in.k = p.k, in.v = p.v, in.log_gate = p.log_gate;
  return dropped_share(in, result.start);
}

TEST(Pruning, ReachesTheToleranceOnThePlateauAndNotMore) {
  const int64_t T = 16384;
  const double U = 4, tolerance = -10;
  for (const bool measured : {false, true}) {
    // Published: each key may weigh 1/T of the tolerance; the gate lies just beyond the threshold.
    const double threshold = tolerance - 2 * U - std::log(static_cast<double>(T));
    const double published = plateau_share(
        plateau(T, threshold - 1e-3, U), PruningRule::kPublished, tolerance, measured);
    EXPECT_LE(published, std::exp(tolerance));
    EXPECT_GE(published, 0.98 * std::exp(tolerance));
    // Tight: the first query of the last block sees its own key and, before the gate, far keys
    // only, so its mass is exp(-U) and the far mass (T - 128) exp(U + gate).
    const double far = std::log(static_cast<double>(T - kQueryBlock));
    const double gate = tolerance - 0.0101 - 2 * U - far;
    const double tight =
        plateau_share(plateau(T, gate, U), PruningRule::kTight, tolerance, measured);
    EXPECT_LE(tight, std::exp(tolerance));
    EXPECT_GE(tight, 0.98 * std::exp(tolerance));
  }
}

TEST(Pruning, KeepsThePlateauJustAboveTheThreshold) {
  const double U = 4, tolerance = -10;
  const double threshold = tolerance - 2 * U - std::log(4096.0);
  EXPECT_EQ(
      plateau_share(plateau(4096, threshold + 1e-2, U), PruningRule::kPublished, tolerance, false),
      0);
  const double far = std::log(4096.0 - kQueryBlock);
  EXPECT_LE(plateau_share(
                plateau(4096, tolerance - 2 * U - far, U), PruningRule::kTight, tolerance, false),
            0.99 * std::exp(tolerance));
}

// Far keys are so short that the tight rule could drop them for their norms alone; of two heads
// only that one is searched whose gates take more than the tolerance over all keys.
TEST(Pruning, LeavesHeadsAloneWhoseGatesTakeLessThanTheTolerance) {
  constexpr int64_t kLength = 1024;
  constexpr double kTolerance = -10;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape = {.B = 1, .Tq = kLength, .Tk = kLength, .H = 2, .G = 2, .D = 64};
    AttentionInputs in = random_inputs(shape, at::kFloat, 1);
    in.k.slice(1, 0, kLength / 2).mul_(0.01);
    in.k.slice(1, kLength / 2).mul_(3);
    const at::Tensor q = in.k.to(dtype);  // their own keys score highest
    in.log_gate.select(2, 0).fill_((kTolerance + 0.1) / kLength);
    in.log_gate.select(2, 1).fill_((kTolerance - 0.1) / kLength);
    const AttentionOptions options = {0, kTolerance, PruningRule::kTight};
    const at::Tensor start = attention(q, q, in.v.to(dtype), in.log_gate, {}, {}, options).start;
    EXPECT_EQ(start.select(1, 0).max().item<int32_t>(), 0) << dtype;
    EXPECT_GE(start.select(1, 1).max().item<int32_t>(), kLength / 2 - 64) << dtype;
    // Of what a window shows all is kept.
    const at::Tensor first = first_keys(shape, {.window = 700});
    const at::Tensor seen =
        attention(q, q, in.v.to(dtype), in.log_gate, first, {}, options).start.select(1, 0);
    const at::Tensor visible = first_visible(q, {q, q, {}, first, true});
    EXPECT_BITWISE_EQUAL(seen, visible.select(1, 0));
  }
}

// Of a call of several parts all floors are needed, also those of a part that does not fade: whose
// sums, by rounding, may even grow.
TEST(Pruning, SearchesOneOfTwoPartsWhereTheOtherDoesNotFade) {
  const AttentionShape own_shape = {.B = 1, .Tq = 256, .Tk = 256, .H = 2, .G = 2, .D = 64};
  const AttentionShape far_shape = {.B = 1, .Tq = 1, .Tk = 1500, .H = 2, .G = 2, .D = 64};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionInputs own = random_inputs(own_shape, dtype, 1);
    const AttentionInputs memory = random_inputs(far_shape, dtype, 2, 2);
    const at::Tensor open = at::zeros_like(own.log_gate);
    const at::Tensor sums = gate_sums(at::cat({memory.log_gate, open}, 1));
    const at::Tensor far = sums.slice(2, 0, 1500).contiguous(), near = sums.slice(2, 1500);
    const KeyPart parts[] = {{memory.k, memory.v, far, {}, false},
                             {own.k, own.v, near.contiguous(), {}, true}};
    const auto start = [&](double rounding) {
      const at::Tensor query_sums = (near + rounding).contiguous();
      return attention(own.q, query_sums, parts, {}, {0, -5, PruningRule::kTight}).start;
    };
    EXPECT_GT(start(0).max().item<int32_t>(), 0) << dtype;
    EXPECT_BITWISE_EQUAL(start(1e-12), start(0)) << dtype;
  }
}

// More heads than a block of threads plans for by themselves.
TEST(Pruning, ManyHeadsArePrunedAsFewAre) {
  const AttentionInputs in = random_inputs(
      {.B = 1, .Tq = 320, .Tk = 320, .H = 520, .G = 520, .D = 64}, at::kBFloat16, 1, 1);
  const auto heads = [&](int64_t first, int64_t end) {
    const auto some = [&](const at::Tensor& x) { return x.slice(2, first, end); };
    return attention(some(in.q),
                     some(in.k),
                     some(in.v),
                     some(in.log_gate),
                     {},
                     {},
                     {0, -5, PruningRule::kTight});
  };
  const AttentionOutput all = heads(0, 520), few = heads(500, 520);
  EXPECT_GT(few.start.max().item<int32_t>(), 0);
  EXPECT_BITWISE_EQUAL(all.start.slice(1, 500), few.start);
  EXPECT_BITWISE_EQUAL(all.out.slice(2, 500), few.out);
}

TEST(Pruning, OneOutlierKeySpoilsOnlyItsBlockInTheTightRule) {
  AttentionInputs in =
      random_inputs({.B = 1, .Tq = 2048, .Tk = 2048, .H = 1, .G = 1, .D = 64}, at::kFloat, 1, 1);
  in.k[0][100].mul_(20);
  const auto share = [&](PruningRule rule) {
    const AttentionOutput result = attention(in.q, in.k, in.v, in.log_gate, {}, {}, {0, -10, rule});
    return attention_statistics(result.start, {}, 2048, 2048).pruned_tiles[0].item<double>();
  };
  EXPECT_GT(share(PruningRule::kTight), share(PruningRule::kPublished) + 0.1);
}

// Pruned tiles and those that nobody may see are neither read nor computed.
TEST(Pruning, DoesNotReadPrunedTiles) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const PruningRule rule : kRules) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const AttentionShape shape = {.B = 1, .Tq = 128, .Tk = 1024, .H = 2, .G = 1, .D = 64};
      const AttentionInputs clean = random_inputs(shape, dtype, 5, 0);
      const at::Tensor bound = test::on_test_device(at::full({2}, 12.0F, at::kFloat));
      const AttentionOptions options = {0, -10, rule};
      const auto expected = run_attention(clean, options, bound);
      const at::Tensor start =
          attention(clean.q, clean.k, clean.v, clean.log_gate, {}, bound, options).start;
      const int64_t kept = start.min().item<int32_t>() / 512 * 512;  // whole tiles of any kernel
      ASSERT_GE(kept, 512);
      AttentionInputs poisoned = clean;
      poisoned.k = clean.k.clone(), poisoned.v = clean.v.clone();
      poisoned.k.slice(1, 0, kept).fill_(nan);
      poisoned.v.slice(1, 0, kept).fill_(nan);
      const auto actual = run_attention(poisoned, options, bound);
      expect_same_bits(actual, expected);
    }
  }
}

// Keys that no query of a block sees, before its first key or in its future, are not read either.
TEST(Pruning, DoesNotReadHiddenTiles) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape = {.B = 1, .Tq = 128, .Tk = 1024, .H = 2, .G = 1, .D = 64};
    AttentionInputs clean = random_inputs(shape, dtype, 6);
    clean.first_key = first_keys(shape, {.documents = {640}});
    AttentionInputs poisoned = clean;
    poisoned.k = clean.k.clone(), poisoned.v = clean.v.clone();
    poisoned.k.slice(1, 0, 512).fill_(nan), poisoned.v.slice(1, 0, 512).fill_(nan);
    const auto expected = run_attention(clean), actual = run_attention(poisoned);
    expect_same_bits(actual, expected);
    // The future: the first query block of a longer sequence.
    const AttentionInputs whole =
        random_inputs({.B = 1, .Tq = 1024, .Tk = 1024, .H = 2, .G = 1, .D = 64}, dtype, 6);
    at::Tensor k = whole.k.clone(), v = whole.v.clone();
    k.slice(1, 512).fill_(nan), v.slice(1, 512).fill_(nan);
    EXPECT_BITWISE_EQUAL(attention(whole.q, k, v, whole.log_gate).out.slice(1, 0, 512),
                         attention(whole.q, whole.k, whole.v, whole.log_gate).out.slice(1, 0, 512));
  }
}

// A part of which nothing is seen counts no keys: fewer than none would raise the threshold.
TEST(Pruning, PartsThatNobodySeesChangeNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape = {.B = 1, .Tq = 256, .Tk = 512, .H = 2, .G = 1, .D = 64};
    const AttentionInputs in = random_inputs(shape, dtype, 1, 1);
    const AttentionInputs hidden =
        random_inputs({.B = 1, .Tq = 1, .Tk = 10, .H = 2, .G = 1, .D = 64}, dtype, 2, 1);
    const at::Tensor sums = gate_sums(in.log_gate), hidden_sums = gate_sums(hidden.log_gate);
    const at::Tensor query_sums = sums.slice(2, 256).contiguous();
    const auto starts_with = [&](int64_t first_key, PruningRule rule, const at::Tensor& bound) {
      const at::Tensor first_keys = test::on_test_device(at::full({1, 256}, first_key, at::kInt));
      const KeyPart parts[] = {{in.k, in.v, sums, {}, /*causal=*/true},
                               {hidden.k, hidden.v, hidden_sums, first_keys, /*causal=*/false}};
      return attention(in.q, query_sums, parts, bound, {0, -10, rule}).start;
    };
    const at::Tensor given = test::on_test_device(at::full({2}, 8.0F));
    for (const PruningRule rule : kRules) {
      for (const at::Tensor& bound : {given, at::Tensor()}) {
        const at::Tensor starts = starts_with(10, rule, bound);
        if (bound.defined()) {
          EXPECT_GT(starts.max().item<int32_t>(), 0) << config::name_of(rule);
        }
        EXPECT_BITWISE_EQUAL(starts_with(10000, rule, bound), starts);
      }
    }
  }
}

// There is nothing to bound, and nothing to search.
TEST(Pruning, APartWithoutKeysIsNotSearched) {
  const AttentionInputs in =
      random_inputs({.B = 2, .Tq = 3, .Tk = 3, .H = 4, .G = 2, .D = 16}, at::kFloat, 1, 1);
  const KeyPart none = {in.k.slice(1, 0, 0),
                        in.v.slice(1, 0, 0),
                        gate_sums(in.log_gate).slice(2, 0, 0),
                        {},
                        /*causal=*/false};
  for (const PruningRule rule : kRules) {
    const AttentionOutput out =
        attention(in.q, gate_sums(in.log_gate), {&none, 1}, {}, {0, -10, rule});
    EXPECT_BITWISE_EQUAL(out.out, at::zeros_like(in.q));
    EXPECT_TRUE(out.lse.eq(-std::numeric_limits<double>::infinity()).all().item<bool>());
  }
}

TEST(Pruning, SharesTheToleranceBetweenParts) {
  const AttentionShape shape = {.B = 1, .Tq = 256, .Tk = 256, .H = 2, .G = 1, .D = 32};
  const AttentionInputs own = random_inputs(shape, at::kFloat, 1, 1);
  const AttentionInputs memory =
      random_inputs({.B = 1, .Tq = 1, .Tk = 1500, .H = 2, .G = 1, .D = 32}, at::kFloat, 2, 4);
  // One running sum over the memory and then the sequence.
  const at::Tensor sums = gate_sums(at::cat({memory.log_gate, own.log_gate}, 1));
  const KeyPart parts[] = {
      {own.k, own.v, sums.slice(2, 1500).contiguous(), {}, true},
      {memory.k, memory.v, sums.slice(2, 0, 1500).contiguous(), {}, false},
  };
  const at::Tensor query_sums = sums.slice(2, 1500).contiguous();
  for (const PruningRule rule : kRules) {
    const AttentionOptions options = {0, -3, rule};
    const at::Tensor floors = reference_attention(own.q, query_sums, {parts, 1}).lse;
    const auto starts = pruned_starts(own.q, query_sums, parts, {}, options, {floors});
    EXPECT_GT(starts[1].max().item<int32_t>(), 0) << config::name_of(rule);
    EXPECT_LE(dropped_share(own.q, query_sums, parts, starts), std::exp(-3.0));
    const AttentionOutput pruned = attention(own.q, query_sums, parts, {}, options);
    const AttentionOutput whole = attention(own.q, query_sums, parts, {});
    // 2 epsilon diam(V), with diam(V) <= 2 max |v| per coordinate.
    const double diameter = 2 * memory.v.abs().max().item<double>();
    EXPECT_TENSORS_NEAR(pruned.out, whole.out, 2 * std::exp(-3.0) * diameter, 0);
  }
}

}  // namespace
}  // namespace reynard::attention
