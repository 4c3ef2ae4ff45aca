// Gates that shut, and keys that outweigh all others however far away they are, wherever both fall
// in a kernel's tiles: forward and backward in the error budget, for the head dimensions and dtypes
// that have kernels of their own.

#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace reynard::attention {
namespace {

using test::AttentionGradients;
using test::AttentionInputs;
using test::longest_row;
using test::random_inputs;
using test::run_attention;

// Relative errors of weights, beyond those of the naive formula, that a call may show.
struct WeightNoise {
  double forward = 0, backward = 0;
  double delta = 0;  // absolute, of the gates' gradient
};

// The matrix unit of a GPU cuts off (it does not round) what lies 24 bits below the largest of 16
// products and the sum that it adds them to.
double cut_off_by_matrix_unit(const AttentionInputs& in) {
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(3)));
  const at::Tensor q = in.q.to(at::kDouble).transpose(1, 2),
                   k = in.k.to(at::kDouble).transpose(1, 2);
  const double largest = q.matmul(k.transpose(2, 3)).abs().max().item<double>() * scale;
  return static_cast<double>(in.q.size(3)) / 16 * 0x1p-24 * largest;
}

// The backward of Hopper's kernels takes biases through the matrix unit, as numbers of 24 bits
// relative to one of 64 keys: where gates between these fall by thousands, weights of neighbours
// have that rounding.
double rounding_of_tile_biases(const AttentionInputs& in) {
  const at::Tensor gates = in.log_gate.to(at::kDouble);
  double largest = 0;
  for (int64_t t = 0; t < gates.size(1); t += 64) {
    const at::Tensor fall = gates.narrow(1, t, std::min<int64_t>(64, gates.size(1) - t)).sum(1);
    largest = std::max(largest, -fall.min().item<double>());
  }
  return 0x1p-23 * largest;
}

WeightNoise noise_of_matrix_unit(const AttentionInputs& in) {
  if (!test::test_device().is_cuda() || in.q.scalar_type() == at::kFloat) return {};
  const double cut_off = cut_off_by_matrix_unit(in);
  return {cut_off, cut_off + (in.log_gate.defined() ? rounding_of_tile_biases(in) : 0)};
}

void expect_within_budget_but_for(const AttentionInputs& in, const WeightNoise& noise) {
  const AttentionGradients ours = run_attention(in);
  const AttentionGradients naive = test::run_reference(in);
  const AttentionGradients exact = test::run_reference(test::in_double(in));
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(3)));
  const double q = longest_row(in.q), k = longest_row(in.k), v = longest_row(in.v);
  const double dout = longest_row(in.dout), row = noise.backward * dout * 2 * v;  // P dO.(v - o)
  EXPECT_WITHIN_BUDGET(ours.out, naive.out, exact.out, noise.forward * 2 * v);
  EXPECT_WITHIN_BUDGET(ours.lse, naive.lse, exact.lse, noise.forward);
  EXPECT_WITHIN_BUDGET(ours.dq, naive.dq, exact.dq, row * scale * k);
  EXPECT_WITHIN_BUDGET(ours.dk, naive.dk, exact.dk, row * scale * q);
  EXPECT_WITHIN_BUDGET(ours.dv, naive.dv, exact.dv, noise.backward * dout);
  if (in.log_gate.defined()) {
    EXPECT_WITHIN_BUDGET(ours.dlog_gate, naive.dlog_gate, exact.dlog_gate, row + noise.delta);
  }
}

void expect_within_budget_of_device(const AttentionInputs& in) {
  expect_within_budget_but_for(in, noise_of_matrix_unit(in));
}

