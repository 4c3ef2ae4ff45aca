// What must hold exactly or to rounding whatever the kernels do: variants that coincide, parts that
// add up, gates that are shut, rows that see nothing, and results that do not depend on threads.

#include "reynard/attention/attention.h"
#include "reynard/attention/bias.h"
#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/errors.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace reynard::attention {
namespace {

using test::AttentionGradients;
using test::AttentionInputs;
using test::AttentionShape;
using test::expect_same_bits;
using test::first_keys;
using test::random_inputs;
using test::run_attention;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Identities, ConstantGateIsAlibiWithSlopeMinusLogGate) {
  AttentionInputs in = random_inputs({.B = 1, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = 64});
  const double slopes[] = {0.25, 0.01};
  for (int h = 0; h < 2; ++h) in.log_gate.select(2, h).fill_(-slopes[h]);
  const at::Tensor sums =
      alibi_sums(test::on_test_device(at::tensor({slopes[0], slopes[1]}, at::kDouble)), 200);
  const KeyPart part = {in.k, in.v, sums, {}, true};
  const AttentionOutput alibi = attention(in.q, sums, {&part, 1}, {});
  const AttentionOutput forgetting = attention(in.q, in.k, in.v, in.log_gate);
  EXPECT_TENSORS_NEAR(forgetting.out, alibi.out, 1e-5, 1e-5);
  EXPECT_TENSORS_NEAR(forgetting.lse, alibi.lse, 1e-5, 1e-5);
}

// The keys of one sequence cut into a memory (seen whole) and a causal rest, in any number of
// pieces.
TEST(Identities, AnySplitIntoPartsIsTheWhole) {
  const int64_t Tq = 150, Tk = 400;
  const AttentionInputs in =
      random_inputs({.B = 2, .Tq = Tq, .Tk = Tk, .H = 4, .G = 2, .D = 64}, at::kFloat, 1, 4);
  const AttentionGradients whole = run_attention(in);
  for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{
           {0, 250, 400}, {0, 1, 64, 250, 400}, {0, 0, 100, 400}, {0, 130, 131, 200, 400}}) {
    const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(true); };
    const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v), gate = leaf(in.log_gate);
    const at::Tensor sums = gate_sums(gate);
    std::vector<KeyPart> parts;
    for (size_t p = 0; p + 1 < cuts.size(); ++p) {
      const int64_t begin = cuts[p], end = cuts[p + 1];
      parts.push_back({k.slice(1, begin, end),
                       v.slice(1, begin, end),
                       sums.slice(2, begin, end),
                       {},
                       /*causal=*/p + 2 == cuts.size()});
    }
    const AttentionOutput split = attention(q, sums.slice(2, Tk - Tq), parts, {});
    torch::autograd::backward({split.out, split.lse}, {in.dout, in.dlse});
    EXPECT_TENSORS_NEAR(split.out, whole.out, 1e-5, 1e-5);
    EXPECT_TENSORS_NEAR(split.lse, whole.lse, 1e-5, 1e-5);
    EXPECT_TENSORS_NEAR(q.grad(), whole.dq, 2e-5, 1e-4);
    EXPECT_TENSORS_NEAR(k.grad(), whole.dk, 2e-5, 1e-4);
    EXPECT_TENSORS_NEAR(v.grad(), whole.dv, 2e-5, 1e-4);
    EXPECT_TENSORS_NEAR(gate.grad(), whole.dlog_gate, 5e-5, 1e-4);
  }
}

