// AdamW of one and of many tensors against its definition in f64, on every instruction set that
// this machine has or on the GPU that REYNARD_TEST_DEVICE names.

#include "reynard/ops/adamw.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/errors.h"
#include "tests/support/forced_row_path.h"
#include "tests/support/gradients.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace reynard::ops {
namespace {

using test::on_test_device;
using test::random_normal;
using AdamWKernel = test::OnEachRowPath;

INSTANTIATE_TEST_SUITE_P(Isa,
                         AdamWKernel,
                         testing::ValuesIn(test::row_path_names()),
                         [](const auto& info) { return info.param; });

AdamWStep adamw_step(const at::Tensor& start, bool mixed) {
  AdamWStep step{.value = on_test_device(start.clone()),
                 .compute = {},
                 .exp_avg = on_test_device(at::zeros(start.sizes())),
                 .exp_avg_sq = on_test_device(at::zeros(start.sizes())),
                 .gradient = {},
                 .learning_rate = 0.01,
                 .beta1 = 0.8,
                 .beta2 = 0.95,
                 .epsilon = 1e-8,
                 .weight_decay = 0.1};
  if (mixed) step.compute = step.value.to(at::kBFloat16);
  return step;
}

TEST_P(AdamWKernel, FollowsTheDefinition) {
  for (const int64_t size : {1, 17, 1000, 1027}) {
    for (const bool mixed : {true, false}) {
      const at::Tensor start = random_normal({size}, 1, at::kFloat);
      AdamWStep tensors = adamw_step(start, mixed);
      at::Tensor value = start.to(at::kDouble), m = at::zeros_like(value), v = m;
      const at::Tensor scale = on_test_device(at::full({}, 0.5));
      for (int64_t t = 1; t <= 3; ++t) {
        const at::Tensor gradient = random_normal({size}, 1 + t, at::kFloat);
        const at::Tensor g = 0.5 * gradient.to(at::kDouble);
        m = 0.8 * m + 0.2 * g;
        v = 0.95 * v + 0.05 * g * g;
        const auto step = static_cast<double>(t);
        const at::Tensor root = (v / (1 - std::pow(0.95, step))).sqrt() + 1e-8;
        value = 0.999 * value - 0.01 / (1 - std::pow(0.8, step)) * m / root;
        tensors.gradient = on_test_device(gradient);
        tensors.step = t;
        adamw({&tensors, 1}, scale);
      }
      EXPECT_TENSORS_NEAR(tensors.value.cpu(), value.to(at::kFloat), 1e-6, 1e-6) << size;
      if (mixed) {
        EXPECT_BITWISE_EQUAL(tensors.compute, tensors.value.to(at::kBFloat16)) << size;
      }
    }
  }
}

// Copies of values that a step leaves as they are: ties to even, both infinities, what is rounded
// to one, and NaN of any bits.
TEST_P(AdamWKernel, RoundsCopiesToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> numbers = {1,
                                      0x1.01p0F,
                                      0x1.03p0F,
                                      -0x1.01p0F,
                                      -0x1.03p0F,
                                      0x1.010002p0F,
                                      0x1.00fffep0F,
                                      0x1.ffp100F,
                                      largest,
                                      infinity,
                                      -infinity};
  const at::Tensor values = at::tensor(numbers);
  for (const float nan : {std::bit_cast<float>(0x7fffffffU), std::bit_cast<float>(0xffffffffU)}) {
    const at::Tensor start = at::cat({values, at::full({7}, nan)});
    AdamWStep step = adamw_step(start, /*mixed=*/true);
    step.gradient = on_test_device(at::zeros_like(start));
    step.weight_decay = 0;
    step.compute.zero_();
    adamw({&step, 1}, on_test_device(at::full({}, 0.5)));
    const at::Tensor copies = step.compute.cpu();
    EXPECT_BITWISE_EQUAL(copies.slice(0, 0, values.size(0)), values.to(at::kBFloat16));
    EXPECT_TRUE(copies.slice(0, values.size(0)).isnan().all().item<bool>());
  }
}

TEST_P(AdamWKernel, ChangesNothingWhereTheScaleIsNotFinite) {
  const at::Tensor start = random_normal({1027}, 1, at::kFloat);
  for (const double scale :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    AdamWStep step = adamw_step(start, /*mixed=*/true);
    step.gradient = on_test_device(random_normal({1027}, 2, at::kFloat));
    adamw({&step, 1}, on_test_device(at::full({}, scale, at::kFloat)));
    EXPECT_BITWISE_EQUAL(step.value.cpu(), start);
    EXPECT_BITWISE_EQUAL(step.compute.cpu(), start.to(at::kBFloat16));
    EXPECT_BITWISE_EQUAL(step.exp_avg.cpu(), at::zeros_like(start));
    EXPECT_BITWISE_EQUAL(step.exp_avg_sq.cpu(), at::zeros_like(start));
  }
}

// More tensors than one launch on a GPU takes, of sizes with and without whole vectors, with and
// without copies.
TEST_P(AdamWKernel, OfManyTensorsIsThatOfEach) {
  const at::Tensor scale = on_test_device(at::full({}, 0.5));
  std::vector<AdamWStep> together, alone;
  for (int64_t i = 0; i < 130; ++i) {
    const int64_t size = i == 7 ? 40000 : i % 3 == 0 ? 4 * i : i;
    const at::Tensor start = random_normal({size}, i, at::kFloat);
    for (auto* steps : {&together, &alone}) {
      steps->push_back(adamw_step(start, i % 2 == 0));
      steps->back().gradient = on_test_device(random_normal({size}, 1000 + i, at::kFloat));
      steps->back().weight_decay = i % 5 == 0 ? 0 : 0.1;
      steps->back().step = 1 + i % 4;
    }
  }
  adamw(together, scale);
  for (AdamWStep& step : alone) adamw({&step, 1}, scale);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_BITWISE_EQUAL(together[i].value, alone[i].value) << i;
    EXPECT_BITWISE_EQUAL(together[i].exp_avg, alone[i].exp_avg) << i;
    EXPECT_BITWISE_EQUAL(together[i].exp_avg_sq, alone[i].exp_avg_sq) << i;
    if (alone[i].compute.defined()) {
      EXPECT_BITWISE_EQUAL(together[i].compute, alone[i].compute) << i;
    }
  }
}

