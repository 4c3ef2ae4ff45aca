// Every instruction-set path that this machine has, forced through REYNARD_CPU_PATH: error budget
// on odd sizes with all options together, identities, packing, and what an unknown path says.

#include "reynard/attention/attention.h"
#include "reynard/attention/cpu/attention_cpu.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/path.h"
#include "reynard/attention/operand_of.h"
#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/forced_path.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace reynard::attention::cpu {
namespace {

using test::AttentionInputs;
using test::expect_same_bits;
using test::expect_within_budget;
using test::random_inputs;
using test::run_attention;

class KernelPath : public test::OnEachCpuPath {};

INSTANTIATE_TEST_SUITE_P(Cpu,
                         KernelPath,
                         testing::ValuesIn(test::path_names()),
                         [](const auto& info) { return info.param; });

TEST_P(KernelPath, IsTheOneInUse) {
  EXPECT_EQ(current_path().name, GetParam());
}

TEST_P(KernelPath, StaysInTheErrorBudgetWithEveryOption) {
  const test::AttentionShape shape{.B = 2, .Tq = 291, .Tk = 333, .H = 4, .G = 2, .D = 56};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    AttentionInputs inputs = random_inputs(shape, dtype, /*seed=*/3);
    inputs.first_key = test::first_keys(
        shape, {.documents = {70, 150, 151, 300}, .padding = {60, 3}, .window = 100});
    expect_within_budget(inputs);
  }
}

TEST_P(KernelPath, OpenGatesGiveTheBitsOfSoftmax) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionInputs inputs = random_inputs({.B = 1, .Tq = 150, .Tk = 190, .H = 2, .G = 1}, dtype);
    inputs.log_gate.zero_();
    const auto open = run_attention(inputs);
    inputs.log_gate = at::Tensor();
    expect_same_bits(open, run_attention(inputs));
  }
}

TEST_P(KernelPath, BitsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionInputs inputs =
        random_inputs({.B = 1, .Tq = 300, .Tk = 300, .H = 2, .G = 2, .D = 32}, dtype);
    at::set_num_threads(1);
    const auto one = run_attention(inputs);
    at::set_num_threads(3);
    const auto three = run_attention(inputs);
    expect_same_bits(one, three);
  }
  at::set_num_threads(threads);
}

TEST_P(KernelPath, KeysOfAnyNaNGiveNaNToAllThatSeeThem) {
  AttentionInputs inputs = random_inputs({.B = 1, .Tq = 200, .Tk = 200, .H = 1, .G = 1, .D = 32});
  for (const uint32_t bits : {0x7fc00000U, 0x7fc00001U, 0x7fffffffU, 0xffffffffU}) {
    inputs.k[0][5][0][3] = std::bit_cast<float>(bits);
    const auto result = run_attention(inputs);
    EXPECT_TRUE(result.out.slice(1, 5).isnan().all().item<bool>()) << std::hex << bits;
    EXPECT_TRUE(result.lse.slice(2, 5).isnan().all().item<bool>()) << std::hex << bits;
    EXPECT_TRUE(result.dv.slice(1, 0, 6).isnan().all().item<bool>()) << std::hex << bits;
    EXPECT_FALSE(result.out.slice(1, 0, 5).isnan().any().item<bool>()) << std::hex << bits;
  }
}

// Logits of -inf, as of masks in the keys: a query whose nearest keys have no weight lives on those
// before them, although the floor of its row is that of one that sees nothing.
TEST_P(KernelPath, KeepsTheKeysOfRowsWhoseNearestKeysWeighNothing) {
  constexpr int64_t kLength = 512;
  AttentionInputs inputs =
      random_inputs({.B = 1, .Tq = kLength, .Tk = kLength, .H = 1, .G = 1, .D = 32});
  inputs.q.fill_(1);
  inputs.k.zero_().slice(1, kLength - 200).fill_(-std::numeric_limits<double>::infinity());
  inputs.log_gate.fill_(-0.05);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor q = inputs.q.to(dtype), k = inputs.k.to(dtype), v = inputs.v.to(dtype);
    const at::Tensor whole = attention(q, k, v, inputs.log_gate).lse;
    for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
      const AttentionOptions options = {.log_pruning_tolerance = -10, .rule = rule};
      const at::Tensor kept = attention(q, k, v, inputs.log_gate, {}, {}, options).lse;
      EXPECT_LT((whole - kept).max().item<double>(), std::exp(-10) + 1e-5);
    }
  }
}

