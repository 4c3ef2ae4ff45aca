// The statistics of pruning.h and their registered op.

#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace reynard::attention {

namespace {

// A part of a whole.
struct Share {
  double part = 0, whole = 0;
  void add(int64_t of_part, int64_t of_whole) {
    part += static_cast<double>(of_part);
    whole += static_cast<double>(of_whole);
  }
};

at::Tensor shares(const std::vector<Share>& counts) {
  at::Tensor result = at::empty({static_cast<int64_t>(counts.size())}, at::kDouble);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double whole = counts[i].whole;
    result.mutable_data_ptr<double>()[i] = whole > 0 ? counts[i].part / whole : 0;
  }
  return result;
}

void check_statistics(const at::Tensor& start,
                      const at::Tensor& first_key,
                      int64_t Tq,
                      int64_t Tk) {
  constexpr std::string_view kOp = "attention_statistics";
  const int64_t M = (Tq + kQueryBlock - 1) / kQueryBlock;
  tensor::check_shape(kOp, "start", start, {{"B"}, {"H"}, {"ceil(Tq/128)", M}});
  tensor::check_dtype(kOp, "start", start, {at::kInt});
  tensor::check_value(Tq <= Tk, kOp, "Tq", Tq, "at most Tk");
  if (!first_key.defined()) return;
  tensor::check_shape(kOp, "first_key", first_key, {{"B", start.size(0)}, {"Tq", Tq}});
  tensor::check_dtype(kOp, "first_key", first_key, {at::kInt});
}

using StatisticsResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

StatisticsResult attention_statistics_anywhere(const at::Tensor& start,
                                               const std::optional<at::Tensor>& first_key,
                                               int64_t Tq,
                                               int64_t Tk) {
  const AttentionStatistics result =
      attention_statistics(start, first_key.value_or(at::Tensor()), Tq, Tk);
  const auto back = [&](const at::Tensor& t) { return t.to(start.device()); };
  return {back(result.first_block), back(result.pruned_tiles), back(result.pruned_flops)};
}

StatisticsResult attention_statistics_meta(const at::Tensor& start,
                                           const std::optional<at::Tensor>& /*first_key*/,
                                           c10::SymInt /*Tq*/,
                                           c10::SymInt /*Tk*/) {
  const auto f64 = start.options().dtype(at::kDouble);
  const c10::SymInt H = start.sym_size(1);
  return {start.new_empty_symint(start.sym_sizes()),
          start.new_empty_symint({H}, f64),
          start.new_empty_symint({H}, f64)};
}

TORCH_LIBRARY_FRAGMENT(reynard, m) {
  m.def(
      "attention_statistics(Tensor start, Tensor? first_key, SymInt Tq, SymInt Tk) "
      "-> (Tensor first_block, Tensor pruned_tiles, Tensor pruned_flops)");
}
TORCH_LIBRARY_IMPL(reynard, CPU, m) {
  m.impl("attention_statistics", attention_statistics_anywhere);
}
TORCH_LIBRARY_IMPL(reynard, CUDA, m) {
  m.impl("attention_statistics", attention_statistics_anywhere);
}
TORCH_LIBRARY_IMPL(reynard, Meta, m) {
  m.impl("attention_statistics", attention_statistics_meta);
}
TORCH_LIBRARY_IMPL(reynard, Autograd, m) {
  m.impl("attention_statistics", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

AttentionStatistics attention_statistics(const at::Tensor& start,
                                         const at::Tensor& first_key,
                                         int64_t Tq,
                                         int64_t Tk) {
  check_statistics(start, first_key, Tq, Tk);
  const int64_t B = start.size(0), H = start.size(1), M = start.size(2);
  AttentionStatistics result;
  result.first_block = start.cpu().floor_divide(kKeyBlock).to(at::kInt).contiguous();
  const auto* first_block = result.first_block.const_data_ptr<int32_t>();
  const at::Tensor first = first_key.defined() ? first_key.cpu().contiguous() : at::Tensor();
  std::vector<Share> tiles(H), flops(H);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t m = 0; m < M; ++m) {
      const int64_t rows = std::min((m + 1) * kQueryBlock, Tq) - m * kQueryBlock;
      const int64_t end = Tk - Tq + m * kQueryBlock + rows;  // keys
      const int64_t row = b * Tq + m * kQueryBlock;
      const int64_t visible =
          first.defined() ? std::max(first.const_data_ptr<int32_t>()[row], 0) : 0;
      const int64_t from = visible / kKeyBlock;
      const int64_t to = std::max(from, (end + kKeyBlock - 1) / kKeyBlock);  // tiles [from, to)
      const auto keys = [&](int64_t tile) { return std::min(tile * kKeyBlock, end); };
      for (int64_t h = 0; h < H; ++h) {
        const int64_t kept = std::clamp<int64_t>(first_block[(b * H + h) * M + m], from, to);
        tiles[h].add(kept - from, to - from);
        flops[h].add(rows * (keys(kept) - keys(from)), rows * (keys(to) - keys(from)));
      }
    }
  }
  result.pruned_tiles = shares(tiles);
  result.pruned_flops = shares(flops);
  return result;
}

}  // namespace reynard::attention
