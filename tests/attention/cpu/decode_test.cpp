// Decode from pages on every instruction-set path: error budget over page contents, head
// dimensions, groups and first keys; equal bits for any number of threads; nothing else is read.

#include "reynard/attention/cpu/decode.h"

#include "reynard/attention/bias.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/path.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/forced_path.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace reynard::attention::cpu {
namespace {

using test::AttentionInputs;
using test::AttentionShape;
using test::random_inputs;

class Decode : public test::OnEachCpuPath {};

INSTANTIATE_TEST_SUITE_P(Cpu, Decode, testing::ValuesIn(test::path_names()), [](const auto& i) {
  return i.param;
});

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The keys and values of `in` in pages that lie in any order in a pool twice as large; whatever no
// token fills is NaN.
DecodeArguments in_shuffled_pages(const AttentionInputs& in) {
  const int64_t S = in.k.size(0), T = in.k.size(1), G = in.k.size(2), D = in.k.size(3);
  const int64_t H = in.q.size(2), N = (T + kPageTokens - 1) / kPageTokens;
  DecodeArguments a;
  a.q = in.q.select(1, 0).contiguous();
  a.keys = at::full({2 * S * G * N, kPageTokens, D}, kNaN, in.k.options());
  a.values = a.keys.clone();
  a.sums = at::full({2 * S * G * N, H / G, kPageTokens}, kNaN, at::kDouble);
  a.page_table = at::randperm(2 * S * G * N, at::kInt).slice(0, 0, S * G * N).reshape({S, G, N});
  a.lengths = at::full({S}, T, at::kLong);
  a.options.scale = 1 / std::sqrt(static_cast<double>(D));
  const at::Tensor sums = gate_sums(in.log_gate).detach();  // (S, H, T)
  for (int64_t s = 0; s < S; ++s) {
    for (int64_t g = 0; g < G; ++g) {
      for (int64_t n = 0; n < N; ++n) {
        const int64_t begin = n * kPageTokens, count = std::min(kPageTokens, T - begin);
        const auto page = a.page_table[s][g][n].item<int32_t>();
        const auto tokens = [&](const at::Tensor& x) {
          return x[s].select(1, g).slice(0, begin, begin + count).detach();
        };
        a.keys[page].slice(0, 0, count).copy_(tokens(in.k));
        a.values[page].slice(0, 0, count).copy_(tokens(in.v));
        const at::Tensor heads = sums[s].slice(0, g * (H / G), (g + 1) * (H / G));
        a.sums[page].slice(1, 0, count).copy_(heads.slice(1, begin, begin + count));
      }
    }
  }
  return a;
}

void expect_decode_within_budget(const AttentionInputs& in) {
  DecodeArguments a = in_shuffled_pages(in);
  if (in.first_key.defined()) a.first_key = in.first_key.select(1, 0).contiguous();
  const DecodeOutput result = decode(a);
  const auto naive = test::run_reference(in), exact = test::run_reference(test::in_double(in));
  EXPECT_WITHIN_BUDGET(result.out, naive.out.select(1, 0), exact.out.select(1, 0));
  EXPECT_WITHIN_BUDGET(result.lse, naive.lse.select(2, 0), exact.lse.select(2, 0));
}

TEST_P(Decode, StaysInTheErrorBudget) {
  const AttentionShape shapes[] = {
      {.B = 2, .Tq = 1, .Tk = 333, .H = 4, .G = 2, .D = 64},
      {.B = 8, .Tq = 1, .Tk = 1, .H = 8, .G = 4, .D = 32},
      {.B = 1, .Tq = 1, .Tk = 2500, .H = 2, .G = 2, .D = 128},
      {.B = 1, .Tq = 1, .Tk = 1100, .H = 6, .G = 1, .D = 80},
      {.B = 3, .Tq = 1, .Tk = 65, .H = 2, .G = 1, .D = 37},
      {.B = 1, .Tq = 1, .Tk = 700, .H = 1, .G = 1, .D = 256},
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const AttentionShape& shape : shapes) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " D" + std::to_string(shape.D));
      AttentionInputs in = random_inputs(shape, dtype, /*seed=*/2, /*gate_mean=*/5);
      expect_decode_within_budget(in);
      in.first_key = at::full({shape.B, 1}, shape.Tk / 2, at::kInt);
      expect_decode_within_budget(in);
    }
  }
}

