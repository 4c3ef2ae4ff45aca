#pragma once
// What the backward pass keeps per query block: packed queries and output gradients, the limits and
// biases of its rows, and its sums over keys, one part per segment, which are added in the order of
// the segments at the end.

#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

template <int64_t kQueries>
struct alignas(64) QueryLimits {
  QueryRows<kQueries> rows;  // its bias is a_i - log2(e) lse_i, -inf for queries that see nothing
  float delta[kQueries];
};

// Index of a query block among those of the packed pairs.
template <class Tiles>
int64_t query_index(const BackwardParams& params, int64_t b, int64_t h, int64_t query_block) {
  const Problem& p = params.problem;
  const int64_t group = p.H / p.G, pair = b * p.G + h / group;
  const int64_t head = (pair - params.packed.first_pair) * group + h % group;
  return head * div_up(p.Tq, Tiles::kQueries) + query_block;
}

template <class Tiles>
QueryLimits<Tiles::kQueries>* query_limits(const BackwardParams& params, int64_t index) {
  return reinterpret_cast<QueryLimits<Tiles::kQueries>*>(params.query_limits) + index;
}

template <class Tiles>
typename Tiles::Value* query_values(const BackwardParams& params, char* array, int64_t index) {
  return reinterpret_cast<typename Tiles::Value*>(array) +
         index * query_block_values<Tiles>(params.problem.D);
}

// Index of a query block in a segment's sums over keys.
template <class Tiles>
int64_t part_index(const BackwardParams& params, int64_t segment, int64_t index) {
  const Problem& p = params.problem;
  const int64_t num_heads = params.packed.num_pairs * (p.H / p.G);
  return segment * num_heads * div_up(p.Tq, Tiles::kQueries) + index;
}

template <class Tiles>
float* dq_part(const BackwardParams& params, int64_t segment, int64_t index) {
  return params.dq_parts +
         part_index<Tiles>(params, segment, index) * query_block_values<Tiles>(params.problem.D);
}

template <class Tiles>
double* row_part(const BackwardParams& params, int64_t segment, int64_t index) {
  return params.row_parts + part_index<Tiles>(params, segment, index) * Tiles::kQueries;
}

template <class Tiles>
char& touched_part(const BackwardParams& params, int64_t segment, int64_t index) {
  return params.touched[part_index<Tiles>(params, segment, index)];
}

template <class Tiles>
void pack_queries(const BackwardParams& params, int64_t b, int64_t h, int64_t query_block) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const FlushDenormals flush;
  const Problem& p = params.problem;
  const int64_t index = query_index<Tiles>(params, b, h, query_block);
  const int64_t first = query_block * kQueries, num_rows = min_of(kQueries, p.Tq - first);
  const auto pack = [&](const Operand& x, char* lanes, char* rows) {
    with_rows(x, b, first, h, [&](const auto* from) {
      Tiles::pack_query_lanes(
          from, x.time, num_rows, p.D, query_values<Tiles>(params, lanes, index));
      Tiles::pack_query_rows(from, x.time, num_rows, p.D, query_values<Tiles>(params, rows, index));
    });
  };
  pack(p.q, params.query_lanes, params.query_rows);
  pack(params.dout, params.dout_lanes, params.dout_rows);

  auto& limits = *query_limits<Tiles>(params, index);
  fill_query_rows<kQueries>(p, b, h, query_block, limits.rows);
  const int64_t row = (b * p.H + h) * p.Tq + first;
  for (int64_t i = 0; i < kQueries; ++i) {
    const float lse = i < num_rows ? params.lse[row + i] : -kInfinity;
    const double bias = static_cast<double>(limits.rows.bias[i]) + limits.rows.bias_rest[i];
    split(bias - lse * kLog2EExact, limits.rows.bias[i], limits.rows.bias_rest[i]);
    if (lse == -kInfinity) {
      limits.rows.bias[i] = -kInfinity;
      limits.rows.bias_rest[i] = 0;
    }
    limits.delta[i] = i < num_rows ? static_cast<float>(params.delta[row + i]) : 0;
  }
}

template <class Tiles>
void reduce_queries(const BackwardParams& params, int64_t b, int64_t h, int64_t query_block) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const FlushDenormals flush;
  const Problem& p = params.problem;
  const int64_t first = query_block * kQueries, num_rows = min_of(kQueries, p.Tq - first);
  const int64_t index = query_index<Tiles>(params, b, h, query_block);
  float* total = nullptr;
  double* row_total = nullptr;
  for (int64_t segment = 0; segment < params.num_segments; ++segment) {
    if (!touched_part<Tiles>(params, segment, index)) continue;
    float* part = dq_part<Tiles>(params, segment, index);
    double* row_sums = row_part<Tiles>(params, segment, index);
    if (!total) {
      total = part;
      row_total = row_sums;
      continue;
    }
    for (int64_t x = 0; x < query_block_values<Tiles>(p.D); ++x) total[x] += part[x];
    for (int64_t i = 0; i < kQueries; ++i) row_total[i] += row_sums[i];
  }
  with_output_rows(params.dq, b, first, h, [&](auto* rows) {
    if (total) {
      alignas(64) float factors[kQueries];
      for (float& factor : factors) factor = static_cast<float>(p.scale);
      return write_transposed<Tiles>(query_sums_of<Tiles>(total, Tiles::padded(p.D)),
                                     factors,
                                     num_rows,
                                     p.D,
                                     rows,
                                     params.dq.time);
    }
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t d = 0; d < p.D; ++d) from_float(0, rows[i * params.dq.time + d]);
    }
  });
  if (!params.dquery_sums) return;
  double* sums = params.dquery_sums + (b * p.H + h) * p.Tq + first;
  for (int64_t i = 0; i < num_rows; ++i) sums[i] = row_total ? row_total[i] : 0;
}

}  // namespace
}  // namespace reynard::attention::cpu