// Logits are rounded to f32 in the forward and again in the backward. The naive formula rounds the
// same way in both, so that the sum of a row's dS, which meets what all its keys have in common,
// stays zero there. Noise is what the roundings of one row make of each result; it counts where
// logits are hundreds, or the naive formula happens to be exact.
void expect_within_budget_of_rounded_logits(const AttentionInputs& in) {
  const AttentionGradients exact = test::run_reference(test::in_double(in));
  WeightNoise noise = noise_of_matrix_unit(in);
  const double logits = test::logit_rounding(in.q, in.k, exact.lse);
  noise.forward += logits, noise.backward += logits;
  // delta is of the rounded out, and enters the gradient of every gate that a row lies behind.
  noise.delta = test::rounding_of(in.q.scalar_type()) * longest_row(in.dout) * longest_row(in.v);
  expect_within_budget_but_for(in, noise);
}

class HardGatesBudget : public testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {
 protected:
  const at::ScalarType dtype = std::get<0>(GetParam());
  const int64_t D = std::get<1>(GetParam());

  AttentionInputs inputs(int64_t Tq, int64_t Tk, int64_t H = 1) const {
    return random_inputs({.B = 1, .Tq = Tq, .Tk = Tk, .H = H, .G = H, .D = D}, dtype);
  }

  // All queries have the same first kCommon components, which give `logit` to the kLoud keys from
  // `key` on; N(0, 1) comes from the others, so that several of these keys share a row's mass.
  static constexpr int64_t kCommon = 8, kLoud = 8;
  static constexpr double kComponent = 2;
  AttentionInputs inputs_in_one_direction(int64_t Tq, int64_t Tk) const {
    AttentionInputs in = inputs(Tq, Tk, /*H=*/2);
    in.q.slice(3, 0, kCommon).fill_(kComponent);
    in.k.slice(3, 0, kCommon).zero_();
    return in;
  }
  void raise_keys(AttentionInputs& in, int64_t key, double logit) const {
    const double component = logit * std::sqrt(static_cast<double>(D)) / (kCommon * kComponent);
    in.k.slice(1, key, key + kLoud).slice(3, 0, kCommon).fill_(component);
  }
};

INSTANTIATE_TEST_SUITE_P(Attention,
                         HardGatesBudget,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(64, 128, 256)),
                         [](const auto& info) {
                           return fmt::format("{}D{}",
                                              c10::toString(std::get<0>(info.param)),
                                              std::get<1>(info.param));
                         });

// Earlier keys weigh exactly nothing, and nothing overflows. The naive formula makes no error here.
TEST_P(HardGatesBudget, GatesThatAreAllShutLeaveAQueryItself) {
  for (const double log_gate : {-600.0, -1000.0}) {
    AttentionInputs in = inputs(200, 200);
    in.log_gate.fill_(log_gate);
    EXPECT_BITWISE_EQUAL(run_attention(in).out, in.v);
    expect_within_budget_of_rounded_logits(in);
  }
}

// Sums of later tokens are large and almost equal; of a gate in a row of shut ones they differ by
// tens of thousands inside one tile.
TEST_P(HardGatesBudget, HoldsBehindShutGatesInsideATile) {
  AttentionInputs in = inputs(300, 300);
  for (const int64_t t : {5, 9, 20, 31, 63, 64, 100, 127, 128, 200, 255, 299}) {
    in.log_gate.select(1, t).fill_(t % 2 == 0 ? -600 : -1000);
  }
  in.log_gate.slice(1, 150, 180).fill_(-1000);  // together -30,000
  expect_within_budget_of_device(in);
}

// All that the queries see lies behind gates of -30,000, so do the sums of keys in whole tiles.
TEST_P(HardGatesBudget, HoldsBehindARowOfShutGates) {
  AttentionInputs in = inputs(150, 600);
  in.log_gate.slice(1, 70, 100).fill_(-1000);
  in.log_gate.slice(1, 300, 301).fill_(-30);
  expect_within_budget_of_device(in);
}

// Tiles formed relative to the maximum before them are done again: each of these logits is more
// than 30 ln 2 above the last, the third above what exp of f32 holds.
TEST_P(HardGatesBudget, RaisesTheMaximumFarFromTheDiagonal) {
  AttentionInputs in = inputs_in_one_direction(40, 1100);
  in.log_gate.clamp_min_(-0.02);  // 20 over all keys
  for (const auto& [key, logit] : {std::pair{900, 32.0}, {300, 64.0}, {100, 160.0}}) {
    raise_keys(in, key, logit);
  }
  expect_within_budget_of_rounded_logits(in);
  in.log_gate = at::Tensor();
  expect_within_budget_of_rounded_logits(in);
}

