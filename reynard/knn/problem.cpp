#include "reynard/knn/problem.h"

#include "reynard/tensor/check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace reynard::knn {

namespace {

void check_ring(const KeyRing& ring, const KeyRing& first, int64_t head_dim) {
  tensor::check_shape("knn", "keys", ring.keys, {{"G"}, {"S"}, {"D", head_dim}});
  tensor::check_dtype("knn", "keys", ring.keys, {at::kFloat, at::kBFloat16});
  tensor::check_shape("knn", "keys", ring.keys, {{"G", first.keys.size(0)}, {"S"}, {"D"}});
  tensor::check_dtype("knn", "keys", ring.keys, {first.keys.scalar_type()});
  tensor::check_value(ring.keys.numel() == 0 || head_dim == 1 || ring.keys.stride(2) == 1,
                      "knn",
                      "last stride of keys",
                      ring.keys.stride(2),
                      "1");
  tensor::check_value(ring.base <= ring.first && ring.first <= ring.next,
                      "knn",
                      "first id of keys",
                      ring.first,
                      fmt::format("{} ... {}", ring.base, ring.next));
  tensor::check_value(ring.size() <= ring.keys.size(1),
                      "knn",
                      "number of keys",
                      ring.size(),
                      fmt::format("at most the {} slots", ring.keys.size(1)));
  if (!ring.codes.defined()) return;
  const tensor::Dim heads{"G", ring.keys.size(0)}, slots{"S", ring.keys.size(1)};
  const int64_t depth = (head_dim + kCodeStep - 1) / kCodeStep * kCodeStep;
  const int64_t groups = (ring.keys.size(1) + kCodeGroup - 1) / kCodeGroup;
  tensor::check_shape("knn",
                      "upper halves of codes",
                      ring.codes.upper,
                      {heads, {"", groups}, {"", depth / 8}, {"", kCodeGroup}, {"", 4}});
  tensor::check_shape(
      "knn", "lower halves of codes", ring.codes.lower, {heads, slots, {"", depth / 2}});
  tensor::check_shape("knn", "scales", ring.codes.scales, {heads, {"", groups * kCodeGroup}});
}

KeyRows key_rows(const KeyRing& ring) {
  KeyRows rows;
  rows.size = ring.size();
  if (rows.size == 0) return rows;
  rows.data = ring.keys.const_data_ptr();
  rows.head_stride = ring.keys.stride(0);
  rows.slot_stride = ring.keys.stride(1);
  rows.codes = ring.codes;
  const int64_t slots = rows.slots = ring.keys.size(1);
  const int64_t slot = (ring.first - ring.base) % slots;
  const int64_t size = std::min(rows.size, slots - slot);
  rows.runs.push_back({slot, ring.first, size});
  if (size < rows.size) rows.runs.push_back({0, ring.first + size, rows.size - size});
  return rows;
}

int64_t num_key_heads_of(std::span<const KeyRing> rings) {
  return rings.empty() ? 1 : rings[0].keys.size(0);
}

}  // namespace

void check_search(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k) {
  tensor::check_shape("knn", "queries", queries, {{"B"}, {"Tq"}, {"H"}, {"D"}});
  tensor::check_dtype("knn", "queries", queries, {at::kFloat, at::kBFloat16, at::kHalf});
  for (const KeyRing& ring : rings) {
    tensor::check_value(queries.device() == ring.keys.device() || ring.keys.is_cpu(),
                        "knn",
                        "device of keys",
                        ring.keys.device().str(),
                        fmt::format("that of queries, {}, or cpu", queries.device().str()));
    tensor::check_value(ring.keys.device() == rings[0].keys.device(),
                        "knn",
                        "device of keys",
                        ring.keys.device().str(),
                        fmt::format("that of the first row's, {}", rings[0].keys.device().str()));
  }
  tensor::check_value(queries.size(3) >= 1, "knn", "D", queries.size(3), "at least 1");
  const auto num_rings = static_cast<int64_t>(rings.size());
  tensor::check_value(num_rings == 1 || num_rings == queries.size(0),
                      "knn",
                      "rows of keys",
                      num_rings,
                      fmt::format("1 or B = {}", queries.size(0)));
  int64_t largest = 0;
  for (const KeyRing& ring : rings) {
    check_ring(ring, rings[0], queries.size(3));
    largest = std::max(largest, ring.size());
  }
  const int64_t num_key_heads = num_key_heads_of(rings);
  tensor::check_value(num_key_heads >= 1 && queries.size(2) % num_key_heads == 0,
                      "knn",
                      "G of keys",
                      num_key_heads,
                      fmt::format("a divisor of H = {}", queries.size(2)));
  tensor::check_value(
      largest >= 1 || rings.empty(), "knn", "number of keys", largest, "at least 1");
  tensor::check_value(k >= 1 && (k <= largest || rings.empty()),
                      "knn",
                      "k",
                      k,
                      fmt::format("1 ... {}, the keys that there are", largest));
}

KeyRing ring_of(const at::Tensor& keys, const at::Tensor& queries) {
  tensor::check_shape("knn", "queries", queries, {{"Q"}, {"D"}});
  tensor::check_shape("knn", "keys", keys, {{"N"}, {"D", queries.size(1)}});
  return {keys.detach().contiguous().unsqueeze(0), 0, 0, keys.size(0)};
}

Problem make_problem(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k) {
  check_search(queries, rings, k);
  Problem problem;
  problem.queries = queries.detach().to(at::kFloat).contiguous();
  if (queries.is_cpu() && !at::isfinite(problem.queries).all().item<bool>()) {
    throw Error("knn: queries hold NaN or an infinity; expected finite numbers");
  }
  problem.k = k;
  problem.num_key_heads = num_key_heads_of(rings);
  for (const KeyRing& ring : rings) problem.rows.push_back(key_rows(ring));
  problem.bf16_keys = !rings.empty() && rings[0].keys.scalar_type() == at::kBFloat16;
  return problem;
}

SearchResult empty_result(const Problem& problem) {
  const std::vector<int64_t> shape = {
      problem.batch(), problem.num_queries(), problem.num_heads(), problem.k};
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  return {at::full(shape, -1, at::kLong), at::full(shape, kLowest, at::kFloat)};
}

void fail_not_finite(int64_t row, int64_t head, int64_t id) {
  throw Error(
      fmt::format("knn: key {} of row {}, head {} holds NaN or an infinity; expected finite "
                  "numbers",
                  id,
                  row,
                  head));
}

}  // namespace reynard::knn
