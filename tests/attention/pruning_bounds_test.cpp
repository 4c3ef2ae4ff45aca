// What the rules of pruning are told: bounds of every head and row, how many keys there are, how
// much the nearest ones weigh, and the share of the tolerance.

#include "reynard/attention/bias.h"
#include "reynard/attention/pruning.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::AttentionShape;

constexpr PruningRule kBothRules[] = {PruningRule::kTight, PruningRule::kPublished};

// Gates of one value for each head, so slow that a nat more or less moves the start of one head or
// another by a block.
void fill_slow_gates(at::Tensor& log_gate) {  // (B, T, H)
  for (int64_t h = 0; h < log_gate.size(2); ++h) {
    log_gate.select(2, h).fill_(-0.05 - 0.002 * static_cast<double>(h));
  }
}

TEST(Pruning, EveryHeadOfEveryRowHasItsOwnBound) {
  constexpr int64_t kLength = 700;
  AttentionInputs in = test::random_inputs(
      {.B = 2, .Tq = kLength, .Tk = kLength, .H = 2, .G = 2, .D = 64}, at::kFloat, 1);
  const at::Tensor longer = at::tensor({1.0F, 4.0F, 6.0F, 0.3F}).view({2, 2});
  in.q.mul_(test::on_test_device(longer.view({2, 1, 2, 1})));
  in.log_gate.fill_(-0.1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor q = in.q.to(dtype), k = in.k.to(dtype);
    for (const at::Tensor& bound : {at::Tensor(), test::on_test_device(longer * 5)}) {
      for (const PruningRule rule : kBothRules) {
        const auto starts = [&](int64_t b, int64_t h, int64_t count) {
          const auto some = [&](const at::Tensor& x, int64_t heads) {
            return x.slice(0, b, b + count).slice(heads, h, h + count);
          };
          return attention(some(q, 2),
                           some(k, 2),
                           some(k, 2),
                           some(in.log_gate, 2),
                           {},
                           bound.defined() ? some(bound, 1).contiguous() : bound,
                           {0, -5, rule})
              .start;
        };
        const at::Tensor all = starts(0, 0, 2);
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t h = 0; h < 2; ++h) {
            EXPECT_BITWISE_EQUAL(all[b][h], starts(b, h, 1)[0][0])
                << config::name_of(rule) << " " << b << " " << h;
          }
        }
        EXPECT_GT(all[1][1].max().item<int32_t>(), all[1][0].max().item<int32_t>());
      }
    }
  }
}

// Only parts that can be pruned share the tolerance, and each gets as much: here beside keys that
// nobody sees.
TEST(Pruning, PartsWithGatesShareTheToleranceEqually) {
  constexpr int64_t kLength = 1024, kHeads = 16;
  AttentionInputs in =
      test::random_inputs({.B = 1, .Tq = kLength, .Tk = kLength, .H = kHeads, .G = 1, .D = 16});
  fill_slow_gates(in.log_gate);
  const at::Tensor sums = gate_sums(in.log_gate);
  const at::Tensor bound = test::on_test_device(at::full({kHeads}, 2.0F));
  const at::Tensor unseen = test::on_test_device(at::full({1, kLength}, 10, at::kInt));
  const KeyPart part = {in.k, in.v, sums, {}, /*causal=*/true};
  const KeyPart few = {in.k.slice(1, 0, 10), in.v.slice(1, 0, 10), {}, unseen, /*causal=*/false};
  KeyPart few_with_gates = few;
  few_with_gates.sums = sums.slice(2, 0, 10).contiguous();
  for (const PruningRule rule : kBothRules) {
    SCOPED_TRACE(config::name_of(rule));
    const auto starts = [&](const std::vector<KeyPart>& parts, double log_tolerance) {
      return attention(in.q, sums, parts, bound, {0, log_tolerance, rule}).start;
    };
    const at::Tensor alone = starts({part}, -5), half = starts({part}, -5 - std::log(2.0));
    EXPECT_GT(half.max().item<int32_t>(), 0);
    EXPECT_TRUE(alone.gt(half).any().item<bool>());
    EXPECT_BITWISE_EQUAL(starts({part, few}, -5), alone);
    EXPECT_BITWISE_EQUAL(starts({part, few_with_gates}, -5), half);
  }
}

// The keys that are counted are those of a query's own document.
TEST(Pruning, DocumentsOfAPackArePrunedAsTheyAreAlone) {
  constexpr int64_t kFirst = 1024, kSecond = 384, kHeads = 16;
  const AttentionShape shape = {
      .B = 1, .Tq = kFirst + kSecond, .Tk = kFirst + kSecond, .H = kHeads, .G = 1, .D = 16};
  AttentionInputs in = test::random_inputs(shape);
  fill_slow_gates(in.log_gate);
  const at::Tensor bound = test::on_test_device(at::full({kHeads}, 2.0F));
  const at::Tensor first = test::first_keys(shape, {.documents = {kFirst}});
  const auto starts = [&](int64_t begin, int64_t end, const at::Tensor& first_key) {
    const auto some = [&](const at::Tensor& x) { return x.slice(1, begin, end); };
    const AttentionOptions options = {0, -5, PruningRule::kPublished};
    return attention(
               some(in.q), some(in.k), some(in.v), some(in.log_gate), first_key, bound, options)
        .start;
  };
  const at::Tensor alone = starts(kFirst, kFirst + kSecond, {});
  EXPECT_GT(alone.max().item<int32_t>(), 0);
  EXPECT_BITWISE_EQUAL(starts(0, kFirst + kSecond, first),
                       at::cat({starts(0, kFirst, {}), alone + kFirst}, 2));
}

// Where no query sees itself all keys may weigh little: they are dropped for what they weigh beside
// the nearest ones.
TEST(Pruning, KeysAreComparedWithTheNearestOnesHoweverFarTheseAre) {
  constexpr int64_t kKeys = 1024;
  constexpr double kBefore = -30;  // of the query beside the last key
  for (const PruningRule rule : kBothRules) {
    const auto last_start = [&](double gate) {
      at::Tensor log_gate = at::zeros({1, kKeys, 1});
      log_gate[0][kKeys / 2][0] = gate;
      const at::Tensor sums = gate_sums(test::on_test_device(log_gate));
      const at::Tensor keys = test::on_test_device(at::zeros({1, kKeys, 1, 16}));
      const KeyPart part = {keys, keys, sums, {}, /*causal=*/false};
      const at::Tensor query_sums = (sums.slice(2, kKeys - 1) + kBefore).contiguous();
      const at::Tensor bound = test::on_test_device(at::zeros({1}));
      return attention(keys.slice(1, 0, 1), query_sums, {&part, 1}, bound, {0, -10, rule})
          .start.max()
          .item<int32_t>();
    };
    EXPECT_EQ(last_start(-2), 0) << "an eighth of the mass was dropped";
    EXPECT_EQ(last_start(-20), kKeys / 2);
  }
}

}  // namespace
}  // namespace reynard::attention
