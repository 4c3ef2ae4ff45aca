#include "reynard/knn/query_group.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace reynard::knn {

namespace {

// To nearest, ties to even; stays finite for the largest floats by rounding towards zero there.
float round_to_bf16(float x) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const auto bits = __builtin_bit_cast(uint32_t, x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  if ((rounded & kInfinity) == kInfinity) rounded = bits & 0xffff0000;
  return __builtin_bit_cast(float, rounded);
}

}  // namespace

// Both scores are sums of D products, each product and sum rounded once (u = 2^-24), so each is
// within g |q|_1 max|k| of the exact sum, g = n u / (1 - n u) for at most n roundings per term. The
// bounds score +- error and the threshold floor - error are rounded too: 8 u more. Flushed numbers
// below 2^-126 change factors, products or sums by as much. docs/architecture.md has the argument.
float error_bound(const Query& query,
                  double largest,
                  const cpu::ScanKernels& kernels,
                  int64_t depth) {
  constexpr double kUnit = 0x1p-24, kSmallest = 0x1p-126;
  const auto terms = static_cast<double>(depth);
  const double size = (query.norm + query.rounding) * largest;
  if (!(size < 0.25 * std::numeric_limits<float>::max())) {
    return std::numeric_limits<float>::infinity();
  }
  const double roundings = (terms + 1) * kUnit / (1 - (terms + 1) * kUnit);
  double error = (2 * roundings + 8 * kUnit) * size + query.rounding * largest;
  error += kSmallest * 4 * terms;
  if (kernels.flushes_denormals) error += kSmallest * (query.norm + terms * largest);
  return std::nextafter(static_cast<float>(error), std::numeric_limits<float>::infinity());
}

// Key = scale (code + e) with |e_d| <= 0.501, query = factor code + r: the score is within
// scale (127 |r|_1 + 0.501 |q|_1) of scale factor product. With 7.5 for each lower half, which is
// within 7.5 of it, 0.501 becomes 8.001. The plain loop's rounding, g |q|_1 127 scale, and that of
// the bound itself (2^-10 of it is far more) come on top.
CodedQuery encode_query(const float* query, int64_t head_dim, int64_t depth) {
  constexpr double kMost = 127, kUnit = 0x1p-24, kSmallest = 0x1p-126;
  double largest = 0, norm = 0, rounding = 0;
  for (int64_t d = 0; d < head_dim; ++d) {
    largest = std::max(largest, std::fabs(double{query[d]}));
    norm += std::fabs(double{query[d]});
  }
  CodedQuery coded{.codes = Scratch(lines_of(depth)), .depth = depth};
  const auto factor = static_cast<float>(std::max(largest / kMost, 2 * kSmallest));
  auto* codes = reinterpret_cast<int8_t*>(coded.codes.data());
  for (int64_t d = 0; d < head_dim; ++d) {
    const double code = std::clamp(std::nearbyint(query[d] / double{factor}), -kMost, kMost);
    codes[d] = static_cast<int8_t>(code);
    coded.sum += codes[d];
    rounding += std::fabs(query[d] - double{factor} * code);
  }
  const auto terms = static_cast<double>(head_dim + 1);
  const double loop = terms * kUnit / (1 - terms * kUnit) * kMost * norm;
  const auto bound = [&](double key_error) {
    const double error = kMost * rounding + key_error * norm + loop;
    return cpu::CodeBound{.factor = factor / 2,  // products are counted twice
                          .error = static_cast<float>(error * (1 + 0x1p-10) + kSmallest),
                          .smallest = static_cast<float>(4 * kSmallest * terms)};
  };
  coded.coarse = bound(8.001);
  coded.fine = bound(0.501);
  return coded;
}

QueryGroup::QueryGroup(std::vector<Query> queries,
                       std::vector<float> values,
                       const cpu::ScanKernels& kernels,
                       int64_t depth)
    : queries_(std::move(queries)) {
  for (size_t i = 0; i < queries_.size(); ++i) {
    float* q = values.data() + static_cast<int64_t>(i) * depth;
    for (int64_t d = 0; d < depth; ++d) {
      const float packed = kernels.packs_bf16 ? round_to_bf16(q[d]) : q[d];
      queries_[i].norm += std::fabs(double{q[d]});
      queries_[i].rounding += std::fabs(double{q[d]} - double{packed});
      q[d] = packed;
    }
  }
  values.resize(static_cast<size_t>(lanes() * depth));  // absent queries are zeros
  packed_.resize(lines_of(lanes() * depth * static_cast<int64_t>(sizeof(float))));
  (single() ? kernels.pack_one : kernels.pack_many)(values.data(), depth, packed_.data());
}

}  // namespace reynard::knn
