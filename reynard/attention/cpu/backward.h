#pragma once
// Backward pass of one segment of key blocks, over a tile struct. Key blocks are outer, the heads
// of the group and their query blocks inner, so that dK and dV of a block are complete when it
// ends:
//   P^T = exp2(logits - lse),  dS^T = P^T (V dO^T - delta),
//   dV += P^T dO,  dK += dS^T Q,  dQ^T += K^T dS^T.
// Row and column sums of the f32 dS, before it is rounded for the products, are the gradients of
// the bias sums.

#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

// Column sums are kept per lane in f32 for this many query blocks, then added up in f64.
constexpr int kBlocksPerFlush = 16;

template <int64_t kQueries>
struct alignas(64) QueryLimits {
  QueryRows<kQueries> rows;  // its bias is a_i - log2(e) lse_i, -inf for queries that see nothing
  float delta[kQueries];
};

template <class Tiles>
struct BackwardScratch {
  static constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  using Value = typename Tiles::Value;

  alignas(64) KeyBias<kKeys> keys;
  alignas(64) float scores[kKeys * kQueries];    // S^T, [key][query]
  alignas(64) float dweights[kKeys * kQueries];  // dP^T
  alignas(64) Value weights[kKeys * kQueries];   // P^T as the left factor
  alignas(64) Value dscores[kKeys * kQueries];   // dS^T as the left factor
  alignas(64) Value dscores_right[Tiles::kSharedLayout ? 16 : kKeys * kQueries];
  alignas(64) float key_sums[kKeys * kLanes];  // of dS over queries, per lane
  double key_totals[kKeys];

