// The fused loops against the same operators in f64, forward and backward, with the error budget of
// the plain formulas in the loops' own dtype; every instruction set that this machine has, or the
// GPU that REYNARD_TEST_DEVICE names.

#include "reynard/ops/cross_entropy.h"
#include "reynard/ops/gated_act.h"
#include "reynard/ops/linear.h"
#include "reynard/ops/rms_norm.h"
#include "reynard/ops/rotary.h"
#include "reynard/ops/token_shift.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/errors.h"
#include "tests/support/forced_row_path.h"
#include "tests/support/gradients.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <string>
#include <vector>

namespace reynard::ops {
namespace {

using test::gradients;
using test::on_test_device;
using test::random_normal;
using Inputs = std::vector<at::Tensor>;

// The plain formulas, every intermediate result rounded to the dtype of the inputs.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t groups) {
  const at::Tensor grouped = x.unflatten(-1, {groups, -1});
  const at::Tensor inverse = at::rsqrt((grouped * grouped).mean({-1}, true) + eps);
  return (grouped * inverse * weight.reshape({-1, grouped.size(-1)})).flatten(-2);
}

at::Tensor plain_shift(const at::Tensor& x, const at::Tensor& logit, const at::Tensor& starts) {
  const at::Tensor before =
      at::cat({x.narrow(0, 0, 1), x.narrow(0, 0, x.size(0) - 1)})
          .index_copy(0, starts, at::zeros({starts.size(0), x.size(1), x.size(2)}, x.options()));
  const at::Tensor a = at::sigmoid(logit).unsqueeze(-1);
  return a * before + (1 - a) * x;
}

at::Tensor plain_gate(const at::Tensor& x, const at::Tensor& gate, Activation act) {
  return (act == Activation::kSilu ? at::silu(gate) : at::sigmoid(gate)) * x;
}

at::Tensor plain_rotary(const at::Tensor& x, const at::Tensor& positions, double base) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor angle = rotary_angles(positions, half, base).unsqueeze(1);
  const at::Tensor c = at::cos(angle).to(x.scalar_type()), s = at::sin(angle).to(x.scalar_type());
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * c - b * s, b * c + a * s}, 2);
}

// fused and plain take inputs of one dtype; values and all gradients must meet the budget.
void expect_budget(const test::TensorFunction& fused,
                   const test::TensorFunction& plain,
                   const Inputs& exact_inputs,
                   const std::vector<at::ScalarType>& dtypes = {at::kFloat, at::kBFloat16}) {
  for (const at::ScalarType dtype : dtypes) {
    Inputs rounded, exact;
    for (const at::Tensor& input : exact_inputs) {
      rounded.push_back(on_test_device(input.to(dtype)));
      exact.push_back(rounded.back().to(at::kDouble));
    }
    EXPECT_WITHIN_BUDGET(fused(rounded), plain(rounded), fused(exact)) << c10::toString(dtype);
    const auto from_fused = gradients(fused, rounded), from_plain = gradients(plain, rounded);
    const auto from_exact = gradients(fused, exact);
    for (size_t i = 0; i < rounded.size(); ++i) {
      EXPECT_WITHIN_BUDGET(from_fused[i], from_plain[i], from_exact[i])
          << c10::toString(dtype) << ", gradient of input " << i;
    }
  }
}

using Kernels = test::OnEachRowPath;
INSTANTIATE_TEST_SUITE_P(Isa,
                         Kernels,
                         testing::ValuesIn(test::row_path_names()),
                         [](const auto& info) { return info.param; });

// Odd ones, and those at which a GPU moves 2, 4 and 8 elements at a time.
constexpr int64_t kOddWidths[] = {1, 3, 16, 17, 63, 64, 113, 128, 264};
// A norm over one number is its sign: the exact gradient is 0 but for eps, and what any formula
// computes there is its rounding only.
constexpr int64_t kNormWidths[] = {3, 16, 17, 63, 64, 113, 128, 264, 512, 768};

