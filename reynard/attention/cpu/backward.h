#pragma once
// Backward pass of one segment of key blocks, over a tile struct. Key blocks are outer, the heads
// of the group and their query blocks inner, so that dK and dV of a block are complete when it
// ends:
//   P^T = exp2(logits - lse),  dS^T = P^T (V dO^T - delta),
//   dV += P^T dO,  dK += dS^T Q,  dQ^T += K^T dS^T.
// Row and column sums of the f32 dS, before it is rounded for the products, are the gradients of
// the bias sums.

#include "reynard/attention/cpu/backward_queries.h"
#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

// Column sums are kept per lane in f32 for this many query blocks, then added up in f64.
constexpr int kBlocksPerFlush = 16;

template <class Tiles>
struct BackwardScratch {
  static constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  using Value = typename Tiles::Value;

  // S and dP are formed for this many keys and queries at a time, so that both stay in the
  // first-level cache on their way to P and dS.
  static constexpr int kPartVectors = kGroup<kQueries>;
  static constexpr int64_t kPartQueries = kPartVectors * kLanes, kPartKeys = 32;
  static_assert(kKeys % kPartKeys == 0 && kPartKeys % Tiles::kKeyStep == 0);

  alignas(64) KeyBias<kKeys> keys;
  alignas(64) float scores[kPartKeys * kPartQueries];    // S^T, [key][query]
  alignas(64) float dweights[kPartKeys * kPartQueries];  // dP^T
  alignas(64) Value weights[kKeys * kQueries];           // P^T as the left factor
  alignas(64) Value dscores[kKeys * kQueries];           // dS^T as the left factor
  alignas(64) Value dscores_right[Tiles::kSharedLayout ? 16 : kKeys * kQueries];
  alignas(64) float key_sums[kKeys * kLanes];  // of dS over queries, per lane
  alignas(64) float row_sums[kQueries];        // of dS over the keys of a tile
  double key_totals[kKeys];

  // Two blocks of [key][padded D] follow.
  float* dk() { return reinterpret_cast<float*>(this + 1); }
  float* dv(int64_t head_dim) { return dk() + key_block_values<Tiles>(head_dim); }
  static int64_t bytes(int64_t head_dim) {
    return sizeof(BackwardScratch) + 2 * key_block_values<Tiles>(head_dim) * sizeof(float);
  }
};

// What the next query block will read of one array, asked for in shares while this one is worked
// on: only the order in which blocks are visited tells where it lies.
struct Ahead {
  const char* data = nullptr;
  int64_t share = 0;

  Ahead() = default;
  Ahead(const void* array, int64_t bytes, int64_t num_shares)
      : data(static_cast<const char*>(array)), share(round_up(div_up(bytes, num_shares), 64)) {}
  void prefetch_share(int64_t n) const {
    for (int64_t x = 0; x < share; x += 64) prefetch(data + n * share + x);
  }
};

// A span of one key block against one query block.
template <class Tiles>
struct BackwardTile {
  const QueryLimits<Tiles::kQueries>& limits;
  KeySpan span;
  int64_t offset = 0;  // where the span begins in its key block
  float scale2 = 0;
  // S and dP: rows of the span as left factors, the query block as right ones.
  Matrix<const typename Tiles::Value> keys, values, queries, douts;
  Ahead ahead[5];  // one share for every two keys
};

// Part of a tile: `count` keys from `key` of the span and kPartQueries queries from `query`.
struct TilePart {
  int64_t key = 0, count = 0, query = 0;
};