// What several parts give is rounded once, when they are added up. All keys weigh the same, and
// their shares in the gradient are +-1/32: exact in any dtype.
TEST(Identities, PartsAreAddedUpBeforeTheyAreRounded) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto options = at::TensorOptions(test::test_device()).dtype(dtype);
    const int64_t Tk = 4, D = 64;
    const at::Tensor q = at::zeros({1, 1, 2, D}, options).requires_grad_(true);
    const at::Tensor k = at::randn({1, Tk, 2, D}, options), v = at::randn({1, Tk, 2, D}, options);
    at::Tensor signs = at::zeros_like(v);
    for (int64_t j = 0; j < Tk; ++j) signs.select(1, j).select(2, 0).fill_(j % 2 == 0 ? 1 : -1);
    const auto split = [&](const at::Tensor& values) {
      const KeyPart first = {k.slice(1, 0, 2), values.slice(1, 0, 2), {}, {}, false};
      const KeyPart second = {k.slice(1, 2, Tk), values.slice(1, 2, Tk), {}, {}, false};
      return attention(q, {}, std::vector{first, second}, {}).out;
    };
    EXPECT_BITWISE_EQUAL(split(v).detach(), v.to(at::kDouble).mean(1, true).to(dtype));
    split(signs).select(3, 0).sum().backward();
    const at::Tensor dq = (k.to(at::kDouble) * signs.to(at::kDouble).narrow(3, 0, 1)).sum(1, true);
    EXPECT_BITWISE_EQUAL(q.grad(), (dq / 32).to(dtype));
  }
}

TEST(Identities, PackedDocumentsAreSeparateSequences) {
  const AttentionShape shape = {.B = 1, .Tq = 300, .Tk = 300, .H = 2, .G = 1, .D = 32};
  AttentionInputs in = random_inputs(shape);
  in.first_key = first_keys(shape, {.documents = {0, 77, 200}});
  const AttentionGradients packed = run_attention(in);
  const int64_t borders[] = {0, 77, 200, 300};
  for (int d = 0; d < 3; ++d) {
    const auto cut = [&](const at::Tensor& t, int64_t axis) {
      return t.slice(axis, borders[d], borders[d + 1]);
    };
    AttentionInputs one;
    one.q = cut(in.q, 1), one.k = cut(in.k, 1), one.v = cut(in.v, 1);
    one.log_gate = cut(in.log_gate, 1), one.dout = cut(in.dout, 1), one.dlse = cut(in.dlse, 2);
    const AttentionGradients alone = run_attention(one);
    EXPECT_TENSORS_NEAR(cut(packed.out, 1), alone.out, 1e-5, 1e-5);
    EXPECT_TENSORS_NEAR(cut(packed.dq, 1), alone.dq, 1e-5, 1e-4);
    EXPECT_TENSORS_NEAR(cut(packed.dk, 1), alone.dk, 1e-5, 1e-4);
    EXPECT_TENSORS_NEAR(cut(packed.dv, 1), alone.dv, 1e-5, 1e-4);
    EXPECT_TENSORS_NEAR(cut(packed.dlog_gate, 1), alone.dlog_gate, 2e-5, 1e-4);
    // The gate of a document's first token has nothing to forget: exactly no gradient.
    EXPECT_BITWISE_EQUAL(packed.dlog_gate[0][borders[d]], at::zeros({2}));
  }
}

// Heads share a GPU: key blocks of those that are not pruned are taken in several waves, some of
// them downwards, those of the others between (cuda/sm90/key_block_order.h).
TEST(Identities, AHeadsGradientsAreThoseItHasAlone) {
  const bool is_gpu = test::test_device().is_cuda();
  constexpr int64_t kGlobal = 3, kHeads = 5;
  for (const auto& [D, T] : {std::pair(64, 19200), std::pair(128, 12800), std::pair(256, 6400)}) {
    const int64_t length = is_gpu ? T : 700;
    AttentionInputs in = random_inputs(
        {.B = 1, .Tq = length, .Tk = length, .H = kHeads, .G = kHeads, .D = D}, at::kBFloat16);
    in.log_gate.slice(2, 0, kGlobal).mul_(1e-4);
    const AttentionOptions options = {.log_pruning_tolerance = -10};
    const AttentionGradients together = run_attention(in, options);
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto own = [&](const at::Tensor& t, int64_t axis) { return t.slice(axis, h, h + 1); };
      const AttentionGradients alone = run_attention({.q = own(in.q, 2),
                                                      .k = own(in.k, 2),
                                                      .v = own(in.v, 2),
                                                      .log_gate = own(in.log_gate, 2),
                                                      .first_key = {},
                                                      .dout = own(in.dout, 2),
                                                      .dlse = own(in.dlse, 1)},
                                                     options);
      EXPECT_BITWISE_EQUAL(own(together.out, 2), alone.out);
      EXPECT_TENSORS_NEAR(own(together.dq, 2), alone.dq, 1e-5, 1e-2);  // an ulp of bf16
      EXPECT_TENSORS_NEAR(own(together.dk, 2), alone.dk, 1e-5, 1e-2);
      EXPECT_TENSORS_NEAR(own(together.dv, 2), alone.dv, 1e-5, 1e-2);
      EXPECT_TENSORS_NEAR(own(together.dlog_gate, 2), alone.dlog_gate, 1e-4, 1e-4);
    }
  }
}