// A GPU's backward keeps the sums of a row of such a width in the memory of one block.
TEST(KernelsOnGpu, NormOfRowsThatAreTooWideNamesTheLimit) {
  if (test::test_device().is_cpu()) GTEST_SKIP() << "needs REYNARD_TEST_DEVICE=cuda";
  for (const int64_t width : {int64_t{1} << 20, (int64_t{1} << 20) + 1}) {
    const at::Tensor x = on_test_device(at::ones({2, width}, at::kFloat)).requires_grad_();
    const at::Tensor y = rms_norm(x, on_test_device(at::ones({width}, at::kFloat)), 1e-5);
    EXPECT_SAYS(
        test::error_of([&] { y.sum().backward(); }),
        "rms_norm, backward: rows of " + std::to_string(width) + " columns; must be at most ");
  }
}

TEST_P(Kernels, NormWithinBudget) {
  for (const int64_t width : kNormWidths) {
    for (const int64_t groups : {1, 3}) {
      const auto fused = [&](const Inputs& in) { return rms_norm(in[0], in[1], 1e-5, groups); };
      const auto plain = [&](const Inputs& in) { return plain_norm(in[0], in[1], 1e-5, groups); };
      expect_budget(fused,
                    plain,
                    {random_normal({67, groups * width}, 1), random_normal({groups * width}, 2)});
      expect_budget(
          fused, plain, {random_normal({5, groups * width}, 1), random_normal({width}, 2)});
    }
  }
}

TEST_P(Kernels, GatedNormWithinBudget) {
  for (const int64_t width : kNormWidths) {
    const auto fused = [&](const Inputs& in) {
      return gated_rms_norm(in[0], in[1], in[2], 1e-5, 2);
    };
    const auto plain = [&](const Inputs& in) {
      return plain_norm(in[0], in[2], 1e-5, 2) * at::sigmoid(in[1]);
    };
    expect_budget(fused,
                  plain,
                  {random_normal({66, 2 * width}, 1),
                   random_normal({66, 2 * width}, 2),
                   random_normal({2 * width}, 3)});
  }
}

void expect_add_norm_budget(int64_t rows, int64_t width) {
  const auto fused = [&](const Inputs& in) {
    const NormedSum sum = add_rms_norm(in[0], in[1], in[2], 1e-5);
    return at::cat({sum.normed, sum.residual.to(sum.normed.scalar_type())}, 1);
  };
  const auto plain = [&](const Inputs& in) {
    const at::Tensor sum = in[0] + in[1];
    return at::cat({plain_norm(sum, in[2], 1e-5, 1), sum}, 1);
  };
  expect_budget(fused,
                plain,
                {random_normal({rows, width}, 1),
                 random_normal({rows, width}, 2),
                 random_normal({width}, 3)});
}

TEST_P(Kernels, AddNormWithinBudget) {
  for (const int64_t width : kNormWidths) expect_add_norm_budget(66, width);
}

// The widest rows that a GPU keeps in the registers of a warp.
TEST_P(Kernels, WideAddNormWithinBudget) {
  for (const int64_t width : {1024, 1536}) expect_add_norm_budget(35, width);
}

// Gradients that were made for a norm alone give it their memory; these are still read afterwards.
TEST_P(Kernels, NormsLeaveGradientsThatOthersHold) {
  const auto leaf = [](at::IntArrayRef sizes, uint64_t seed) {
    return on_test_device(random_normal(sizes, seed, at::kFloat)).requires_grad_(true);
  };
  const at::Tensor x = leaf({9, 48}, 1), gate = leaf({9, 48}, 2), weight = leaf({48}, 3);
  const at::Tensor held = leaf({9, 48}, 4).detach(), copy = held.clone();
  const NormedSum sum = add_rms_norm(x, gate, weight, 1e-5);
  torch::autograd::backward({sum.normed, sum.residual, gated_rms_norm(x, gate, weight, 1e-5, 3)},
                            {held, held, held});
  EXPECT_BITWISE_EQUAL(held, copy);
  // As parts of it.
  const at::Tensor both = at::cat({held, held}), whole = both.clone();
  at::cat({rms_norm(x, weight, 1e-5), rms_norm(gate, weight, 1e-5)}).backward(both);
  EXPECT_BITWISE_EQUAL(both, whole);
}