TEST_P(AdamWKernel, GivesTheSameBitsForAnyThreadCount) {
  const int threads = at::get_num_threads();
  const at::Tensor start = random_normal({200003}, 1, at::kFloat);
  const at::Tensor gradient = on_test_device(random_normal({200003}, 2, at::kFloat));
  std::vector<AdamWStep> steps;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    steps.push_back(adamw_step(start, true));
    steps.back().gradient = gradient;
    adamw({&steps.back(), 1}, on_test_device(at::full({}, 0.5)));
    EXPECT_BITWISE_EQUAL(steps.back().value, steps[0].value) << count << " threads";
    EXPECT_BITWISE_EQUAL(steps.back().compute, steps[0].compute) << count << " threads";
  }
  at::set_num_threads(threads);
}

TEST(AdamW, RejectsWhatItWouldWriteInAnotherOrder) {
  const at::Tensor scale = at::ones({});
  const auto step_with = [&](const std::function<void(AdamWStep&)>& change) {
    AdamWStep step = adamw_step(at::ones({3, 3}), /*mixed=*/true);
    step.gradient = on_test_device(at::ones({3, 3}));
    change(step);
    adamw({&step, 1}, on_test_device(scale));
  };
  step_with([](AdamWStep&) {});
  EXPECT_THROW(step_with([](AdamWStep& s) { s.value = s.value.t(); }), Error);
  EXPECT_THROW(step_with([](AdamWStep& s) { s.exp_avg = s.exp_avg.t(); }), Error);
  EXPECT_THROW(step_with([](AdamWStep& s) { s.exp_avg_sq = s.exp_avg_sq.t(); }), Error);
  EXPECT_THROW(step_with([](AdamWStep& s) { s.compute = s.compute.t(); }), Error);
  EXPECT_THROW(step_with([](AdamWStep& s) { s.step = 0; }), Error);
}

TEST(AdamW, RejectsOtherDtypesAndDevices) {
  const auto error_with = [](
                              at::ScalarType compute,
                              const std::function<void(AdamWStep&)>& change = [](AdamWStep&) {}) {
    std::vector<AdamWStep> steps = {adamw_step(at::ones({3}), /*mixed=*/true),
                                    adamw_step(at::ones({3}), /*mixed=*/true)};
    for (AdamWStep& step : steps) step.gradient = on_test_device(at::ones({3}));
    steps[1].compute = steps[1].compute.to(compute);
    change(steps[1]);
    return test::error_of([&] { adamw(steps, on_test_device(at::ones({}))); });
  };
  EXPECT_SAYS(error_with(at::kBFloat16), "no error");
  EXPECT_SAYS(error_with(at::kHalf), "compute has dtype Half; expected one of Float, BFloat16");
  EXPECT_SAYS(error_with(at::kInt), "compute has dtype Int; expected one of Float, BFloat16");
  EXPECT_SAYS(error_with(at::kFloat), "compute of a later step has dtype Float; expected BFloat16");
  EXPECT_SAYS(error_with(at::kBFloat16, [](AdamWStep& s) { s.exp_avg = s.exp_avg.to(at::kHalf); }),
              "exp_avg has dtype Half; expected Float");
  const auto elsewhere = [](AdamWStep& s) { s.exp_avg_sq = s.exp_avg_sq.to(at::kMeta); };
  EXPECT_SAYS(error_with(at::kBFloat16, elsewhere), "device of exp_avg_sq = meta");
  AdamWStep lone = adamw_step(at::ones({3}), /*mixed=*/true);
  lone.gradient = lone.value;
  lone.compute = lone.compute.to(at::kHalf);
  EXPECT_SAYS(test::error_of([&] {
                adamw({&lone, 1}, on_test_device(at::ones({})));
              }),
              "compute has dtype Half");
}

}  // namespace
}  // namespace reynard::ops