TEST(Identities, RowsThatSeeNothingGiveZeros) {
  const AttentionShape shape = {.B = 2, .Tq = 130, .Tk = 130, .H = 2, .G = 1, .D = 64};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    AttentionInputs in = random_inputs(shape, dtype);
    in.first_key = first_keys(shape, {.padding = {70, 130}});
    // What most losses hand back for a log-sum-exp of -inf.
    in.dlse[0].slice(1, 0, 70).fill_(std::numeric_limits<double>::quiet_NaN());
    in.dlse[1].fill_(std::numeric_limits<double>::quiet_NaN());
    const AttentionGradients result = run_attention(in);
    for (const at::Tensor& t : {result.dq, result.dk, result.dv, result.dlog_gate}) {
      EXPECT_TRUE(t.isfinite().all().item<bool>());
    }
    const auto zero = [](const at::Tensor& t) { EXPECT_BITWISE_EQUAL(t, at::zeros_like(t)); };
    zero(result.out[0].slice(0, 0, 70));
    zero(result.out[1]);
    zero(result.dq[0].slice(0, 0, 70));
    zero(result.dq[1]);
    zero(result.dk[0].slice(0, 0, 70));
    zero(result.dk[1]);
    zero(result.dv[1]);
    zero(result.dlog_gate[0].slice(0, 0, 71));
    zero(result.dlog_gate[1]);
    EXPECT_TRUE(result.lse[1].eq(-kInfinity).all().item<bool>());
    EXPECT_TRUE(result.lse[0].slice(1, 70).isfinite().all().item<bool>());
  }
}

// However far beyond: kernels round first keys up to whole blocks of keys.
TEST(Identities, AFirstKeyBeyondAllKeysHidesThem) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t D : {64, 128, 256}) {
      for (const double tolerance : {0.0, -10.0}) {
        const AttentionShape shape = {.B = 1, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = D};
        AttentionInputs in = random_inputs(shape, dtype);
        const auto with_last_rows = [&](int64_t first_key) {
          in.first_key = first_keys(shape, {.documents = {0, 77}});
          in.first_key.slice(1, 150).fill_(first_key);
          return run_attention(in, {.log_pruning_tolerance = tolerance});
        };
        const AttentionGradients near = with_last_rows(shape.Tk);
        const AttentionGradients far = with_last_rows(std::numeric_limits<int32_t>::max());
        expect_same_bits(far, near);
        const at::Tensor hidden = far.out.slice(1, 150);
        EXPECT_BITWISE_EQUAL(hidden, at::zeros_like(hidden));
      }
    }
  }
}

