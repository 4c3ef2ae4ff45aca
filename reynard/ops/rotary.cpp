#include "reynard/ops/rotary.h"

#include "reynard/ops/precision.h"
#include "reynard/ops/rotary_rows.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/to_device.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <tuple>

namespace reynard::ops {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// 1 for pairs that turn often within the original length, 0 for slow ones, a ramp between.
at::Tensor yarn_share(int64_t half, double base, const RotaryScaling& scaling) {
  const auto length = static_cast<double>(scaling.original_length);
  // The pair, as a real number, that makes this many turns within the original length.
  const auto pair_turning = [&](double turns) {
    return static_cast<double>(half) * std::log(length / (turns * kTurn)) / std::log(base);
  };
  double first = pair_turning(scaling.beta_fast), last = pair_turning(scaling.beta_slow);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(2 * half - 1));
  if (first == last) last += 0.001;  // as published, instead of a division by zero
  return 1 - at::clamp((at::arange(half, at::kFloat) - first) / (last - first), 0, 1);
}

at::Tensor llama3_share(const at::Tensor& frequency, const RotaryScaling& scaling) {
  const at::Tensor turns = frequency * (static_cast<double>(scaling.original_length) / kTurn);
  return at::clamp(
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor),
      0,
      1);
}

// (half) f32; of dynamic scaling: those of positions within the original length.
at::Tensor frequencies(int64_t half, double base, const RotaryScaling& scaling) {
  const at::Tensor exponent = at::arange(half, at::kFloat) * (1.0 / half);
  const at::Tensor plain = at::reciprocal(at::pow(base, exponent));
  if (scaling.type == RotaryScalingType::kLinear) return plain / scaling.factor;
  const bool yarn = scaling.type == RotaryScalingType::kYarn;
  if (!yarn && scaling.type != RotaryScalingType::kLlama3) return plain;
  const at::Tensor kept = yarn ? yarn_share(half, base, scaling) : llama3_share(plain, scaling);
  return plain * kept + plain / scaling.factor * (1 - kept);
}

// The powers are formed on the CPU, whose rounding is then that of every device, and copied there
// once: every layer and step reads the same.
at::Tensor frequencies_on(at::Device device,
                          int64_t half,
                          double base,
                          const RotaryScaling& scaling) {
  if (device.is_cpu()) return frequencies(half, base, scaling);
  using Key = std::tuple<at::DeviceType, at::DeviceIndex, double, int64_t, RotaryScaling>;
  static std::mutex mutex;
  static std::map<Key, at::Tensor> known;
  const std::scoped_lock lock(mutex);
  at::Tensor& values = known[{device.type(), device.index(), base, half, scaling}];
  if (!values.defined()) values = tensor::to_device(frequencies(half, base, scaling), device);
  return values;
}

// (N, half) f32: the base grows with each position beyond the original length.
at::Tensor dynamic_angles(const at::Tensor& positions,
                          int64_t half,
                          double base,
                          const RotaryScaling& scaling) {
  const at::Tensor exponent = at::arange(half, at::kDouble) * (1.0 / static_cast<double>(half));
  const at::Tensor share = at::clamp(
      (positions.cpu().to(at::kDouble) + 1) / static_cast<double>(scaling.original_length),
      /*min=*/1);
  const double power = static_cast<double>(half) / static_cast<double>(half - 1);
  const at::Tensor bases = at::pow(share * scaling.factor - (scaling.factor - 1), power) * base;
  const at::Tensor frequency = at::reciprocal(at::pow(bases.unsqueeze(1), exponent));
  return positions.to(at::kFloat).unsqueeze(1) * frequency.to(positions.device(), at::kFloat);
}

}  // namespace

at::Tensor rotary_angles(const at::Tensor& positions,
                         int64_t half,
                         double base,
                         const RotaryScaling& scaling) {
  if (scaling.type == RotaryScalingType::kDynamic) {
    return dynamic_angles(positions, half, base, scaling);
  }
  return positions.to(at::kFloat).unsqueeze(1) *
         frequencies_on(positions.device(), half, base, scaling);
}

double rotary_magnitude(const RotaryScaling& scaling) {
  if (scaling.type != RotaryScalingType::kYarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return scaling.factor <= 1 ? 1 : 0.1 * std::log(scaling.factor) + 1;
}

at::Tensor rotary(const at::Tensor& x,
                  const at::Tensor& positions,
                  double base,
                  const RotaryScaling& scaling) {
  tensor::check_shape("rotary", "x", x, {{"N"}, {"H"}, {"D"}});
  tensor::check_shape("rotary", "positions", positions, {{"N", x.size(0)}});
  tensor::check_dtype("rotary", "positions", positions, {at::kLong});
  tensor::check_device("rotary", "positions", positions, "x", x.device());
  tensor::check_value(
      x.size(2) % 2 == 0, "rotary", "head dimension D", x.size(2), "an even number");
  tensor::check_value(base > 0, "rotary", "base", base, "> 0");
  if (positions.numel() > 0 && positions.is_cpu()) {
    const at::Tensor contiguous = positions.contiguous();
    const auto* values = contiguous.const_data_ptr<int64_t>();
    const int64_t first = *std::min_element(values, values + positions.numel());
    tensor::check_value(first >= 0, "rotary", "smallest position", first, ">= 0");
  }
  tensor::check_value(scaling.type != RotaryScalingType::kDynamic || x.size(2) > 2,
                      "rotary",
                      "head dimension D",
                      x.size(2),
                      "more than 2 for dynamic scaling");
  if (has_row_kernels(x)) return rows::rotary(x, positions, base, scaling);
  const at::ScalarType dtype = arithmetic_dtype(x);
  const int64_t half = x.size(2) / 2;
  const at::Tensor angle = rotary_angles(positions, half, base, scaling).to(dtype).unsqueeze(1);
  const double magnitude = rotary_magnitude(scaling);
  const at::Tensor cosine = at::cos(angle) * magnitude;  // (N, 1, D/2)
  const at::Tensor sine = at::sin(angle) * magnitude;
  const at::Tensor first = x.narrow(2, 0, half).to(dtype);
  const at::Tensor second = x.narrow(2, half, half).to(dtype);
  return at::cat({first * cosine - second * sine, second * cosine + first * sine}, 2)
      .to(x.scalar_type());
}

}  // namespace reynard::ops