TEST_P(Kernels, ShiftWithinBudget) {
  const at::Tensor starts =
      on_test_device(at::tensor(std::vector<int64_t>{0, 1, 5, 64}, at::kLong));
  for (const int64_t width : kOddWidths) {
    const auto fused = [&](const Inputs& in) { return token_shift(in[0], in[1], starts); };
    const auto plain = [&](const Inputs& in) { return plain_shift(in[0], in[1], starts); };
    expect_budget(fused, plain, {random_normal({70, 2, width}, 1), random_normal({70, 2}, 2)});
  }
}

TEST_P(Kernels, GatesWithinBudget) {
  for (const Activation act : {Activation::kSilu, Activation::kSigmoid}) {
    for (const int64_t width : kOddWidths) {
      const auto fused = [&](const Inputs& in) { return gated_act(in[0], act); };
      const auto plain = [&](const Inputs& in) {
        return plain_gate(in[0].narrow(1, width, width), in[0].narrow(1, 0, width), act);
      };
      expect_budget(fused, plain, {3 * random_normal({65, 2 * width}, 1)});
      const auto fused_mul = [&](const Inputs& in) { return gate_mul(in[0], in[1], act); };
      const auto plain_mul = [&](const Inputs& in) { return plain_gate(in[0], in[1], act); };
      expect_budget(
          fused_mul, plain_mul, {random_normal({65, width}, 1), 3 * random_normal({65, width}, 2)});
    }
  }
}

// A wide weight beside one with a compute copy: its product must not feel the rounding of bf16.
TEST_P(Kernels, LinearsWithinBudget) {
  const auto products = [](const Inputs& in) {
    const at::Tensor& x = in[0];
    const bool mixed = x.scalar_type() == at::kBFloat16;
    const auto weight = [&](const at::Tensor& w) {
      return mixed ? Weight{w.to(at::kFloat), w} : Weight{w, {}};
    };
    const std::vector<Weight> weights = {weight(in[1]), weight(in[2])};
    const std::vector<at::Tensor> y = linears(x, weights);
    return at::cat({y[0], y[1]}, 1);
  };
  const auto plain = [](const Inputs& in) {
    return at::cat({in[0].matmul(in[1].t()), in[0].matmul(in[2].t())}, 1);
  };
  expect_budget(
      products,
      plain,
      {random_normal({66, 40}, 1), random_normal({24, 40}, 2), random_normal({3, 40}, 3)});
}

TEST_P(Kernels, WeightsWithoutComputeCopyAreNotRounded) {
  const at::Tensor x = on_test_device(random_normal({66, 512}, 1, at::kBFloat16));
  const at::Tensor w = on_test_device(random_normal({3, 512}, 2, at::kFloat));
  const at::Tensor other = on_test_device(random_normal({5, 512}, 3, at::kFloat));
  const std::vector<Weight> weights = {{w, {}}, {other, other.to(at::kBFloat16)}};
  const std::vector<at::Tensor> y = linears(x, weights);
  EXPECT_EQ(y[0].scalar_type(), at::kFloat);
  EXPECT_EQ(y[1].scalar_type(), at::kBFloat16);
  EXPECT_WITHIN_BUDGET(
      y[0], x.to(at::kFloat).matmul(w.t()), x.to(at::kDouble).matmul(w.to(at::kDouble).t()));
}

TEST_P(Kernels, GatedLinearWithinBudget) {
  for (const Activation act : {Activation::kSilu, Activation::kSigmoid}) {
    const auto fused = [&](const Inputs& in) {
      const bool mixed = in[1].scalar_type() == at::kBFloat16;
      return gated_linear(
          in[0], act, mixed ? Weight{in[1].to(at::kFloat), in[1]} : Weight{in[1], {}});
    };
    const auto plain = [&](const Inputs& in) {
      return plain_gate(in[0].narrow(1, 48, 48), in[0].narrow(1, 0, 48), act).matmul(in[1].t());
    };
    expect_budget(fused, plain, {random_normal({65, 96}, 1), random_normal({24, 48}, 2)});
  }
}

TEST_P(Kernels, RotaryWithinBudget) {
  const at::Tensor positions = on_test_device(at::arange(66, at::kLong) * 37);
  for (const int64_t width : {2, 6, 32, 64, 66}) {
    const auto fused = [&](const Inputs& in) { return rotary(in[0], positions, 500000); };
    const auto plain = [&](const Inputs& in) { return plain_rotary(in[0], positions, 500000); };
    expect_budget(fused, plain, {random_normal({66, 3, width}, 1)});
  }
}

