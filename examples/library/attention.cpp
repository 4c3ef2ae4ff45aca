// Forgetting attention in a C++ program: forward and backward of a pruned call, then the same
// tokens one by one from a paged cache.

#include "reynard/attention/attention.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace {

namespace attention = reynard::attention;

constexpr int64_t kTokens = 1024, kHeads = 4, kKeyHeads = 2, kHeadDim = 64;

}  // namespace

int main() {
  at::manual_seed(1);
  at::Tensor q = at::randn({1, kTokens, kHeads, kHeadDim}).set_requires_grad(true);
  at::Tensor k = at::randn({1, kTokens, kKeyHeads, kHeadDim}).set_requires_grad(true);
  at::Tensor v = at::randn({1, kTokens, kKeyHeads, kHeadDim}).set_requires_grad(true);
  // Each token lets the past fade by a gate of its own, per head: here mostly 0.7 to 0.95.
  at::Tensor log_gate =
      at::log_sigmoid(at::randn({1, kTokens, kHeads}) + 2).set_requires_grad(true);

  // At most exp(-10) of a query's attention is dropped.
  const attention::AttentionOptions options{.log_pruning_tolerance = -10};
  const auto [out, lse, start] = attention::attention(q, k, v, log_gate, {}, {}, options);
  out.sum().backward();
  std::printf("the last 128 queries of each head begin at key");
  for (int64_t h = 0; h < kHeads; ++h) std::printf(" %d", start[0][h][-1].item<int>());
  std::printf("\ngradient of the gates: %s\n",
              log_gate.grad().isfinite().all().item<bool>() ? "finite" : "not finite");

  // A sequence of its own: each new token is appended, then its query reads the pages it needs.
  const at::NoGradGuard no_grad;
  const attention::PageLayout layout{.head_dim = kHeadDim, .group = kHeads / kKeyHeads};
  auto pool = std::make_shared<attention::PagePool>(layout);
  attention::LayerCache cache(pool, kKeyHeads);
  double error = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto token = [&](const at::Tensor& x) { return x[0].slice(0, t, t + 1); };
    cache.append(token(k), token(v), token(log_gate));
    const attention::LayerCache* const caches[] = {&cache};
    const int64_t offsets[] = {0, 1};
    const auto decoded = attention::paged_attention(token(q), offsets, caches, {}, 0, options);
    error = std::max(error, (decoded.out[0] - out[0][t]).abs().max().item<double>());
  }
  std::printf("one by one from the cache: at most %.1e away\n", error);
  return error < 1e-3 ? 0 : 1;
}