// P and dS of a part of a tile, as factors of the products, and the sums of dS.
template <bool kEdge, class Tiles>
inline void weigh_and_differentiate(BackwardScratch<Tiles>& s,
                                    const BackwardTile<Tiles>& tile,
                                    const TilePart& part) {
  constexpr int64_t kPartQueries = BackwardScratch<Tiles>::kPartQueries;
  constexpr int kVectors = kEdge ? 1 : BackwardScratch<Tiles>::kPartVectors;
  for (int64_t q = 0; q < kPartQueries; q += kVectors * kLanes) {
    const int64_t query = part.query + q;
    Vec bias[kVectors], rest[kVectors], delta[kVectors], sums[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lane = query + v * kLanes;
      bias[v] = load(tile.limits.rows.bias + lane);
      rest[v] = load(tile.limits.rows.bias_rest + lane);
      delta[v] = load(tile.limits.delta + lane);
      sums[v] = load(s.row_sums + lane);
    }
    const EdgeRows rows = edge_rows(tile.limits.rows, query);
    for (int64_t i = 0; i < part.count; i += 2) {
      const int64_t j = part.key + i;
      Vec key_sums[2] = {};
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t lane = query + v * kLanes;
        Vec weight[2], dscore[2];
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
          const int64_t at = (i + u) * kPartQueries + q + v * kLanes;
          const Vec score = load(s.scores + at);
          const float key = s.keys.bias[j + u], key_rest = s.keys.bias_rest[j + u];
          const Vec logit =
              kEdge ? edge_logit(score, tile.scale2, rows, key, key_rest, tile.span.first + j + u)
                    : score * tile.scale2 + (bias[v] - key) + rest[v];
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
        float* total = s.key_sums + (tile.offset + j + u) * kLanes;
        store(total, load(total) + key_sums[u]);
      }
    }
    for (int v = 0; v < kVectors; ++v) store(s.row_sums + query + v * kLanes, sums[v]);
  }
}

template <bool kEdge, class Tiles>
void form_weights(BackwardScratch<Tiles>& s, const BackwardTile<Tiles>& tile, int64_t depth) {
  constexpr int64_t kPartKeys = BackwardScratch<Tiles>::kPartKeys;
  constexpr int64_t kPartQueries = BackwardScratch<Tiles>::kPartQueries;
  for (int64_t query = 0; query < Tiles::kQueries; query += kPartQueries) {
    for (int64_t key = 0; key < tile.span.count; key += kPartKeys) {
      const TilePart part = {key, min_of(kPartKeys, tile.span.count - key), query};
      const auto multiply = [&](const auto& left, const auto& right, float* to) {
        Tiles::template multiply<false>({left.data + key * left.stride, left.stride},
                                        {right.data + query / Tiles::kPanel * right.panel +
                                             Tiles::right_stride(query % Tiles::kPanel),
                                         right.stride,
                                         right.panel},
                                        {to, kPartQueries},
                                        part.count,
                                        kPartQueries,
                                        depth);
      };
      multiply(tile.keys, tile.queries, s.scores);
      multiply(tile.values, tile.douts, s.dweights);
      weigh_and_differentiate<kEdge>(s, tile, part);
    }
  }
}

