#include "tests/support/compare.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace reynard::test {

namespace {

std::string at_index(const at::Tensor& actual, const at::Tensor& expected, int64_t flat) {
  std::vector<int64_t> index(actual.dim());
  int64_t rest = flat;
  for (int64_t d = actual.dim() - 1; d >= 0; --d) {
    index[d] = rest % actual.size(d);
    rest /= actual.size(d);
  }
  return fmt::format("worst at [{}]: actual {:.9g}, expected {:.9g}",
                     fmt::join(index, ", "),
                     actual.reshape(-1)[flat].to(at::kDouble).item<double>(),
                     expected.reshape(-1)[flat].to(at::kDouble).item<double>());
}

testing::AssertionResult same_layout(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || !expected.defined()) {
    return testing::AssertionFailure() << "undefined tensor";
  }
  if (actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << fmt::format("shapes differ: [{}] and [{}]",
                                                      fmt::join(actual.sizes(), ", "),
                                                      fmt::join(expected.sizes(), ", "));
  }
  return testing::AssertionSuccess();
}

// Difference with equal infinities counted as 0 and any other non-finite disagreement as infinite.
at::Tensor difference(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().cpu().to(at::kDouble);
  const at::Tensor e = expected.detach().cpu().to(at::kDouble);
  at::Tensor diff = at::abs(a - e);
  diff = at::where(a.eq(e), at::zeros_like(diff), diff);
  return at::where(at::isnan(diff), at::zeros_like(diff) + INFINITY, diff);
}

}  // namespace

testing::AssertionResult bitwise_equal(const at::Tensor& actual, const at::Tensor& expected) {
  if (auto same = same_layout(actual, expected); !same) return same;
  if (actual.scalar_type() != expected.scalar_type()) {
    return testing::AssertionFailure() << "dtypes differ";
  }
  const at::Tensor a = actual.detach().cpu().contiguous();
  const at::Tensor e = expected.detach().cpu().contiguous();
  const auto* pa = static_cast<const char*>(a.const_data_ptr());
  const auto* pe = static_cast<const char*>(e.const_data_ptr());
  const int64_t size = a.element_size();
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (std::memcmp(pa + i * size, pe + i * size, size) != 0) {
      return testing::AssertionFailure() << "first difference: " << at_index(a, e, i);
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult near(const at::Tensor& actual,
                              const at::Tensor& expected,
                              double atol,
                              double rtol) {
  if (auto same = same_layout(actual, expected); !same) return same;
  if (actual.numel() == 0) return testing::AssertionSuccess();
  const at::Tensor e = expected.detach().cpu().to(at::kDouble);
  const at::Tensor allowed =
      at::where(at::isfinite(e), at::abs(e), at::zeros_like(e)) * rtol + atol;
  const at::Tensor excess = (difference(actual, expected) - allowed).reshape(-1);
  const int64_t worst = at::argmax(excess).item<int64_t>();
  if (excess[worst].item<double>() <= 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << at_index(actual.detach(), expected.detach(), worst)
                                     << fmt::format(" (atol {}, rtol {})", atol, rtol);
}

double rounding_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x1p-8;
  return dtype == at::kHalf ? 0x1p-11 : 0x1p-23;
}

testing::AssertionResult within_budget(const at::Tensor& kernel,
                                       const at::Tensor& naive,
                                       const at::Tensor& exact,
                                       double derived_noise) {
  if (auto same = same_layout(kernel, exact); !same) return same;
  if (auto same = same_layout(naive, exact); !same) return same;
  if (exact.numel() == 0) return testing::AssertionSuccess();
  const at::Tensor kernel_error = difference(kernel, exact).reshape(-1);
  const at::Tensor naive_error = difference(naive, exact).reshape(-1);
  const at::Tensor e = exact.detach().cpu().to(at::kDouble);
  const double largest =
      at::where(at::isfinite(e), at::abs(e), at::zeros_like(e)).max().item<double>();
  const double noise = std::max(rounding_of(kernel.scalar_type()) * largest, derived_noise);
  const double max_kernel = kernel_error.max().item<double>();
  const double max_naive = naive_error.max().item<double>();
  const double mean_kernel = kernel_error.mean().item<double>();
  const double mean_naive = naive_error.mean().item<double>();
  // A naive result that is not finite where the exact one is sets no budget.
  if (std::isfinite(max_naive) && max_kernel <= 2 * max_naive + noise &&
      mean_kernel <= 2 * mean_naive + noise) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << at_index(kernel.detach(), exact.detach(), at::argmax(kernel_error).item<int64_t>())
         << fmt::format(
                "; max error {:.3g} (naive {:.3g}), mean {:.3g} (naive {:.3g}), noise {:.3g}",
                max_kernel,
                max_naive,
                mean_kernel,
                mean_naive,
                noise);
}

}  // namespace reynard::test
