// Decode from pages on every instruction-set path: what ../decode_test.cpp cannot ask of every
// device. Pages of int8, equal bits for any number of threads, and lines through either level of
// the cache.

#include "reynard/attention/cpu/decode.h"

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/path.h"
#include "tests/support/compare.h"
#include "tests/support/forced_path.h"
#include "tests/support/shuffled_pages.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace reynard::attention::cpu {
namespace {

using test::AttentionInputs;
using test::in_shuffled_pages;
using test::random_inputs;

class Decode : public test::OnEachCpuPath {};

INSTANTIATE_TEST_SUITE_P(Cpu, Decode, testing::ValuesIn(test::path_names()), [](const auto& i) {
  return i.param;
});

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

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
    AttentionInputs in = random_inputs({.B = 2, .Tq = 1, .Tk = 1101, .H = 4, .G = 2, .D = D},
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

// NaN beside the first key, which is the last of its word of values, and in pages before it.
TEST_P(Decode, WhatLiesBeforeTheFirstKeyMayBeAnything) {
  constexpr int64_t kFirst = 171;
  const test::AttentionShape shape{.B = 1, .Tq = 1, .Tk = 300, .H = 2, .G = 1, .D = 80};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kChar}) {
    SCOPED_TRACE(c10::toString(dtype));
    const bool is_int8 = dtype == at::kChar;
    AttentionInputs in = random_inputs(shape, is_int8 ? at::kFloat : dtype);
    in.first_key = at::full({1, 1}, kFirst, at::kInt);
    const auto decoded = [&] {
      DecodeArguments a = in_shuffled_pages(in);
      if (is_int8) {
        const at::Tensor key_scales = take_codes(a.keys), value_scales = take_codes(a.values);
        a.scales = at::stack({key_scales, value_scales}, 1).contiguous();
      }
      return decode(a);
    };
    const DecodeOutput expected = decoded();
    in.k.slice(1, 0, kFirst).fill_(kNaN);
    in.v.slice(1, 0, kFirst).fill_(kNaN);
    const DecodeOutput result = decoded();
    EXPECT_TRUE(expected.out.isfinite().all().item<bool>());
    EXPECT_BITWISE_EQUAL(result.out, expected.out);
    EXPECT_BITWISE_EQUAL(result.lse, expected.lse);
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
  run.as_rows = true;
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

}  // namespace
}  // namespace reynard::attention::cpu
