#include "reynard/generation/sampler.h"

#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::generation {

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  using tensor::check_value;
  check_value(options.temperature >= 0,
              "sampler",
              "temperature",
              fmt::format("{}", options.temperature),
              ">= 0, 0: greedy");
  check_value(options.top_k >= 0, "sampler", "top_k", options.top_k, ">= 0, 0: all tokens");
  check_value(options.top_p >= 0 && options.top_p <= 1,
              "sampler",
              "top_p",
              fmt::format("{}", options.top_p),
              "0 to 1, 0: all");
}

int64_t Sampler::next(const at::Tensor& logits) {
  tensor::check_shape("sampler", "logits", logits, {{"V"}});
  tensor::check_value(logits.size(0) > 0, "sampler", "number of logits", logits.size(0), "> 0");
  const bool greedy = options_.temperature == 0;
  const at::Tensor scaled =
      logits.to(at::kCPU, at::kDouble) / (greedy ? 1.0 : options_.temperature);
  const auto [values, ids] = at::sort(scaled, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  const at::Tensor probabilities = at::softmax(values, 0);
  const double* p = probabilities.const_data_ptr<double>();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const int64_t vocabulary = logits.size(0);
  if (std::isnan(p[0])) throw Error("sampler: the logits are NaN; the model has diverged");
  if (greedy) return id[0];

  int64_t kept = options_.top_k > 0 ? std::min(options_.top_k, vocabulary) : vocabulary;
  double mass = 0;
  for (int64_t i = 0; i < kept; ++i) {
    mass += p[i];
    if (options_.top_p > 0 && mass >= options_.top_p) kept = i + 1;
  }
  // 53 random bits: std::uniform_real_distribution differs between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1.0p-53 * mass;
  for (int64_t i = 0; i + 1 < kept; ++i) {
    left -= p[i];
    if (left < 0) return id[i];
  }
  return id[kept - 1];
}

}  // namespace reynard::generation
