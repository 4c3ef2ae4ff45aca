// Error budget: forward and every gradient of the operator against the f64 definition, at most
// twice the error of the naive formula in the same dtype; over odd sizes and every option.

#include "reynard/attention/attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace reynard::attention {
namespace {

using test::AttentionGradients;
using test::AttentionInputs;
using test::AttentionShape;
using test::expect_within_budget;
using test::first_keys;
using test::in_double;
using test::longest_row;
using test::random_inputs;
using test::run_attention;
using test::run_reference;
using test::Visibility;

struct Case {
  std::string name;
  AttentionShape shape;
  bool gated = true;
  Visibility visibility = Visibility();
};

std::vector<Case> cases() {
  return {
      {"OneToken", {.B = 2, .Tq = 1, .Tk = 1, .H = 2, .G = 1, .D = 64}},
      {"ThreeTokens", {.B = 1, .Tq = 3, .Tk = 3, .H = 4, .G = 2, .D = 32}},
      {"BelowATile", {.B = 2, .Tq = 63, .Tk = 63, .H = 2, .G = 2, .D = 64}},
      {"Odd", {.B = 2, .Tq = 113, .Tk = 113, .H = 6, .G = 2, .D = 64}},
      {"OddLong", {.B = 1, .Tq = 1023, .Tk = 1023, .H = 2, .G = 1, .D = 64}},
      {"FewerQueries", {.B = 2, .Tq = 65, .Tk = 300, .H = 2, .G = 1, .D = 64}},
      {"OneQuery", {.B = 3, .Tq = 1, .Tk = 257, .H = 4, .G = 2, .D = 64}},
      {"ManyHeads", {.B = 10, .Tq = 20, .Tk = 150, .H = 32, .G = 16, .D = 64}},
      {"ManyRows", {.B = 5, .Tq = 300, .Tk = 300, .H = 8, .G = 4, .D = 128}},
      {"SmallHead", {.B = 1, .Tq = 129, .Tk = 129, .H = 2, .G = 2, .D = 8}},
      {"OddHead", {.B = 1, .Tq = 131, .Tk = 131, .H = 2, .G = 1, .D = 37}},
      {"Head80", {.B = 1, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = 80}},
      {"Head128", {.B = 1, .Tq = 257, .Tk = 257, .H = 2, .G = 1, .D = 128}},
      {"Head256", {.B = 1, .Tq = 150, .Tk = 190, .H = 2, .G = 1, .D = 256}},
      {"Head160", {.B = 1, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = 160}},
      {"Head136", {.B = 1, .Tq = 200, .Tk = 260, .H = 2, .G = 2, .D = 136}},
      // On a GPU more tasks of the backward than processors.
      {"ManyTasks256", {.B = 7, .Tq = 100, .Tk = 100, .H = 10, .G = 10, .D = 256}},
      {"Head256Padding",
       {.B = 2, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = 256},
       true,
       {.padding = {0, 137}}},
      {"Head200", {.B = 1, .Tq = 300, .Tk = 430, .H = 2, .G = 2, .D = 200}},
      {"Head256Documents",
       {.B = 1, .Tq = 400, .Tk = 400, .H = 4, .G = 2, .D = 256},
       true,
       {.documents = {1, 64, 65, 200, 399}, .window = 150}},
      {"Group4", {.B = 1, .Tq = 150, .Tk = 210, .H = 8, .G = 2, .D = 64}},
      {"Group8", {.B = 1, .Tq = 190, .Tk = 190, .H = 16, .G = 2, .D = 128}},
      {"OneKeyHead",
       {.B = 1, .Tq = 300, .Tk = 300, .H = 6, .G = 1, .D = 256},
       true,
       {.documents = {1, 64, 65, 200, 299}}},
      {"Ungated", {.B = 2, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = 64}, false},
      {"Window", {.B = 2, .Tq = 300, .Tk = 300, .H = 2, .G = 1, .D = 64}, true, {.window = 70}},
      {"Padding",
       {.B = 2, .Tq = 200, .Tk = 200, .H = 2, .G = 2, .D = 64},
       true,
       {.padding = {0, 137}}},
      {"Documents",
       {.B = 1, .Tq = 400, .Tk = 400, .H = 2, .G = 2, .D = 64},
       true,
       {.documents = {1, 64, 65, 200, 399}}},
      {"Everything",
       {.B = 2, .Tq = 333, .Tk = 400, .H = 4, .G = 2, .D = 64},
       true,
       {.documents = {70, 150, 151, 320}, .padding = {90, 3}, .window = 100}},
  };
}

class Budget : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {};

TEST_P(Budget, HoldsForwardAndBackward) {
  const auto& [c, dtype] = GetParam();
  AttentionInputs inputs = random_inputs(c.shape, dtype);
  if (!c.gated) inputs.log_gate = at::Tensor();
  if (c.visibility.hides_keys()) inputs.first_key = first_keys(c.shape, c.visibility);
  expect_within_budget(inputs);
}

std::string test_name(const testing::TestParamInfo<std::tuple<Case, at::ScalarType>>& info) {
  return fmt::format("{}{}", std::get<0>(info.param).name, c10::toString(std::get<1>(info.param)));
}

AttentionInputs document_of(const AttentionInputs& in, int64_t begin, int64_t end) {
  const auto rows = [&](const at::Tensor& x) { return x.slice(1, begin, end); };
  return {.q = rows(in.q),
          .k = rows(in.k),
          .v = rows(in.v),
          .log_gate = rows(in.log_gate),
          .first_key = {},
          .dout = rows(in.dout),
          .dlse = in.dlse.slice(2, begin, end)};
}

// Kernels may take the keys of a long row in groups (2,048 keys and more of one on Hopper). Its
// documents reach over their borders, and each is short enough for the definition.
TEST(LongRowBudget, HoldsWhereKeysAreTakenInGroups) {
  constexpr int64_t kDocument = 1400, kLength = 3 * kDocument;
  constexpr double kLargestError = 1e-2;  // of bf16, relative to the norm
  for (const int64_t D : {64, 128, 256}) {
    const AttentionShape shape = {.B = 1, .Tq = kLength, .Tk = kLength, .H = 1, .G = 1, .D = D};
    AttentionInputs in = random_inputs(shape, at::kBFloat16, 3, 7);
    in.first_key = first_keys(shape, {.documents = {kDocument, 2 * kDocument}});
    const AttentionGradients all = run_attention(in);
    for (int64_t begin = 0; begin < kLength; begin += kDocument) {
      const int64_t end = begin + kDocument;
      const AttentionGradients exact = run_reference(in_double(document_of(in, begin, end)));
      const auto expect_near = [&](const char* name, const at::Tensor& ours, const at::Tensor& x) {
        const double error = ((ours.slice(1, begin, end) - x).norm() / x.norm()).item<double>();
        EXPECT_LT(error, kLargestError) << name << " of D = " << D << ", keys from " << begin;
      };
      expect_near("out", all.out, exact.out);
      expect_near("dq", all.dq, exact.dq);
      expect_near("dk", all.dk, exact.dk);
      expect_near("dv", all.dv, exact.dv);
      expect_near("dlog_gate", all.dlog_gate, exact.dlog_gate);
    }
  }
}

// So many that a kernel may choose other tiles.
TEST(LongRowBudget, HoldsForManyKeys) {
  expect_within_budget(
      random_inputs({.B = 1, .Tq = 300, .Tk = 8200, .H = 1, .G = 1, .D = 128}, at::kBFloat16));
}

// Gates that take e^-13 over a row of 65,536 keys, so that all of these count, behind a few shut
// ones, so that sums of the gates are large beside their differences. Kernels add up weights and
// weighted values in f32, tile by tile: of out, whose elements are small here, that leaves the
// roundings of n additions, which are independent: each 2^-24, sqrt(n) of them in either sum. delta
// has them as well as the rounding of out to the dtype, and enters the gradient of every gate.
TEST(LongRowBudget, HoldsForARowOf65536GatedKeys) {
  constexpr int64_t kKeys = 65536, kTile = 64;
  const double of_sums = 2 * 0x1p-24 * std::sqrt(static_cast<double>(kKeys / kTile));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    AttentionInputs in = random_inputs(
        {.B = 1, .Tq = 48, .Tk = kKeys, .H = 1, .G = 1, .D = 64}, dtype, 1, /*gate_mean=*/9);
    in.log_gate.slice(1, 0, 10).fill_(-1000);
    const AttentionGradients ours = run_attention(in), naive = run_reference(in);
    const AttentionGradients exact = run_reference(in_double(in));
    const double delta =
        (of_sums + test::rounding_of(dtype)) * longest_row(in.dout) * longest_row(exact.out);
    EXPECT_WITHIN_BUDGET(
        ours.out, naive.out, exact.out, of_sums * exact.out.abs().max().item<double>());
    EXPECT_WITHIN_BUDGET(ours.lse, naive.lse, exact.lse);
    EXPECT_WITHIN_BUDGET(ours.dq, naive.dq, exact.dq);
    EXPECT_WITHIN_BUDGET(ours.dk, naive.dk, exact.dk);
    EXPECT_WITHIN_BUDGET(ours.dv, naive.dv, exact.dv);
    EXPECT_WITHIN_BUDGET(ours.dlog_gate, naive.dlog_gate, exact.dlog_gate, delta);
  }
}

// All keys but one have the same weight, a third of that one's: additions of equal sums round the
// same way a thousand times.
TEST(LongRowBudget, HoldsWhereManyWeightsAreEqual) {
  constexpr int64_t kDim = 16;
  AttentionInputs in =
      random_inputs({.B = 1, .Tq = 3, .Tk = 65536, .H = 1, .G = 1, .D = kDim}, at::kFloat);
  in.log_gate = at::Tensor();
  in.q = at::ones_like(in.q);
  in.k = at::zeros_like(in.k);
  in.k.select(1, 65533).fill_(std::log(3.0) / std::sqrt(static_cast<double>(kDim)));
  const double exact = std::log(65533 + 3.0);  // of the first query, which sees 65,534 keys
  in.v = at::ones_like(in.v);
  const AttentionGradients ours = run_attention(in);
  EXPECT_NEAR(ours.lse.flatten()[0].item<double>(), exact, 1e-6);  // one ulp
  EXPECT_TENSORS_NEAR(ours.out, in.v.slice(1, 0, 3), 5e-7, 0);
}

INSTANTIATE_TEST_SUITE_P(Attention,
                         Budget,
                         testing::Combine(testing::ValuesIn(cases()),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         test_name);

}  // namespace
}  // namespace reynard::attention
