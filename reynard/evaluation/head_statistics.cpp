#include "reynard/evaluation/head_statistics.h"

#include "reynard/evaluation/attention_rows.h"
#include "reynard/statistics/median.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr double kLeftOut = 0.1;  // share of attention farther away than the reach

// For each query (N): the first key that it sees and gates act on.
std::vector<int64_t> first_faded_keys(const models::AttentionView& view) {
  std::vector<int64_t> first(view.q.size(0), 0);
  for (const at::Tensor& limits : {view.first_key, view.first_decayed}) {
    if (!limits.defined()) continue;
    const at::Tensor keys = limits.to(at::kLong).contiguous();
    const auto* limit = keys.const_data_ptr<int64_t>();
    for (size_t i = 0; i < first.size(); ++i) first[i] = std::max(first[i], limit[i]);
  }
  return first;
}

// log_gate (N), its sums (N) f64, and first_faded_keys, which never fall.
void add_gates(const at::Tensor& log_gate,
               const at::Tensor& sums,
               const std::vector<int64_t>& first,
               HeadStatistics& head) {
  const at::Tensor gates = log_gate.to(at::kDouble).exp().contiguous();
  const at::Tensor gate_sums = sums.contiguous();
  const auto* f = gates.const_data_ptr<double>();
  const auto* c = gate_sums.const_data_ptr<double>();
  const int64_t N = gates.size(0);
  head.gate_histogram.assign(kGateBins, 0);
  double left = 0;  // sum_j F_ij = 1 + f_i * that of the token before - what is no longer seen
  double memory = 0;
  for (int64_t i = 0; i < N; ++i) {
    const int64_t before = i > 0 ? first[i - 1] : 0;
    if (first[i] == i) {
      left = 1;
    } else {
      left = 1 + f[i] * left;
      for (int64_t j = before; j < first[i]; ++j) left -= std::exp(c[i] - c[j]);
    }
    memory += left;
    head.mean_gate += f[i];
    // Gates come from f32 logarithms: one that is meant to be on an edge belongs above it.
    const auto bin = static_cast<int64_t>(f[i] * kGateBins + 1e-5);
    head.gate_histogram[std::clamp<int64_t>(bin, 0, kGateBins - 1)] += 1;
  }
  const auto n = static_cast<double>(N);
  head.gate_memory = memory / n;
  head.mean_gate /= n;
  for (double& count : head.gate_histogram) count /= n;
}

}  // namespace

std::vector<HeadStatistics> head_statistics(const models::AttentionView& view, int64_t queries) {
  const int64_t N = view.q.size(0);
  const int64_t H = view.q.size(1);
  std::vector<HeadStatistics> heads(H);
  const at::Tensor sums = gate_sums_of(view);  // (H, N)
  const std::vector<int64_t> first = first_faded_keys(view);
  for (int64_t h = 0; h < H; ++h) {
    if (view.log_gate.defined()) {
      add_gates(view.log_gate.select(1, h), sums[h], first, heads[h]);
    } else {
      heads[h].gate_memory = heads[h].mean_gate = std::nan("");
    }
  }
  const int64_t half = N / 2;
  const int64_t count = std::clamp<int64_t>(queries, 1, N - half);
  // The last of `count` equal pieces each: the last query of the text is among them.
  const at::Tensor positions =
      ((at::arange(count, at::kLong) + 1) * (N - half)).floor_divide(count) + half - 1;
  std::vector<std::vector<double>> reaches(H);
  for_attention_rows(view, positions, [&](const AttentionRows& rows) {
    const at::Tensor weights = at::softmax(rows.logits, -1).to(at::kDouble);  // (R, K)
    const at::Tensor keys = at::arange(weights.size(1), at::kLong);
    const at::Tensor distance = rows.queries.unsqueeze(1) - keys;
    const at::Tensor mean = (weights * distance).sum(-1);
    // Keys that hold less than the share left out together with all before them.
    const at::Tensor far = weights.cumsum(-1).lt(kLeftOut).sum(-1);
    for (int64_t r = 0; r < weights.size(0); ++r) {
      heads[rows.head].mean_distance += mean[r].item<double>() / static_cast<double>(count);
      reaches[rows.head].push_back(
          static_cast<double>(rows.queries[r].item<int64_t>() - far[r].item<int64_t>()));
    }
  });
  for (int64_t h = 0; h < H; ++h) {
    heads[h].reach = statistics::median(std::move(reaches[h]));
  }
  return heads;
}

}  // namespace reynard::evaluation
