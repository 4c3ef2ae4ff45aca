#include "reynard/ops/rotary.h"

#include "reynard/ops/precision.h"
#include "reynard/ops/rotary_rows.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>

namespace reynard::ops {

at::Tensor rotary_angles(const at::Tensor& positions, int64_t half, double base) {
  // The powers on the CPU, whose rounding is then that of every device.
  const at::Tensor exponent = at::arange(half, at::kFloat) * (1.0 / half);
  const at::Tensor inverse_frequency = at::reciprocal(at::pow(base, exponent));
  return positions.to(at::kFloat).unsqueeze(1) *
         inverse_frequency.to(positions.device(), /*non_blocking=*/true);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double base) {
  tensor::check_shape("rotary", "x", x, {{"N"}, {"H"}, {"D"}});
  tensor::check_shape("rotary", "positions", positions, {{"N", x.size(0)}});
  tensor::check_dtype("rotary", "positions", positions, {at::kLong});
  tensor::check_value(
      x.size(2) % 2 == 0, "rotary", "head dimension D", x.size(2), "an even number");
  tensor::check_value(base > 0, "rotary", "base", base, "> 0");
  if (positions.numel() > 0 && positions.is_cpu()) {
    const int64_t first = positions.min().item<int64_t>();
    tensor::check_value(first >= 0, "rotary", "smallest position", first, ">= 0");
  }
  if (has_row_kernels(x)) return rows::rotary(x, positions, base);
  const at::ScalarType dtype = arithmetic_dtype(x);
  const int64_t half = x.size(2) / 2;
  const at::Tensor angle = rotary_angles(positions, half, base).to(dtype).unsqueeze(1);
  const at::Tensor cosine = at::cos(angle);  // (N, 1, D/2)
  const at::Tensor sine = at::sin(angle);
  const at::Tensor first = x.narrow(2, 0, half).to(dtype);
  const at::Tensor second = x.narrow(2, half, half).to(dtype);
  return at::cat({first * cosine - second * sine, second * cosine + first * sine}, 2)
      .to(x.scalar_type());
}

}  // namespace reynard::ops