TEST_P(Kernels, CrossEntropyWithinBudget) {
  for (const int64_t vocabulary : {1, 3, 17, 64, 258, 1003}) {
    const at::Tensor targets = on_test_device(at::arange(9, at::kLong).remainder(vocabulary));
    const auto fused = [&](const Inputs& in) {
      return cross_entropy(in[0], in[1], {}, targets, {}, 4);
    };
    const auto plain = [&](const Inputs& in) {
      const at::Tensor logits = in[0].matmul(in[1].t());
      return -at::log_softmax(logits, 1).gather(1, targets.unsqueeze(1)).sum();
    };
    const Inputs inputs = {random_normal({9, 24}, 1), 0.5 * random_normal({vocabulary, 24}, 2)};
    expect_budget(fused, plain, inputs, {at::kFloat});
    // bf16 rounds each logit by at most 2^-9 of itself, which moves a token's loss by at most twice
    // the largest of these errors (its own logit and the log-sum-exp); errors of a sum may cancel
    // in one formula and not in the other, so the bound stands in for the budget.
    Inputs rounded, exact;
    for (const at::Tensor& input : inputs) {
      rounded.push_back(on_test_device(input.to(at::kBFloat16)));
      exact.push_back(rounded.back().to(at::kDouble));
    }
    const double largest = exact[0].matmul(exact[1].t()).abs().max().item<double>();
    const double bound = 9 * 2 * 0x1p-9 * largest + 1e-5;
    EXPECT_NEAR(fused(rounded).item<double>(), fused(exact).item<double>(), bound);
    const auto from_fused = gradients(fused, rounded), from_plain = gradients(plain, rounded);
    const auto from_exact = gradients(fused, exact);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_WITHIN_BUDGET(from_fused[i], from_plain[i], from_exact[i]) << "gradient " << i;
    }
  }
}

// As of tokens that may not follow: whole vectors of logits, and some beside them.
TEST_P(Kernels, ImpossibleTokensCostNothing) {
  for (const int64_t vocabulary : {17, 64, 258, 1003}) {
    at::Tensor logits = random_normal({vocabulary}, 1, at::kFloat);
    logits.slice(0, 0, 9).fill_(-std::numeric_limits<float>::infinity());
    logits.slice(0, -4, -1).fill_(-std::numeric_limits<float>::infinity());
    const at::Tensor target = on_test_device(at::full({1}, 9, at::kLong));
    const auto fused = [&](const Inputs& in) {  // of the head: 0 * -inf is no gradient of the rest
      return cross_entropy(at::ones({1, 1}, in[0].options()), in[0], {}, target);
    };
    const auto plain = [&](const Inputs& in) { return -at::log_softmax(in[0], 0)[9][0]; };
    expect_budget(fused, plain, {logits.view({vocabulary, 1})}, {at::kFloat});
  }
}

// By more than exp of f32 holds, behind the last whole vector.
TEST_P(Kernels, TheLastTokenMayOutweighAllOthers) {
  for (const int64_t vocabulary : {17, 258, 1003}) {
    at::Tensor logits = random_normal({vocabulary}, 1, at::kFloat);
    logits[-1] = 200;
    const at::Tensor target = on_test_device(at::zeros({1}, at::kLong));
    const auto fused = [&](const Inputs& in) {
      return cross_entropy(at::ones({1, 1}, in[0].options()), in[0], {}, target);
    };
    const auto plain = [&](const Inputs& in) { return -at::log_softmax(in[0], 0)[0][0]; };
    expect_budget(fused, plain, {logits.view({vocabulary, 1})}, {at::kFloat});
  }
}