// What a broken query or key makes of a row must not look like a row that sees nothing.
TEST(Identities, NaNOfAQueryOrKeyShows) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const bool of_query : {true, false}) {
      AttentionInputs in =
          random_inputs({.B = 1, .Tq = 200, .Tk = 200, .H = 2, .G = 1, .D = 64}, dtype);
      (of_query ? in.q : in.k)[0][150].fill_(kNaN);
      const AttentionOutput result = attention(in.q, in.k, in.v, in.log_gate);
      EXPECT_TRUE(result.lse[0].select(1, 150).isnan().all().item<bool>()) << dtype;
      EXPECT_TRUE(result.out[0][150].isnan().all().item<bool>()) << dtype;
      EXPECT_TRUE(result.out[0].slice(0, 0, 150).isfinite().all().item<bool>()) << dtype;
    }
  }
}

TEST(Identities, AShutGateHidesThePastExactly) {
  AttentionInputs in = random_inputs({.B = 1, .Tq = 200, .Tk = 200, .H = 2, .G = 2, .D = 64});
  in.log_gate[0][90].fill_(-kInfinity);
  in.log_gate[0][91].fill_(-kInfinity);
  const AttentionGradients shut = run_attention(in);
  for (const at::Tensor& t : {shut.out, shut.lse, shut.dq, shut.dk, shut.dv, shut.dlog_gate}) {
    EXPECT_TRUE(t.isfinite().all().item<bool>());
  }
  EXPECT_BITWISE_EQUAL(shut.dlog_gate[0].slice(0, 90, 92), at::zeros({2, 2}));
  // The same as a document that begins there.
  AttentionInputs cut = in;
  cut.log_gate = in.log_gate.clone();
  cut.log_gate[0].slice(0, 90, 92).fill_(-1);
  cut.first_key = first_keys({.B = 1, .Tq = 200, .Tk = 200}, {.documents = {90, 91}});
  const AttentionGradients documents = run_attention(cut);
  EXPECT_TENSORS_NEAR(shut.out, documents.out, 1e-6, 1e-5);
  EXPECT_TENSORS_NEAR(shut.dk, documents.dk, 1e-5, 1e-4);
}

TEST(Identities, EmptyInputsGiveEmptyOrNothing) {
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{.B = 0, .Tq = 4, .Tk = 4, .H = 2, .G = 1, .D = 8},
                                   {.B = 1, .Tq = 0, .Tk = 4, .H = 2, .G = 1, .D = 8},
                                   {.B = 1, .Tq = 0, .Tk = 0, .H = 2, .G = 1, .D = 8}}) {
    for (const double tolerance : {0.0, -10.0}) {
      const AttentionInputs in = random_inputs(shape);
      const AttentionGradients result = run_attention(in, {.log_pruning_tolerance = tolerance});
      EXPECT_EQ(result.out.sizes(), in.q.sizes());
      EXPECT_BITWISE_EQUAL(result.dk, at::zeros_like(in.k));
      EXPECT_BITWISE_EQUAL(result.dlog_gate, at::zeros_like(in.log_gate));
    }
  }
  // A memory without keys adds nothing.
  const AttentionInputs in = random_inputs({.B = 1, .Tq = 70, .Tk = 70, .H = 2, .G = 1, .D = 8});
  const KeyPart parts[] = {{in.k, in.v, {}, {}, true},
                           {in.k.slice(1, 0, 0), in.v.slice(1, 0, 0), {}, {}, false}};
  EXPECT_TENSORS_NEAR(
      attention(in.q, at::Tensor(), parts, {}).out, attention(in.q, in.k, in.v).out, 1e-6, 1e-6);
}

TEST(Identities, ViewsOfOneProjectionAreTakenAsTheyAre) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t D : {32, 64, 128, 256}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " D" + std::to_string(D));
      const AttentionInputs in =
          random_inputs({.B = 2, .Tq = 90, .Tk = 90, .H = 4, .G = 2, .D = D}, dtype);
      const AttentionGradients apart = run_attention(in);
      const at::Tensor fused = at::cat({in.q, in.k, in.v}, 2).requires_grad_(true);
      const AttentionOutput strided =
          attention(fused.slice(2, 0, 4), fused.slice(2, 4, 6), fused.slice(2, 6, 8), in.log_gate);
      EXPECT_BITWISE_EQUAL(strided.out, apart.out);
      torch::autograd::backward({strided.out, strided.lse}, {in.dout, in.dlse});
      // Autograd adds the gradients of views to zeros: -0 becomes 0.
      EXPECT_BITWISE_EQUAL(fused.grad(), at::cat({apart.dq, apart.dk, apart.dv}, 2) + 0);
      // A last dimension that is not contiguous is copied.
      const at::Tensor flipped = in.q.transpose(1, 3).contiguous().transpose(1, 3);
      EXPECT_BITWISE_EQUAL(attention(flipped, in.k, in.v, in.log_gate).out, apart.out);
    }
  }
}