// Rows of multiples, up to 127, of a power of two: int8 pages keep them exactly.
at::Tensor rows_of_codes(const at::Tensor& like, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor codes = at::randint(-127, 128, like.sizes(), generator, at::kFloat);
  const at::Tensor exponents = at::randint(-7, -4, like.sizes().slice(0, 3), generator, at::kFloat);
  return codes * exponents.exp2().unsqueeze(3);
}

// Pages of such rows as int8; what no token fills has the scale NaN.
at::Tensor take_codes(at::Tensor& pages) {
  const at::Tensor is_free = pages.isnan().any(-1);
  const at::Tensor rows = pages.nan_to_num(0);
  const at::Tensor scales = (rows.abs().amax(-1) / 127).clamp_min(1e-9).log2().ceil().exp2();
  pages = (rows / scales.unsqueeze(2)).to(at::kChar);
  return scales.masked_fill(is_free, kNaN);
}

TEST_P(Decode, OfInt8PagesStaysInTheErrorBudget) {
  for (const int64_t D : {64, 128, 80, 37}) {
    SCOPED_TRACE("D" + std::to_string(D));
    AttentionInputs in = random_inputs({.B = 2, .Tq = 1, .Tk = 1100, .H = 4, .G = 2, .D = D},
                                       at::kFloat,
                                       /*seed=*/5,
                                       /*gate_mean=*/5);
    in.k = rows_of_codes(in.k, 6), in.v = rows_of_codes(in.v, 7);
    DecodeArguments a = in_shuffled_pages(in);
    const at::Tensor key_scales = take_codes(a.keys), value_scales = take_codes(a.values);
    a.scales = at::stack({key_scales, value_scales}, 1).contiguous();
    const DecodeOutput result = decode(a);
    const auto naive = test::run_reference(in), exact = test::run_reference(test::in_double(in));
    EXPECT_WITHIN_BUDGET(result.out, naive.out.select(1, 0), exact.out.select(1, 0));
    EXPECT_WITHIN_BUDGET(result.lse, naive.lse.select(2, 0), exact.lse.select(2, 0));
  }
}

TEST_P(Decode, BitsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const DecodeArguments a = in_shuffled_pages(
      random_inputs({.B = 1, .Tq = 1, .Tk = 3000, .H = 4, .G = 2, .D = 64}, at::kBFloat16));
  at::set_num_threads(1);
  const DecodeOutput one = decode(a);
  at::set_num_threads(3);
  const DecodeOutput three = decode(a);
  at::set_num_threads(threads);
  EXPECT_BITWISE_EQUAL(one.out, three.out);
  EXPECT_BITWISE_EQUAL(one.lse, three.lse);
}

// The softmax of all keys of one sequence and key head by one of the table's two entries:
// (group, 2 + D).
at::Tensor softmax_of_run(const DecodeArguments& a,
                          void (*decode)(const PageRun&, const RunSoftmax&, char*),
                          int64_t scratch_bytes) {
  const int64_t group = a.q.size(1), D = a.q.size(2);
  const at::Tensor q = a.q[0].to(at::kFloat), query_sums = at::zeros({group}, at::kDouble);
  const at::Tensor result = at::zeros({(2 + D) * group}, at::kFloat);
  const at::Tensor scratch = at::empty({scratch_bytes + 64}, at::kByte);
  const std::vector<KeyRange> ranges(group, {.begin = 3, .end = a.lengths[0].item<int64_t>()});
  PageRun run;
  run.keys = a.keys.const_data_ptr(), run.values = a.values.const_data_ptr();
  run.element = a.keys.scalar_type() == at::kFloat ? Element::kFloat : Element::kBFloat16;
  run.D = D, run.group = group, run.scale = a.options.scale;
  run.sums = a.sums.const_data_ptr<double>(), run.query_sums = query_sums.data_ptr<double>();
  run.pages = a.page_table.const_data_ptr<int32_t>(), run.num_pages = a.page_table.numel();
  run.q = q.data_ptr<float>(), run.ranges = ranges.data();
  auto* out = result.data_ptr<float>();
  char* bytes = reinterpret_cast<char*>(scratch.data_ptr<uint8_t>());
  bytes += (64 - reinterpret_cast<uintptr_t>(bytes) % 64) % 64;
  decode(run, {.largest = out, .total = out + group, .out = out + 2 * group}, bytes);
  return result;
}