// As of a loss that divides by the norm of each output.
TEST_P(KernelPath, GradientsOfRowsThatSeeNothingHaveNoEffect) {
  const test::AttentionShape shape = {.B = 2, .Tq = 100, .Tk = 140, .H = 2, .G = 1, .D = 40};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    AttentionInputs inputs = random_inputs(shape, dtype);
    inputs.first_key = at::zeros({2, 100}, at::kInt);
    inputs.first_key[0].slice(0, 70).fill_(std::numeric_limits<int32_t>::max());
    const at::Tensor unseen = inputs.dout[0].slice(0, 70);
    unseen.zero_();
    const auto expected = run_attention(inputs);
    unseen.fill_(std::numeric_limits<double>::quiet_NaN());
    expect_same_bits(run_attention(inputs), expected);
  }
}

// Long rows of whole tiles, whose windows begin anywhere in one, of head dimensions that kernels
// may tell apart (budget_test.cpp has long rows of 64, 128 and 256). Gates take a tenth over a
// window: its first keys weigh as much as the others.
TEST_P(KernelPath, TakesLongRowsOfOtherHeadDimensions) {
  constexpr double kLargestError = 1e-2;  // of bf16, relative to the norm
  for (const int64_t D : {32, 96, 160, 192, 224}) {
    SCOPED_TRACE(D);
    const test::AttentionShape shape{.B = 1, .Tq = 140, .Tk = 1100, .H = 1, .G = 1, .D = D};
    AttentionInputs inputs = random_inputs(shape, at::kBFloat16, /*seed=*/7, /*gate_mean=*/9);
    inputs.first_key = test::first_keys(shape, {.window = 700 + D});
    const auto ours = run_attention(inputs), exact = test::run_reference(test::in_double(inputs));
    const auto error = [](const at::Tensor& x, const at::Tensor& of) {
      return ((x - of).norm() / of.norm()).item<double>();
    };
    EXPECT_LT(error(ours.out, exact.out), kLargestError);
    EXPECT_LT(error(ours.dq, exact.dq), kLargestError);
    EXPECT_LT(error(ours.dk, exact.dk), kLargestError);
    EXPECT_LT(error(ours.dv, exact.dv), kLargestError);
    EXPECT_TENSORS_NEAR(ours.lse.to(at::kDouble), exact.lse, 1e-5, 0);
  }
}

// Keys that more query blocks see than a kernel adds up in f32 at once: bf16 against f32 of the
// same values, whose kernels have blocks of other sizes.
TEST_P(KernelPath, AddsUpTheGradientsOfManyQueryBlocks) {
  const AttentionInputs in = random_inputs(
      {.B = 1, .Tq = 2400, .Tk = 2400, .D = 32}, at::kBFloat16, /*seed=*/9, /*gate_mean=*/7);
  AttentionInputs wide = in;
  for (at::Tensor* x : {&wide.q, &wide.k, &wide.v, &wide.dout}) *x = x->to(at::kFloat);
  const at::Tensor ours = run_attention(in).dlog_gate, exact = run_attention(wide).dlog_gate;
  EXPECT_LT(((ours - exact).norm() / exact.norm()).item<double>(), 1e-2);
}