  // Two blocks of [key][padded D] follow.
  float* dk() { return reinterpret_cast<float*>(this + 1); }
  float* dv(int64_t head_dim) { return dk() + key_block_values<Tiles>(head_dim); }
  static int64_t bytes(int64_t head_dim) {
    return sizeof(BackwardScratch) + 2 * key_block_values<Tiles>(head_dim) * sizeof(float);
  }
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

// P and dS of a tile from S and dP, as factors of the products, and the sums of dS.
template <bool kEdge, class Tiles>
void weigh_and_differentiate(BackwardScratch<Tiles>& s,
                             const QueryLimits<Tiles::kQueries>& limits,
                             KeySpan span,
                             int64_t offset,
                             float scale2,
                             double* row_sums) {
  constexpr int64_t kQueries = Tiles::kQueries;
  constexpr int kVectors = kEdge ? 1 : kGroup<kQueries>;
  for (int64_t q = 0; q < kQueries; q += kVectors * kLanes) {
    Vec bias[kVectors], rest[kVectors], delta[kVectors], sums[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lane = q + v * kLanes;
      bias[v] = load(limits.rows.bias + lane);
      rest[v] = load(limits.rows.bias_rest + lane);
      delta[v] = load(limits.delta + lane);
      sums[v] = Vec{};
    }
    const EdgeRows rows = edge_rows(limits.rows, q);
    for (int64_t j = 0; j < span.count; j += 2) {
      Vec key_sums[2] = {};
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t lane = q + v * kLanes;
        Vec weight[2], dscore[2];
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
          const int64_t at = (j + u) * kQueries + lane;
          const Vec score = load(s.scores + at);
          const float key = s.keys.bias[j + u], key_rest = s.keys.bias_rest[j + u];
          const Vec logit = kEdge
                                ? edge_logit(score, scale2, rows, key, key_rest, span.first + j + u)
                                : score * scale2 + (bias[v] - key) + rest[v];
          weight[u] = exp2<Tiles::kExpDegree>(logit);
          dscore[u] = weight[u] * (load(s.dweights + at) - delta[v]);
          key_sums[u] += dscore[u];
        }
        sums[v] += dscore[0] + dscore[1];
        Tiles::store_left(s.weights, j, lane, weight[0], weight[1]);
        Tiles::store_left(s.dscores, j, lane, dscore[0], dscore[1]);
        if constexpr (!Tiles::kSharedLayout) {
          Tiles::store_right(s.dscores_right, j, lane, dscore[0], dscore[1]);
        }
      }
      for (int u = 0; u < 2; ++u) {
        float* total = s.key_sums + (offset + j + u) * kLanes;
        store(total, load(total) + key_sums[u]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      for (int i = 0; i < kLanes; ++i) row_sums[q + v * kLanes + i] += sums[v][i];
    }
  }
}

// One tile: a span of key block `block` against query block `index` of head h.
template <class Tiles>
void backward_tile(const BackwardParams& params,
                   int64_t pair,
                   int64_t h,
                   int64_t block,
                   int64_t segment,
                   int64_t index,
                   KeySpan span,
                   BackwardScratch<Tiles>& s) {
  constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  using Value = typename Tiles::Value;
  const Problem& p = params.problem;
  const PackedKeys& packed = params.packed;
  const int64_t dim = Tiles::padded(p.D), offset = span.first - block * kKeys;
  const int64_t lane_stride = Tiles::right_stride(kQueries), dim_stride = Tiles::right_stride(dim);
  const auto& limits = *query_limits<Tiles>(params, index);
  const auto keys_of = [&](char* array) { return key_block<Tiles>(p, packed, array, pair, block); };
  const auto queries_of = [&](char* array) { return query_values<Tiles>(params, array, index); };

  fill_key_bias<kKeys>(p, pair / p.G, h, span.first, span.count, limits.rows.reference, s.keys);
  Tiles::template multiply<false>({keys_of(packed.key_rows) + offset * dim, dim},
                                  {queries_of(params.query_lanes), lane_stride},
                                  {s.scores, kQueries},
                                  span.count,
                                  kQueries,
                                  dim);
  Tiles::template multiply<false>({keys_of(packed.value_rows) + offset * dim, dim},
                                  {queries_of(params.dout_lanes), lane_stride},
                                  {s.dweights, kQueries},
                                  span.count,
                                  kQueries,
                                  dim);
  const float scale2 = static_cast<float>(p.scale * kLog2EExact);
  double* row_sums = row_part<Tiles>(params, segment, index);
  char& touched = touched_part<Tiles>(params, segment, index);
  if (!touched) memset(row_sums, 0, kQueries * sizeof(double));
  if (is_edge(limits.rows, span)) {
    weigh_and_differentiate<true>(s, limits, span, offset, scale2, row_sums);
  } else {
    weigh_and_differentiate<false>(s, limits, span, offset, scale2, row_sums);
  }
  Tiles::template multiply<true>({s.weights, kQueries},
                                 {queries_of(params.dout_rows), dim_stride},
                                 {s.dv(p.D) + offset * dim, dim},
                                 span.count,
                                 dim,
                                 kQueries);
  Tiles::template multiply<true>({s.dscores, kQueries},
                                 {queries_of(params.query_rows), dim_stride},
                                 {s.dk() + offset * dim, dim},
                                 span.count,
                                 dim,
                                 kQueries);
  const Matrix<const Value> left{keys_of(packed.key_columns) + offset, kKeys};
  const Matrix<const Value> right{Tiles::kSharedLayout ? s.dscores : s.dscores_right, lane_stride};
  const Matrix<float> dq{dq_part<Tiles>(params, segment, index), kQueries};
  if (touched) {
    Tiles::template multiply<true>(left, right, dq, dim, kQueries, span.count);
  } else {
    Tiles::template multiply<false>(left, right, dq, dim, kQueries, span.count);
  }
  touched = 1;
}

template <class Tiles>
void flush_key_sums(BackwardScratch<Tiles>& s) {
  for (int64_t j = 0; j < Tiles::kKeys; ++j) {
    for (int i = 0; i < kLanes; ++i) s.key_totals[j] += s.key_sums[j * kLanes + i];
  }
  memset(s.key_sums, 0, sizeof(s.key_sums));
}

// All query blocks of one head against one key block.
template <class Tiles>
void backward_head(const BackwardParams& params,
                   int64_t pair,
                   int64_t h,
                   int64_t block,
                   int64_t segment,
                   BackwardScratch<Tiles>& s) {
  const Problem& p = params.problem;
  const int64_t b = pair / p.G, num_blocks = div_up(p.Tq, Tiles::kQueries);
  const KeyRange* ranges = p.ranges + (b * p.H + h) * num_blocks;
  const int64_t first = block * Tiles::kKeys, last = min_of(first + Tiles::kKeys, p.Tk);
  const int64_t first_index = query_index<Tiles>(params, b, h, 0);
  memset(s.key_sums, 0, sizeof(s.key_sums));
  memset(s.key_totals, 0, sizeof(s.key_totals));
  int unflushed = 0;
  for (int64_t m = 0; m < num_blocks; ++m) {
    if (ranges[m].empty() || ranges[m].begin >= last || ranges[m].end <= first) continue;
    const KeySpan span = span_in_block<Tiles>(block, ranges[m]);
    backward_tile(params, pair, h, block, segment, first_index + m, span, s);
    if (++unflushed == kBlocksPerFlush) {
      flush_key_sums(s);
      unflushed = 0;
    }
  }
  flush_key_sums(s);
  if (!params.dkey_sums) return;
  double* sums = params.dkey_sums + (b * p.H + h) * p.Tk;
  for (int64_t j = first; j < last; ++j) sums[j] = -s.key_totals[j - first];
}

template <class Tiles>
void write_key_gradients(const BackwardParams& params,
                         int64_t pair,
                         int64_t block,
                         BackwardScratch<Tiles>& s) {
  const Problem& p = params.problem;
  const int64_t dim = Tiles::padded(p.D), first = block * Tiles::kKeys;
  const int64_t num_rows = min_of(Tiles::kKeys, p.Tk - first);
  const auto write = [&](const Operand& to, const float* from, float factor) {
    with_output_rows(to, pair / p.G, first, pair % p.G, [&](auto* rows) {
      for (int64_t j = 0; j < num_rows; ++j) {
        for (int64_t d = 0; d < p.D; ++d) {
          from_float(from[j * dim + d] * factor, rows[j * to.time + d]);
        }
      }
    });
  };
  write(params.dk, s.dk(), static_cast<float>(p.scale));
  write(params.dv, s.dv(p.D), 1);
}

template <class Tiles>
void backward(const BackwardParams& params, int64_t pair, int64_t segment, char* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const typename Tiles::Session session;
  const Problem& p = params.problem;
  auto& s = *reinterpret_cast<BackwardScratch<Tiles>*>(scratch);
  const int64_t group = p.H / p.G, first_head = pair % p.G * group;
  const int64_t num_blocks = group * div_up(p.Tq, Tiles::kQueries);
  const int64_t first_index = query_index<Tiles>(params, pair / p.G, first_head, 0);
  memset(&touched_part<Tiles>(params, segment, first_index), 0, num_blocks);
  for (int64_t block = 0; block < div_up(p.Tk, Tiles::kKeys); ++block) {
    if (segment_of(block, params.num_segments) != segment) continue;
    memset(s.dk(), 0, 2 * key_block_values<Tiles>(p.D) * sizeof(float));
    for (int64_t h = first_head; h < first_head + group; ++h) {
      backward_head(params, pair, h, block, segment, s);
    }
    write_key_gradients(params, pair, block, s);
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
  const float scale = static_cast<float>(p.scale);
  with_output_rows(params.dq, b, first, h, [&](auto* rows) {
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t d = 0; d < p.D; ++d) {
        from_float(total ? total[d * kQueries + i] * scale : 0, rows[i * params.dq.time + d]);
      }
    }
  });
  if (!params.dquery_sums) return;
  double* sums = params.dquery_sums + (b * p.H + h) * p.Tq + first;
  for (int64_t i = 0; i < num_rows; ++i) sums[i] = row_total ? row_total[i] : 0;
}

}  // namespace
}  // namespace reynard::attention::cpu