// Views that repeat a row have a stride of 0: keys that batch rows share, the gradient of a mean.
TEST(Identities, RepeatedRowsAreTakenAsTheirCopies) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t D : {64, 128, 256}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " D" + std::to_string(D));
      const int64_t query_sizes[] = {2, 150, 4, D}, key_sizes[] = {2, 200, 2, D};
      AttentionInputs repeated =
          random_inputs({.B = 2, .Tq = 150, .Tk = 200, .H = 4, .G = 2, .D = D}, dtype);
      repeated.q = repeated.q.slice(2, 0, 1).expand(query_sizes);
      repeated.k = repeated.k.slice(0, 0, 1).expand(key_sizes);
      repeated.v = repeated.v.slice(1, 0, 1).expand(key_sizes);
      repeated.dout = repeated.dout.slice(1, 0, 1).expand(query_sizes);
      AttentionInputs copied = repeated;
      for (at::Tensor* x : {&copied.q, &copied.k, &copied.v, &copied.dout}) *x = x->contiguous();
      const AttentionGradients result = run_attention(repeated), expected = run_attention(copied);
      EXPECT_BITWISE_EQUAL(result.out, expected.out);
      EXPECT_BITWISE_EQUAL(result.dq, expected.dq);
      EXPECT_BITWISE_EQUAL(result.dk, expected.dk);
      EXPECT_BITWISE_EQUAL(result.dv, expected.dv);
      EXPECT_BITWISE_EQUAL(result.dlog_gate, expected.dlog_gate);
    }
  }
}

// As of frozen projections: whoever asks for some gradients gets the same ones.
TEST(Identities, GradientsOfSomeInputsAreThoseOfAll) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionInputs in =
        random_inputs({.B = 1, .Tq = 150, .Tk = 200, .H = 4, .G = 2, .D = 64}, dtype);
    const AttentionGradients all = run_attention(in);
    const at::Tensor expected[] = {all.dq, all.dk, all.dv, all.dlog_gate};
    for (unsigned wanted = 1; wanted < 16; ++wanted) {
      SCOPED_TRACE(wanted);
      at::Tensor inputs[] = {in.q, in.k, in.v, in.log_gate};
      for (int i = 0; i < 4; ++i) {
        inputs[i] = inputs[i].detach().clone().requires_grad_((wanted >> i & 1) != 0);
      }
      const AttentionOutput result = attention(inputs[0], inputs[1], inputs[2], inputs[3]);
      torch::autograd::backward({result.out, result.lse}, {in.dout, in.dlse});
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(inputs[i].grad().defined(), inputs[i].requires_grad());
        if (!inputs[i].requires_grad()) continue;
        EXPECT_BITWISE_EQUAL(inputs[i].grad(), expected[i]);
      }
    }
    // Of one result alone, the other's gradient is zero.
    AttentionInputs one = in;
    one.dlse = at::zeros_like(in.dlse);
    const at::Tensor q = in.q.detach().clone().requires_grad_(true);
    torch::autograd::backward({attention(q, in.k, in.v, in.log_gate).out}, {in.dout});
    EXPECT_BITWISE_EQUAL(q.grad(), run_attention(one).dq);
    one = in;
    one.dout = at::zeros_like(in.dout);
    const at::Tensor k = in.k.detach().clone().requires_grad_(true);
    torch::autograd::backward({attention(in.q, k, in.v, in.log_gate).lse}, {in.dlse});
    EXPECT_BITWISE_EQUAL(k.grad(), run_attention(one).dk);
  }
}

