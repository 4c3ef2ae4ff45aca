#include "reynard/models/observer.h"

#include "reynard/attention/pruning.h"

#include <ATen/TensorOperators.h>

#include <cmath>

namespace reynard::models {

AttentionView copied_to_cpu(AttentionView view) {
  for (at::Tensor* t : {&view.q,
                        &view.k,
                        &view.log_gate,
                        &view.start,
                        &view.first_key,
                        &view.first_local,
                        &view.memory_k,
                        &view.memory_share,
                        &view.first_decayed}) {
    if (!t->defined()) continue;
    *t = t->detach().to(at::kCPU, t->scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  return view;
}

std::vector<double> pruned_tiles(const AttentionView& view) {
  if (!view.start.defined()) return std::vector<double>(view.q.size(1), std::nan(""));
  const int64_t N = view.first_key.size(0);
  const at::Tensor shares =
      attention::attention_statistics(view.start.unsqueeze(0), view.first_key.unsqueeze(0), N, N)
          .pruned_tiles;
  const auto* begin = shares.const_data_ptr<double>();
  return {begin, begin + shares.numel()};
}

}  // namespace reynard::models