// A row of equal weights, whose sums round the same way again and again, then a key that outweighs
// them by e^40: what the sums have lost must shrink with them.
TEST_P(KernelPath, ShrinksWhatSumsHaveLost) {
  constexpr int64_t kKeys = 65536, kDim = 16;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionInputs in = random_inputs({.B = 1, .Tq = 1, .Tk = kKeys, .D = kDim}, dtype);
    in.q.fill_(1);
    in.k.zero_();
    in.k.select(1, kKeys - 1).fill_(std::log(3.0) / std::sqrt(static_cast<double>(kDim)));
    in.k.select(1, 0).fill_(40 / std::sqrt(static_cast<double>(kDim)));
    EXPECT_NEAR(attention(in.q, in.k, in.v).lse.item<double>(), 40, 4e-6);  // an ulp
  }
}

// start hides keys exactly, wherever it falls in a tile, and skips blocks whole: NaN there is never
// read.
TEST_P(KernelPath, ReadsNoKeyBlockBeforeStart) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionInputs inputs =
        random_inputs({.B = 1, .Tq = 256, .Tk = 640, .H = 1, .G = 1}, dtype, /*seed=*/5);
    PartArguments arguments;
    arguments.q = inputs.q;
    arguments.part.k = inputs.k;
    arguments.part.v = inputs.v;
    arguments.scale = 0.125;
    arguments.start = at::full({1, 1, 2}, 300, at::TensorOptions().dtype(at::kInt));
    const ForwardPart expected = forward_part(arguments, dtype);
    const at::Tensor delta = row_products(inputs.dout, expected.out);
    const BackwardPart gradients =
        backward_part(arguments, inputs.dout, expected.lse, delta, dtype);

    arguments.part.k = inputs.k.clone();
    arguments.part.v = inputs.v.clone();
    arguments.part.k.slice(1, 0, 256).fill_(std::numeric_limits<double>::quiet_NaN());
    arguments.part.v.slice(1, 0, 256).fill_(std::numeric_limits<double>::quiet_NaN());
    const ForwardPart poisoned = forward_part(arguments, dtype);
    EXPECT_BITWISE_EQUAL(poisoned.out, expected.out);
    EXPECT_BITWISE_EQUAL(poisoned.lse, expected.lse);
    const BackwardPart again = backward_part(arguments, inputs.dout, expected.lse, delta, dtype);
    EXPECT_BITWISE_EQUAL(again.dq, gradients.dq);
    EXPECT_BITWISE_EQUAL(again.dk, gradients.dk);
    EXPECT_BITWISE_EQUAL(again.dk.slice(1, 0, 300), at::zeros_like(again.dk.slice(1, 0, 300)));

    arguments.start = at::Tensor();
    arguments.part.k = inputs.k.slice(1, 300);
    arguments.part.v = inputs.v.slice(1, 300);
    const double rounding = dtype == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_TENSORS_NEAR(expected.out, forward_part(arguments, dtype).out, rounding, rounding);
  }
}