// The same while the products are in registers or on their way through them.
template <bool kEdge, class Tiles>
void form_weights_of_products(BackwardScratch<Tiles>& s,
                              const BackwardTile<Tiles>& tile,
                              int64_t depth) {
  const QueryRows<Tiles::kQueries>& rows = tile.limits.rows;
  const auto body = [&](int64_t j, int64_t q, const Vec(&scores)[2][2], const Vec(&dweights)[2][2])
      __attribute__((always_inline)) {
    if (q == 0) {
      for (const Ahead& next : tile.ahead) next.prefetch_share(j / 2);
    }
    Vec weights[2][2], dscores[2][2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const int64_t lane = q + v * kLanes;
      const Vec bias = load(rows.bias + lane), rest = load(rows.bias_rest + lane);
      const Vec delta = load(tile.limits.delta + lane);
      const EdgeRows edge = edge_rows(rows, lane);
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        const float key = s.keys.bias[j + u], key_rest = s.keys.bias_rest[j + u];
        const Vec logit =
            kEdge ? edge_logit(
                        scores[u][v], tile.scale2, edge, key, key_rest, tile.span.first + j + u)
                  : scores[u][v] * tile.scale2 + (bias - key) + rest;
        weights[u][v] = exp2<Tiles::kExpDegree>(logit);
        dscores[u][v] = weights[u][v] * (dweights[u][v] - delta);
      }
      store(s.row_sums + lane, load(s.row_sums + lane) + (dscores[0][v] + dscores[1][v]));
    }
    for (int u = 0; u < 2; ++u) {
      float* total = s.key_sums + (tile.offset + j + u) * kLanes;
      store(total, load(total) + (dscores[u][0] + dscores[u][1]));
    }
    Tiles::store_left(s.weights, j, q, weights);
    Tiles::store_both(s.dscores, s.dscores_right, j, q, dscores);
  };
  Tiles::each_pair_of_products(
      tile.keys, tile.queries, tile.values, tile.douts, tile.span.count, depth, body);
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
  const int64_t dim_stride = Tiles::right_stride(dim);
  const auto& limits = *query_limits<Tiles>(params, index);
  const auto keys_of = [&](char* array) -> const Value* {
    return key_block<Tiles>(p, packed, array, pair, block);
  };
  const auto queries_of = [&](char* array) -> const Value* {
    return query_values<Tiles>(params, array, index);
  };
  const auto next_block = [&](char* array) {
    return Ahead(query_values<Tiles>(params, array, index + 1),
                 kQueries * dim * static_cast<int64_t>(sizeof(Value)),
                 span.count / 2);
  };

  fill_key_bias<kKeys>(p, pair / p.G, h, span.first, span.count, limits.rows.reference, s.keys);
  memset(s.row_sums, 0, sizeof(s.row_sums));
  const BackwardTile<Tiles> tile = {
      .limits = limits,
      .span = span,
      .offset = offset,
      .scale2 = static_cast<float>(p.scale * kLog2EExact),
      .keys = {keys_of(packed.key_rows) + offset * dim, dim},
      .values = {keys_of(packed.value_rows) + offset * dim, dim},
      .queries = query_factor<Tiles>(queries_of(params.query_lanes), dim),
      .douts = query_factor<Tiles>(queries_of(params.dout_lanes), dim),
      .ahead = {next_block(params.query_lanes),
                next_block(params.dout_lanes),
                next_block(params.query_rows),
                next_block(params.dout_rows),
                {dq_part<Tiles>(params, segment, index + 1),
                 kQueries * dim * static_cast<int64_t>(sizeof(float)),
                 span.count / 2}}};
  const bool edge = is_edge(limits.rows, span);
  if constexpr (Tiles::kPairsOfProducts) {
    edge ? form_weights_of_products<true>(s, tile, dim)
         : form_weights_of_products<false>(s, tile, dim);
  } else {
    edge ? form_weights<true>(s, tile, dim) : form_weights<false>(s, tile, dim);
  }

  char& touched = touched_part<Tiles>(params, segment, index);
  double* totals = row_part<Tiles>(params, segment, index);
  if (!touched) memset(totals, 0, kQueries * sizeof(double));
  for (int64_t i = 0; i < kQueries; ++i) totals[i] += s.row_sums[i];

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
  const auto right = query_factor<Tiles>(Tiles::kSharedLayout ? s.dscores : s.dscores_right, kKeys);
  const auto dq = query_sums_of<Tiles>(dq_part<Tiles>(params, segment, index), dim);
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
    const auto& rows = query_limits<Tiles>(params, first_index + m)->rows;
    const KeySpan span = span_in_block<Tiles>(block, ranges[m]);
    for (const KeySpan& part : parts_of_span<Tiles>(rows, span).spans) {
      if (part.count == 0) continue;
      backward_tile(params, pair, h, block, segment, first_index + m, part, s);
    }
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
        auto* row = rows + j * to.time;
        const float* sums = from + j * dim;
        int64_t d = 0;
        for (; d + kLanes <= p.D; d += kLanes) store_values(load(sums + d) * factor, row + d);
        for (; d < p.D; ++d) from_float(sums[d] * factor, row[d]);
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

}  // namespace
}  // namespace reynard::attention::cpu