TEST(Identities, SameBitsForAnyNumberOfThreadsAndInEveryRun) {
  const int before = at::get_num_threads();
  for (const auto& [D, dtype] : {std::pair(64, at::kFloat),
                                 std::pair(64, at::kBFloat16),
                                 std::pair(128, at::kBFloat16),
                                 std::pair(256, at::kBFloat16)}) {
    const AttentionShape shape = {.B = 2, .Tq = 700, .Tk = 800, .H = 4, .G = 2, .D = D};
    for (const double tolerance : {0.0, -10.0}) {
      AttentionInputs in = random_inputs(shape, dtype);
      in.first_key = first_keys(shape, {.documents = {300}, .padding = {0, 20}});
      const AttentionOptions options = {.log_pruning_tolerance = tolerance};
      at::set_num_threads(1);
      const AttentionGradients one = run_attention(in, options);
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        expect_same_bits(run_attention(in, options), one);
      }
    }
  }
  at::set_num_threads(before);
}

class DebugChecks : public testing::Test {
 protected:
  void SetUp() override { setenv("REYNARD_DEBUG_CHECKS", "1", 1); }
  void TearDown() override { unsetenv("REYNARD_DEBUG_CHECKS"); }
};

TEST_F(DebugChecks, RejectGatesThatAreNotGates) {
  AttentionInputs in = random_inputs({.B = 1, .Tq = 5, .Tk = 5, .H = 1, .G = 1, .D = 8});
  EXPECT_NO_THROW(attention(in.q, in.k, in.v, in.log_gate));
  for (const double bad : {1e-3, std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
    at::Tensor gates = in.log_gate.clone();
    gates[0][2][0] = bad;
    EXPECT_THROW(attention(in.q, in.k, in.v, gates), Error);
    EXPECT_SAYS(
        test::error_of([&] { gate_sums(gates); }),
        fmt::format("gate_sums: log_gate at [0, 2, 0] = {:.6g}; expected log gates <= 0", bad));
  }
}

TEST_F(DebugChecks, RejectFirstKeysThatDecreaseOrAreNegative) {
  const AttentionInputs in = random_inputs({.B = 1, .Tq = 3, .Tk = 3, .H = 1, .G = 1, .D = 8});
  const auto row_of = [](at::ArrayRef<int> first_key) {
    return test::on_test_device(at::tensor(first_key, at::kInt).unsqueeze(0));
  };
  const auto expect = [&](const at::Tensor& first_key, const std::string& text) {
    EXPECT_SAYS(test::error_of([&] { attention(in.q, in.k, in.v, in.log_gate, first_key); }),
                "attention: " + text);
    EXPECT_SAYS(test::error_of([&] { gate_sums(in.log_gate, first_key); }), "gate_sums: " + text);
  };
  expect(row_of({2, 1, 0}), "first_key at [0, 1] = 1; expected non-decreasing values >= 0");
  expect(row_of({-3, 0, 0}), "first_key at [0, 0] = -3");
  EXPECT_NO_THROW(gate_sums(in.log_gate, row_of({0, 2, 2})));
  EXPECT_NO_THROW(gate_sums(in.log_gate, row_of({})));
}

TEST_F(DebugChecks, RejectBoundsThatAreNoBounds) {
  const AttentionInputs in = random_inputs({.B = 1, .Tq = 3, .Tk = 3, .H = 2, .G = 1, .D = 8});
  const at::Tensor bound = test::on_test_device(at::tensor({1.0F, -0.5F}));
  EXPECT_SAYS(test::error_of([&] { attention(in.q, in.k, in.v, {}, {}, bound); }),
              "attention: logit_bound at [1] = -0.5; expected bounds >= 0");
}

}  // namespace
}  // namespace reynard::attention