// Pruned as it goes, a part has the starts of the rule applied on its own, and what follows from
// them, whether they lie before the nearest keys, where these begin, or among them.
TEST_P(KernelPath, PrunesAsItGoesLikeStepByStep) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t Tk : {1100, 1163}) {
      AttentionInputs inputs =
          random_inputs({.B = 2, .Tq = 700, .Tk = Tk, .H = 4, .G = 2}, dtype, /*seed=*/6);
      for (int64_t h = 0; h < 4; ++h) inputs.log_gate.select(2, h).fill_(-0.001 - 0.3 * h * h);
      inputs.first_key = test::first_keys({.B = 2, .Tq = 700, .Tk = Tk}, {.documents = {500}});
      const at::Tensor sums = gate_sums(inputs.log_gate);
      PartArguments arguments;
      arguments.q = inputs.q;
      arguments.query_sums = sums.slice(2, Tk - 700).contiguous();
      arguments.part = {inputs.k, inputs.v, sums, inputs.first_key, true};
      arguments.scale = 0.125;
      arguments.start = nearest_starts(inputs.q, arguments.part);
      const AttentionOptions options = {.scale = 0.125, .log_pruning_tolerance = -10};

      const at::Tensor nearest = arguments.start;
      const RowFloors floors = {.rows = floors_of_part(arguments, 0).lse};
      const at::Tensor start = attention::pruned_starts(
          inputs.q, arguments.query_sums, {&arguments.part, 1}, {}, options, floors)[0];
      for (const at::Tensor& seen : {start.lt(nearest), start.eq(nearest), start.gt(nearest)}) {
        EXPECT_TRUE(seen.any().item<bool>());
      }
      // Of the last queries of the most forgetful head, whose nearest keys begin before their
      // start.
      const int64_t first_kept = start[0][3][5].item<int32_t>();
      ASSERT_GT(first_kept, nearest[0][3][5].item<int32_t>());
      arguments.part.v.slice(1, 0, first_kept).fill_(std::numeric_limits<double>::quiet_NaN());
      arguments.start = start;
      const ForwardPart expected = forward_part(arguments, dtype);
      arguments.start = nearest;
      const PrunedForwardPart pruned = forward_tight(arguments, {}, options);
      EXPECT_BITWISE_EQUAL(pruned.start, start);
      EXPECT_TENSORS_NEAR(pruned.lse, expected.lse, 1e-5, 1e-5);
      const at::Tensor out = pruned.out.slice(1, 5 * 128).select(2, 3);
      EXPECT_TRUE(out.isfinite().all().item<bool>());
      const double rounding = dtype == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_TENSORS_NEAR(out, expected.out.slice(1, 5 * 128).select(2, 3), rounding, rounding);
    }
  }
}

// Its norm says nothing of its logits, wherever it lies among blocks that are pruned.
TEST_P(KernelPath, ABrokenKeyIsNotPruned) {
  constexpr int64_t kBroken = 300;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionInputs in = random_inputs(
        {.B = 1, .Tq = 1024, .Tk = 1024, .D = 64}, dtype, /*seed=*/8, /*gate_mean=*/0);
    AttentionOptions options = {.log_pruning_tolerance = -10};
    for (const PruningRule rule : {PruningRule::kTight, PruningRule::kPublished}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " " + std::string(config::name_of(rule)));
      options.rule = rule;
      const auto last_start = [&](const at::Tensor& k) {
        return attention(in.q, k, in.v, in.log_gate, {}, {}, options)
            .start[0][0][7]
            .item<int32_t>();
      };
      EXPECT_GT(last_start(in.k), kBroken + kKeyBlock);
      const at::Tensor k = in.k.clone();
      k.select(1, kBroken).select(2, 63).fill_(std::numeric_limits<double>::quiet_NaN());
      EXPECT_LE(last_start(k), kBroken);
    }
  }
}

float as_float(const char* data, bool is_bf16, int64_t index) {
  if (is_bf16) return static_cast<float>(reinterpret_cast<const at::BFloat16*>(data)[index]);
  return reinterpret_cast<const float*>(data)[index];
}

// Blocks are [key][padded D] and [padded D][key], with zeros past Tk and past D.
TEST_P(KernelPath, PacksKeysInBothOrders) {
  const Path path = find_path(GetParam());
  const int64_t Tk = 77, D = 37;
  const at::Tensor k =
      (at::arange(Tk * 2 * D, at::TensorOptions().dtype(at::kFloat)).remainder(251) + 1)
          .reshape({1, Tk, 2, D})
          .to(at::kBFloat16);
  const KernelTable& kernels = path.kernels(Element::kBFloat16);
  const int64_t dim = kernels.padded_head_dim(D), keys = kernels.keys_per_block;
  const bool is_bf16 = kernels.key_block_bytes(D) == keys * dim * 2;
  const auto block = [&] {
    return at::full({kernels.key_block_bytes(D) + 64}, 0xff, at::TensorOptions().dtype(at::kByte));
  };
  const auto aligned = [](const at::Tensor& t) {
    const auto address = reinterpret_cast<uintptr_t>(t.data_ptr());
    return reinterpret_cast<char*>((address + 63) / 64 * 64);
  };
  const at::Tensor rows = block(), columns = block();
  Problem p;
  p.B = 1, p.Tq = p.Tk = Tk, p.H = p.G = 2, p.D = D;
  p.k = p.v = {k.data_ptr(), k.stride(0), k.stride(1), k.stride(2), Element::kBFloat16};
  PackedKeys packed;
  packed.first_pair = 1;
  packed.num_pairs = 1;
  packed.key_rows = aligned(rows);
  packed.value_columns = aligned(columns);
  kernels.pack_keys(p, packed, /*pair=*/1, /*block=*/0);
  const at::Tensor head = k.select(2, 1).to(at::kFloat).contiguous();
  const auto values = head.accessor<float, 3>();
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t d = 0; d < dim; ++d) {
      const float expected = j < Tk && d < D ? values[0][j][d] : 0;
      ASSERT_EQ(as_float(packed.key_rows, is_bf16, j * dim + d), expected) << j << " " << d;
      ASSERT_EQ(as_float(packed.value_columns, is_bf16, d * keys + j), expected) << j << " " << d;
    }
  }
}

