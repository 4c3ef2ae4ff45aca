#include "tests/support/shuffled_pages.h"

#include "reynard/attention/bias.h"
#include "reynard/attention/cache.h"

#include <ATen/CPUGeneratorImpl.h>

#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace reynard::test {

attention::DecodeArguments in_shuffled_pages(const AttentionInputs& inputs) {
  using attention::kPageTokens;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor &q = inputs.q, &k = inputs.k;
  const int64_t S = k.size(0), T = k.size(1), G = k.size(2), D = k.size(3);
  const int64_t H = q.size(2), N = (T + kPageTokens - 1) / kPageTokens, P = 2 * S * G * N;
  const at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/1);
  const at::Tensor table =
      at::randperm(P, generator, at::kInt).slice(0, 0, S * G * N).reshape({S, G, N}).contiguous();
  attention::DecodeArguments a;
  a.q = q.select(1, 0).contiguous();
  a.keys = at::full({P, kPageTokens, D}, kNaN, k.options());
  a.values = a.keys.clone();
  a.sums = at::full({P, H / G, kPageTokens}, kNaN, k.options().dtype(at::kDouble));
  a.page_table = table.to(k.device());
  a.lengths = at::full({S}, T, k.options().dtype(at::kLong));
  if (inputs.first_key.defined()) a.first_key = inputs.first_key.select(1, 0).contiguous();
  a.options.scale = 1 / std::sqrt(static_cast<double>(D));
  const at::Tensor sums = attention::gate_sums(inputs.log_gate).detach();  // (S, H, T)
  const auto* page = table.const_data_ptr<int32_t>();
  for (int64_t s = 0; s < S; ++s) {
    for (int64_t g = 0; g < G; ++g) {
      for (int64_t n = 0; n < N; ++n, ++page) {
        const int64_t begin = n * kPageTokens, end = std::min(begin + kPageTokens, T);
        const auto copy_tokens = [&](const at::Tensor& pages, const at::Tensor& from) {
          pages[*page].slice(0, 0, end - begin).copy_(from[s].select(1, g).slice(0, begin, end));
        };
        copy_tokens(a.keys, k);
        copy_tokens(a.values, inputs.v);
        const at::Tensor heads = sums[s].slice(0, g * (H / G), (g + 1) * (H / G));
        a.sums[*page].slice(1, 0, end - begin).copy_(heads.slice(1, begin, end));
      }
    }
  }
  return a;
}

}  // namespace reynard::test