TEST_P(Kernels, SameBitsForAnyThreadCount) {
  const int threads = at::get_num_threads();
  const auto run = [](int num_threads) {
    at::set_num_threads(num_threads);
    const auto all = [](const Inputs& in) {
      const NormedSum sum = add_rms_norm(in[0], in[1], in[2], 1e-5);
      const at::Tensor heads = sum.normed.view({-1, 4, 64});
      const at::Tensor starts = on_test_device(at::zeros({1}, at::kLong));
      const at::Tensor shifted = token_shift(heads, sum.residual.narrow(1, 0, 4), starts);
      const at::Tensor turned = rotary(shifted, on_test_device(at::arange(500)), 500000);
      return gated_act(gated_rms_norm(turned.flatten(1), in[1], in[2], 1e-5, 4), Activation::kSilu);
    };
    return gradients(all,
                     {on_test_device(random_normal({500, 256}, 1, at::kFloat)),
                      on_test_device(random_normal({500, 256}, 2, at::kFloat)),
                      on_test_device(random_normal({256}, 3, at::kFloat))});
  };
  const auto one = run(1);
  for (const int count : {2, 3}) {
    const auto several = run(count);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_BITWISE_EQUAL(one[i], several[i]) << count;
  }
  at::set_num_threads(threads);
}

TEST_P(Kernels, SameBitsAgain) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor targets = at::arange(300, at::kLong);
    const auto all = [&](const Inputs& in) {
      const NormedSum sum = add_rms_norm(in[0], in[1], in[2], 1e-5);
      return cross_entropy(sum.normed, in[3], {}, targets, {}, 128) + sum.residual.sum();
    };
    Inputs inputs;
    for (const at::Tensor& t : {random_normal({300, 264}, 1),
                                random_normal({300, 264}, 2),
                                random_normal({264}, 3),
                                random_normal({1001, 264}, 4)}) {
      inputs.push_back(on_test_device(t.to(dtype)));
    }
    const auto first = gradients(all, inputs), second = gradients(all, inputs);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_BITWISE_EQUAL(first[i], second[i]);
  }
}

TEST_P(Kernels, ExtremeGatesAndLogitsStayFinite) {
  const at::Tensor gate =
      on_test_device(at::tensor(std::vector<float>{-1e30F, -100, -88, 0, 88, 100, 1e30F}));
  const at::Tensor open = gate_mul(at::ones_like(gate), gate, Activation::kSigmoid);
  const at::Tensor expected = at::tensor(std::vector<float>{0, 0, 0, 0.5F, 1, 1, 1});
  EXPECT_TENSORS_NEAR(open, expected, 1e-30, 1e-6);
  const at::Tensor head =
      on_test_device(at::tensor(std::vector<float>{1e4F, -1e4F, 0}).view({3, 1}));
  const at::Tensor one = on_test_device(at::ones({1, 1}));
  const at::Tensor loss = cross_entropy(one, head, {}, at::zeros({1}, at::kLong), {}, 1);
  EXPECT_NEAR(loss.item<double>(), 0, 1e-6);
}

// sigmoid(gate) is 0 long before gate * sigmoid(gate) could be anything else.
TEST_P(Kernels, LargeNegativeGatesOfSiluLetNothingThrough) {
  const Inputs inputs = {
      on_test_device(at::ones({4})),
      on_test_device(at::tensor(std::vector<float>{-3e38F, -1e38F, -1e36F, -1e4F}))};
  const auto fused = [](const Inputs& in) { return gate_mul(in[0], in[1], Activation::kSilu); };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto results = gradients(fused, {inputs[0].to(dtype), inputs[1].to(dtype)});
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TENSORS_NEAR(results[i].to(at::kFloat), at::zeros({4}), 1e-30, 0) << i;
    }
  }
}

TEST_P(Kernels, NotANumberStaysOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  at::Tensor x = on_test_device(at::ones({2, 4}));
  x[1][2] = nan;
  const at::Tensor weight = on_test_device(at::ones({4}));
  EXPECT_TRUE(rms_norm(x, weight, 1e-6)[1].isnan().all().item<bool>());
  EXPECT_FALSE(rms_norm(x, weight, 1e-6)[0].isnan().any().item<bool>());
  EXPECT_TRUE(gate_mul(x, x, Activation::kSilu)[1][2].isnan().item<bool>());
  EXPECT_TRUE(gate_mul(x.to(at::kBFloat16), x, Activation::kSilu)[1][2].isnan().item<bool>());
  const at::Tensor head = on_test_device(at::ones({3, 4}));
  EXPECT_TRUE(cross_entropy(x, head, {}, at::zeros({2}, at::kLong)).isnan().item<bool>());
}

}  // namespace
}  // namespace reynard::ops