// Of rows [7, 7 + n) of the last two heads of the second batch row; all else is NaN.
TEST_P(KernelPath, FindsTheLargestNormOfTheRowsAskedFor) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t D : {1, 15, 16, 40, 64, 129}) {
      for (const int64_t n : {1, 3, 16, 64, 70}) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + " D" + std::to_string(D) + " " +
                     std::to_string(n) + " rows");
        const at::Tensor all =
            random_inputs({.B = 2, .Tq = 80, .Tk = 80, .H = 3, .G = 3, .D = D}, dtype).q;
        const auto asked = [&](const at::Tensor& x) {
          return x[1].narrow(0, 7, n).narrow(1, 1, 2);
        };
        const at::Tensor x = at::full_like(all, nan);
        asked(x).copy_(asked(all));
        const at::Tensor expected = std::get<0>(asked(all).to(at::kDouble).square().sum(-1).max(0));
        const Rows rows = {.x = operand_of(x),
                           .b = 1,
                           .first_head = 1,
                           .num_heads = 2,
                           .begin = 7,
                           .end = 7 + n,
                           .D = D};
        const KernelTable& kernels = current_path().kernels(rows.x.element);
        float largest[2];
        kernels.largest_squares(rows, largest);
        for (int64_t h = 0; h < 2; ++h) {
          const auto of_head = expected[h].item<double>();
          EXPECT_NEAR(largest[h], of_head, 1e-6 * of_head) << h;
        }
        // A broken value stays, whatever follows it.
        asked(x)[0][0][D - 1].fill_(nan);
        kernels.largest_squares(rows, largest);
        EXPECT_TRUE(std::isnan(largest[0]));
        EXPECT_FALSE(std::isnan(largest[1]));
      }
    }
  }
}

TEST(CpuPath, BestComesFirstAndPortableIsAlwaysThere) {
  EXPECT_EQ(available_paths().back().name, "portable");
  const test::ForcedPath best("");
  EXPECT_EQ(current_path().name, available_paths().front().name);
}

TEST(CpuPath, UnknownNameIsAnErrorThatListsThisMachines) {
  const test::ForcedPath forced("sse9");
  try {
    current_path();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("REYNARD_CPU_PATH = sse9"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("portable"), std::string::npos) << e.what();
  }
}

// Rows [1, 2, 3] . [4, 5, 6] in f64, strided.
TEST(RowProducts, AreSummedInDouble) {
  const at::Tensor x = at::arange(6, at::TensorOptions().dtype(at::kFloat)).reshape({1, 2, 1, 3});
  const at::Tensor both = at::stack({x, x + 1}, 2).select(2, 1);  // (1, 2, 1, 3), not contiguous
  const at::Tensor products = row_products(both, x + 1);
  EXPECT_EQ(products.scalar_type(), at::kDouble);
  EXPECT_EQ(products[0][0][0].item<double>(), 1 + 4 + 9);
  EXPECT_EQ(products[0][0][1].item<double>(), 16 + 25 + 36);
}

}  // namespace
}  // namespace reynard::attention::cpu