// Where lines are asked for changes nothing else; a machine's calls take one of the two.
TEST_P(Decode, ReadsTheSameThroughEitherLevelOfTheCache) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t D : {64, 80, 37}) {
      SCOPED_TRACE("D" + std::to_string(D));
      DecodeArguments a = in_shuffled_pages(
          random_inputs({.B = 1, .Tq = 1, .Tk = 700, .H = 2, .G = 1, .D = D}, dtype));
      a.page_table = a.page_table.contiguous();
      const bool is_float = dtype == at::kFloat;
      const KernelTable& kernels =
          current_path().kernels(is_float ? Element::kFloat : Element::kBFloat16);
      const int64_t bytes = kernels.decode_scratch_bytes(D, 2);
      const at::Tensor first = softmax_of_run(a, kernels.decode, bytes);
      EXPECT_GT(first.abs().min().item<float>(), 0);
      EXPECT_BITWISE_EQUAL(softmax_of_run(a, kernels.decode_through_second_level, bytes), first);
    }
  }
}

// Pruned in turn: a sequence without keys that may be seen, beside one with some.
TEST_P(Decode, AFirstKeyBehindTheEndLeavesNothing) {
  const AttentionInputs in = random_inputs({.B = 2, .Tq = 1, .Tk = 300, .H = 4, .G = 2, .D = 64},
                                           at::kFloat,
                                           /*seed=*/3,
                                           /*gate_mean=*/5);
  DecodeArguments a = in_shuffled_pages(in);
  a.masses = at::zeros({a.keys.size(0), 2}, at::kDouble);
  a.logit_bound = at::full({4}, 12.0F);
  for (const int64_t log_tolerance : {0, -10}) {
    a.options.log_pruning_tolerance = log_tolerance;
    for (const int beside : {0, 6400}) {
      a.first_key = at::tensor({6400, beside}, at::kInt);
      const DecodeOutput result = decode(a);
      const int64_t empty = beside == 0 ? 1 : 2;
      EXPECT_BITWISE_EQUAL(result.out.slice(0, 0, empty), at::zeros({empty, 4, 64}));
      EXPECT_TRUE(result.lse.slice(0, 0, empty).isneginf().all().item<bool>());
      EXPECT_TRUE(result.lse.slice(0, empty).isfinite().all().item<bool>());
    }
  }
}

// Logits that climb by hundreds from page to page: the running maximum must follow.
TEST_P(Decode, FollowsARisingMaximum) {
  AttentionInputs in =
      random_inputs({.B = 1, .Tq = 1, .Tk = 640, .H = 1, .G = 1, .D = 64}, at::kFloat);
  for (int64_t t = 0; t < 640; ++t) in.k.select(1, t).mul_(t / 64 + 1);
  in.q.mul_(20);
  expect_decode_within_budget(in);
}

// Of a bound that is not known: logits may be anything.
TEST_P(Decode, ABoundThatIsNaNPrunesNothing) {
  const AttentionInputs in = random_inputs({.B = 1, .Tq = 1, .Tk = 640, .H = 2, .G = 1, .D = 32},
                                           at::kFloat,
                                           /*seed=*/4,
                                           /*gate_mean=*/0);
  DecodeArguments a = in_shuffled_pages(in);
  a.masses = at::zeros({a.keys.size(0), 2}, at::kDouble);
  a.options.log_pruning_tolerance = -10;
  for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
    a.options.rule = rule;
    a.logit_bound = at::full({2}, 8.0F);
    EXPECT_GT(decode(a).start.min().item<int32_t>(), 0);
    a.logit_bound.fill_(kNaN);
    EXPECT_EQ(decode(a).start.max().item<int32_t>(), 0);
    // Zero times the norm of a broken key.
    DecodeArguments measured = a;
    measured.logit_bound = at::Tensor();
    measured.q = at::zeros_like(a.q);
    measured.norms = at::full({a.keys.size(0)}, 8.0F);
    EXPECT_GT(decode(measured).start.min().item<int32_t>(), 0);
    measured.norms[a.page_table[0][0][2].item<int32_t>()] = std::numeric_limits<float>::infinity();
    EXPECT_LE(decode(measured).start.max().item<int32_t>(), 2 * kPageTokens);
  }
}

TEST_P(Decode, ANaNInAVisibleKeyShows) {
  AttentionInputs in =
      random_inputs({.B = 1, .Tq = 1, .Tk = 200, .H = 1, .G = 1, .D = 32}, at::kFloat);
  in.k.select(1, 77).fill_(kNaN);
  EXPECT_TRUE(decode(in_shuffled_pages(in)).out.isnan().all().item<bool>());
}

}  // namespace
}  // namespace reynard::attention::cpu
