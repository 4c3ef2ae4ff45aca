// Decode from pages in any order, on every device: error budget over page contents, head
// dimensions, groups and first keys; maxima that rise; what a bound that is not known prunes.

#include "reynard/attention/cache.h"
#include "reynard/attention/part_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/shuffled_pages.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <utility>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::AttentionShape;
using test::in_shuffled_pages;
using test::on_test_device;
using test::random_inputs;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

DecodeOutput decoded(const DecodeArguments& a) {
  return part_kernels(a.q).decode(a);
}

// has_large_logits: hundreds, whose rounding to f32 shows.
void expect_decoded_within_budget(const AttentionInputs& in, bool has_large_logits = false) {
  const DecodeOutput ours = decoded(in_shuffled_pages(in));
  const auto naive = test::run_reference(in), exact = test::run_reference(test::in_double(in));
  const double noise = has_large_logits ? test::logit_rounding(in.q, in.k, exact.lse) : 0;
  const double diameter = 2 * in.v.abs().max().item<double>();
  EXPECT_WITHIN_BUDGET(ours.out, naive.out.select(1, 0), exact.out.select(1, 0), noise * diameter);
  EXPECT_WITHIN_BUDGET(ours.lse, naive.lse.select(2, 0), exact.lse.select(2, 0), noise);
}

// A kernel may take groups of more than four query heads by other instructions.
class PagedDecode : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Attention,
                         PagedDecode,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(PagedDecode, StaysInTheErrorBudget) {
  const AttentionShape shapes[] = {
      {.B = 2, .Tq = 1, .Tk = 333, .H = 4, .G = 2, .D = 64},
      {.B = 8, .Tq = 1, .Tk = 1, .H = 8, .G = 4, .D = 32},
      {.B = 1, .Tq = 1, .Tk = 2500, .H = 2, .G = 2, .D = 128},
      {.B = 1, .Tq = 1, .Tk = 1100, .H = 6, .G = 1, .D = 80},
      {.B = 3, .Tq = 1, .Tk = 65, .H = 2, .G = 1, .D = 37},
      {.B = 1, .Tq = 1, .Tk = 700, .H = 1, .G = 1, .D = 256},
      {.B = 2, .Tq = 1, .Tk = 1300, .H = 16, .G = 2, .D = 64},
      {.B = 1, .Tq = 1, .Tk = 900, .H = 20, .G = 1, .D = 128},
      {.B = 1, .Tq = 1, .Tk = 450, .H = 10, .G = 2, .D = 256},
  };
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(fmt::format("D{} H/G {}", shape.D, shape.H / shape.G));
    AttentionInputs in = random_inputs(shape, GetParam(), /*seed=*/2, /*gate_mean=*/5);
    expect_decoded_within_budget(in);
    in.first_key = on_test_device(at::full({shape.B, 1}, shape.Tk / 2, at::kInt));
    expect_decoded_within_budget(in);
  }
}

// Sums of hundreds and of tens of thousands before the keys that count.
TEST_P(PagedDecode, HoldsBehindShutGates) {
  for (const int64_t H : {2, 8}) {
    AttentionInputs in = random_inputs({.B = 1, .Tq = 1, .Tk = 700, .H = H, .G = 1}, GetParam());
    in.log_gate.slice(1, 100, 130).fill_(-1000);
    in.log_gate.select(1, 670).fill_(-600);
    in.log_gate.select(1, 690).fill_(-1000);
    expect_decoded_within_budget(in);
  }
}

// Logits that climb by hundreds from page to page: the running maximum must follow.
TEST_P(PagedDecode, FollowsARisingMaximum) {
  for (const auto& [H, D] : {std::pair{1, 64}, {8, 64}, {2, 128}, {20, 128}, {5, 256}}) {
    SCOPED_TRACE(fmt::format("D{} H {}", D, H));
    AttentionInputs in =
        random_inputs({.B = 1, .Tq = 1, .Tk = 640, .H = H, .G = 1, .D = D}, GetParam());
    for (int64_t t = 0; t < 640; ++t) in.k.select(1, t).mul_(t / kPageTokens + 1);
    in.q.mul_(20);
    expect_decoded_within_budget(in, /*has_large_logits=*/true);
  }
}