// Of one query among many, wherever its lane lies.
TEST_P(HardGatesBudget, RaisesTheMaximumOfOneQuery) {
  for (const int64_t query : {33, 127}) {
    SCOPED_TRACE(query);
    AttentionInputs in = inputs_in_one_direction(128, 400);
    in.log_gate.clamp_min_(-0.02);
    raise_keys(in, 100, 160.0);
    in.q.slice(1, 0, query).slice(3, 0, kCommon).zero_();
    in.q.slice(1, query + 1).slice(3, 0, kCommon).zero_();
    expect_within_budget_of_rounded_logits(in);
  }
}

// Logits of 2e8 are rounded by more than what a kernel lets pass before it raises its maximum.
// Whatever weights that leaves, outputs are means of values, and no kernel raises for ever.
TEST_P(HardGatesBudget, LogitsWithoutAFractionLeaveMeans) {
  if (std::get<0>(GetParam()) == at::kHalf) GTEST_SKIP() << "such weights are no f16";
  AttentionInputs in = inputs(300, 300);
  in.q.fill_(4000);
  in.k.fill_(4000);
  const double low = in.v.min().item<double>(), high = in.v.max().item<double>();
  for (const double log_gate : {0.0, std::log(0.5)}) {
    in.log_gate.fill_(log_gate);
    const at::Tensor out = run_attention(in).out;
    EXPECT_GE(out.min().item<double>(), 1.01 * low);
    EXPECT_LE(out.max().item<double>(), 1.01 * high);
  }
}

// Logits of nearly 0 leave the gates. Biases that a kernel divides by such a scale are no f32.
TEST_P(HardGatesBudget, HoldsAtAScaleOfNearlyZero) {
  constexpr double kScale = 1e-37;
  AttentionInputs in = inputs(300, 300);
  in.log_gate.sub_(3);  // 384 over 128 keys
  const AttentionGradients ours = run_attention(in, {.scale = kScale});
  const AttentionGradients naive = test::run_reference(in, kScale);
  const AttentionGradients exact = test::run_reference(test::in_double(in), kScale);
  EXPECT_WITHIN_BUDGET(ours.out, naive.out, exact.out);
  EXPECT_WITHIN_BUDGET(ours.lse, naive.lse, exact.lse);
  EXPECT_WITHIN_BUDGET(ours.dv, naive.dv, exact.dv);
}

// From tile to tile by less than a kernel may let pass (a factor of 2^8), which adds up.
TEST_P(HardGatesBudget, RaisesTheMaximumLittleByLittle) {
  for (const double step : {3.0, 6.0}) {
    AttentionInputs in = inputs_in_one_direction(40, 1100);
    in.log_gate.clamp_min_(-1e-3);
    for (int64_t key = 1000, n = 1; key > 0; key -= 60, ++n) {
      raise_keys(in, key, step * static_cast<double>(n));
    }
    expect_within_budget_of_rounded_logits(in);
  }
}

// Keys that gates of hundreds do not hide, before the tile of the gate and in it.
TEST_P(HardGatesBudget, ShowsKeysThatOutweighTheGatesBetween) {
  AttentionInputs in = inputs_in_one_direction(40, 1100);
  in.log_gate.clamp_min_(-0.02);
  in.log_gate.select(1, 1000).fill_(-30);
  in.log_gate.select(1, 780).fill_(-90);
  in.log_gate.select(1, 420).fill_(-480);
  raise_keys(in, 985, 34);  // the gate's own tile
  raise_keys(in, 765, 135);
  raise_keys(in, 405, 630);
  raise_keys(in, 200, 634);
  expect_within_budget_of_rounded_logits(in);
}

}  // namespace
}  // namespace reynard::attention