// Logits of -inf weigh nothing, wherever they lie: in the first page, in all of the pages that one
// thread works on, in some heads of a group only.
TEST_P(PagedDecode, LogitsOfMinusInfinityWeighNothing) {
  constexpr int64_t kKeys = 2500;
  for (const int64_t H : {1, 4, 16}) {
    for (const int64_t weightless : {64, 70, 2000}) {
      SCOPED_TRACE(fmt::format("H {}, {} keys", H, weightless));
      AttentionInputs in =
          random_inputs({.B = 1, .Tq = 1, .Tk = kKeys, .H = H, .G = 1}, GetParam());
      const DecodeArguments a = in_shuffled_pages(in);
      for (int64_t t = 0; t < weightless; ++t) {
        const int64_t page = a.page_table[0][0][t / kPageTokens].item<int64_t>();
        a.sums[page]
            .slice(0, H / 2)
            .select(1, t % kPageTokens)
            .fill_(std::numeric_limits<double>::infinity());
      }
      const DecodeOutput ours = decoded(a);
      in.first_key = on_test_device(at::full({1, 1}, weightless, at::kInt));
      const auto naive = test::run_reference(in), exact = test::run_reference(test::in_double(in));
      EXPECT_WITHIN_BUDGET(ours.out.slice(1, H / 2),
                           naive.out.select(1, 0).slice(1, H / 2),
                           exact.out.select(1, 0).slice(1, H / 2));
      EXPECT_WITHIN_BUDGET(ours.lse.slice(1, H / 2),
                           naive.lse.select(2, 0).slice(1, H / 2),
                           exact.lse.select(2, 0).slice(1, H / 2));
      EXPECT_TRUE(ours.out.isfinite().all().item<bool>());
    }
  }
}

// Pruned in turn: a sequence without keys that may be seen, beside one with some.
TEST_P(PagedDecode, AFirstKeyBehindTheEndLeavesNothing) {
  for (const int64_t group : {2, 8}) {
    const int64_t H = 2 * group;
    DecodeArguments a = in_shuffled_pages(random_inputs(
        {.B = 2, .Tq = 1, .Tk = 300, .H = H, .G = 2}, GetParam(), /*seed=*/3, /*gate_mean=*/5));
    a.masses = on_test_device(at::zeros({a.keys.size(0), group}, at::kDouble));
    a.logit_bound = on_test_device(at::full({H}, 12.0F));
    for (const double log_tolerance : {0.0, -10.0}) {
      a.options.log_pruning_tolerance = log_tolerance;
      for (const int beside : {0, 6400}) {
        a.first_key = on_test_device(at::tensor({6400, beside}, at::kInt));
        const DecodeOutput result = decoded(a);
        const int64_t empty = beside == 0 ? 1 : 2;
        const at::Tensor nothing = result.out.slice(0, 0, empty);
        EXPECT_BITWISE_EQUAL(nothing, at::zeros_like(nothing));
        EXPECT_TRUE(result.lse.slice(0, 0, empty).isneginf().all().item<bool>());
        EXPECT_TRUE(result.lse.slice(0, empty).isfinite().all().item<bool>());
      }
    }
  }
}

TEST_P(PagedDecode, NoPagesLeaveNothing) {
  for (const int64_t H : {2, 16}) {
    DecodeArguments a = in_shuffled_pages(
        random_inputs({.B = 3, .Tq = 1, .Tk = 1, .H = H, .G = 2, .D = 64}, GetParam()));
    a.page_table = a.page_table.slice(2, 0, 0).contiguous();
    a.lengths.zero_();
    const DecodeOutput result = decoded(a);
    EXPECT_BITWISE_EQUAL(result.out, at::zeros_like(result.out));
    EXPECT_TRUE(result.lse.isneginf().all().item<bool>());
    EXPECT_EQ(result.start.abs().max().item<int32_t>(), 0);
  }
}

// Of a bound that is not known: logits may be anything.
TEST_P(PagedDecode, ABoundThatIsNaNPrunesNothing) {
  for (const int64_t H : {2, 8}) {
    DecodeArguments a = in_shuffled_pages(random_inputs(
        {.B = 1, .Tq = 1, .Tk = 640, .H = H, .G = 1}, GetParam(), /*seed=*/4, /*gate_mean=*/0));
    a.masses = on_test_device(at::zeros({a.keys.size(0), H}, at::kDouble));
    a.options.log_pruning_tolerance = -10;
    const auto starts = [](const DecodeArguments& arguments) {
      return decoded(arguments).start.cpu();
    };
    for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
      a.options.rule = rule;
      a.logit_bound = on_test_device(at::full({H}, 8.0F));
      EXPECT_GT(starts(a).min().item<int32_t>(), 0);
      a.logit_bound.fill_(kNaN);
      EXPECT_EQ(starts(a).max().item<int32_t>(), 0);
      // Zero times the norm of a broken key.
      DecodeArguments measured = a;
      measured.logit_bound = at::Tensor();
      measured.q = at::zeros_like(a.q);
      measured.norms = on_test_device(at::full({a.keys.size(0)}, 8.0F));
      EXPECT_GT(starts(measured).min().item<int32_t>(), 0);
      measured.norms[a.page_table[0][0][2].item<int32_t>()] =
          std::numeric_limits<float>::infinity();
      EXPECT_LE(starts(measured).max().item<int32_t>(), 2 * kPageTokens);
    }
  }
}

TEST_P(PagedDecode, ANaNInAVisibleKeyShows) {
  for (const int64_t H : {1, 8}) {
    AttentionInputs in = random_inputs({.B = 1, .Tq = 1, .Tk = 200, .H = H, .G = 1}, GetParam());
    in.k.select(1, 77).fill_(kNaN);
    EXPECT_TRUE(decoded(in_shuffled_pages(in)).out.isnan().all().item<bool>());
  }
}

}  // namespace
}  // namespace reynard::attention
