#pragma once
// Backward pass of one key block, over a tile struct. The heads of the group and their query blocks
// are inner, so that dK and dV of the block are complete when it ends:
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

  // dS^T as the right factor.
  Value* right_dscores() { return Tiles::kSharedLayout ? dscores : dscores_right; }

  // Two blocks of [key][padded D] follow, and the packed key block.
  float* dk() { return reinterpret_cast<float*>(this + 1); }
  float* dv(int64_t head_dim) { return dk() + key_block_values<Tiles>(head_dim); }
  Value* key_rows(int64_t head_dim) {
    return reinterpret_cast<Value*>(dk() + 2 * key_block_values<Tiles>(head_dim));
  }
  Value* key_columns(int64_t head_dim) {
    return key_rows(head_dim) + key_block_values<Tiles>(head_dim);
  }
  Value* value_rows(int64_t head_dim) {
    return key_columns(head_dim) + key_block_values<Tiles>(head_dim);
  }
  static int64_t bytes(int64_t head_dim) {
    return sizeof(BackwardScratch) +
           key_block_values<Tiles>(head_dim) * (2 * sizeof(float) + 3 * sizeof(Value));
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

// A span of one key block against one query block; rows of the tile are keys, counted from the
// span's first.
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

// Rows [begin, begin + count) of a tile.
struct TileRows {
  int64_t begin = 0, count = 0;
};

// Part of a tile: `count` rows from `key` and kPartQueries queries from `query`.
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

// Queries [begin, end) that see any of `count` keys from `first`, rounded outwards to steps of
// kMaskStep: in an edge tile the weights of all others are 0.
template <class Tiles>
KeyRange queries_that_see(const QueryRows<Tiles::kQueries>& rows, int64_t first, int64_t count) {
  constexpr int64_t kStep = Tiles::kMaskStep;
  int64_t begin = 0, end = Tiles::kQueries;
  while (begin < end && rows.end[begin + kStep - 1] <= first) begin += kStep;
  while (begin < end && rows.first[end - kStep] >= first + count) end -= kStep;
  return {begin, end};
}

template <bool kEdge, class Tiles>
void form_weights(BackwardScratch<Tiles>& s,
                  const BackwardTile<Tiles>& tile,
                  TileRows rows,
                  int64_t depth) {
  const int64_t end = rows.begin + rows.count;
  constexpr int64_t kPartKeys = BackwardScratch<Tiles>::kPartKeys;
  constexpr int64_t kPartQueries = BackwardScratch<Tiles>::kPartQueries;
  for (int64_t query = 0; query < Tiles::kQueries; query += kPartQueries) {
    for (int64_t key = rows.begin; key < end; key += kPartKeys) {
      const TilePart part = {key, min_of(kPartKeys, end - key), query};
      if constexpr (kEdge && kPartQueries < Tiles::kQueries) {
        const KeyRange seeing =
            queries_that_see<Tiles>(tile.limits.rows, tile.span.first + key, part.count);
        if (seeing.end <= query || seeing.begin >= query + kPartQueries) {
          Tiles::zero_right(s.right_dscores(), key, part.count, query, kPartQueries);
          continue;
        }
      }
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

// The same while the products are in registers or on their way through them; with kHalf for 32
// queries from `query` instead of all 64.
template <bool kEdge, bool kHalf, class Tiles>
void form_weights_of_products(BackwardScratch<Tiles>& s,
                              const BackwardTile<Tiles>& tile,
                              TileRows tile_rows,
                              int64_t query,
                              int64_t depth) {
  const QueryRows<Tiles::kQueries>& rows = tile.limits.rows;
  const auto body = [&](
      int64_t j, int64_t column, const Vec(&scores)[2][2], const Vec(&dweights)[2][2])
      __attribute__((always_inline)) {
    const int64_t q = (kHalf ? query : 0) + column;
    if (column == 0) {
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
  const auto right = [&](const auto& queries) {
    return Matrix<const typename Tiles::Value>{queries.data + Tiles::right_stride(query),
                                               queries.stride};
  };
  using Product = typename Tiles::Product;
  Tiles::template each_pair_of_products<kHalf>(Product{tile.keys, right(tile.queries)},
                                               Product{tile.values, right(tile.douts)},
                                               tile_rows.begin,
                                               tile_rows.begin + tile_rows.count,
                                               depth,
                                               body);
}

// Rows of an edge, 32 keys at a time: where half of the queries sees none of these, the products of
// that half are not formed.
template <class Tiles>
void form_edge_of_products(BackwardScratch<Tiles>& s,
                           const BackwardTile<Tiles>& tile,
                           TileRows rows,
                           int64_t depth) {
  constexpr int64_t kHalf = Tiles::kQueries / 2;
  for (int64_t row = rows.begin; row < rows.begin + rows.count; row += Tiles::kKeyStep) {
    const TileRows step = {row, Tiles::kKeyStep};
    const KeyRange queries =
        queries_that_see<Tiles>(tile.limits.rows, tile.span.first + row, step.count);
    if (queries.begin < kHalf && queries.end > kHalf) {
      form_weights_of_products<true, false>(s, tile, step, 0, depth);
      continue;
    }
    const int64_t seen = queries.begin < kHalf ? 0 : kHalf;
    form_weights_of_products<true, true>(s, tile, step, seen, depth);
    Tiles::zero_right(s.right_dscores(), row, step.count, kHalf - seen, kHalf);
  }
}

// dV += P^T dO and dK += dS^T Q for `count` rows of a tile, over the queries that see any of them.
template <class Tiles>
void add_key_gradients(const BackwardParams& params,
                       const BackwardTile<Tiles>& tile,
                       int64_t index,
                       int64_t row,
                       int64_t count,
                       BackwardScratch<Tiles>& s) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const int64_t head_dim = params.problem.D, dim = Tiles::padded(head_dim);
  const KeyRange queries = queries_that_see<Tiles>(tile.limits.rows, tile.span.first + row, count);
  if (queries.empty()) return;
  const auto add = [&](const auto* left, char* right, float* sums) {
    Tiles::template multiply<true>(
        {left + row * kQueries + queries.begin, kQueries},
        {query_values<Tiles>(params, right, index) + queries.begin * dim, Tiles::right_stride(dim)},
        {sums + (tile.offset + row) * dim, dim},
        count,
        dim,
        queries.end - queries.begin);
  };
  add(s.weights, params.dout_rows, s.dv(head_dim));
  add(s.dscores, params.query_rows, s.dk());
}

// The weights and dS of a tile, part by part, and what its keys' gradients get of them.
template <class Tiles>
void add_keys_of_tile(const BackwardParams& params,
                      const BackwardTile<Tiles>& tile,
                      int64_t index,
                      int64_t dim,
                      BackwardScratch<Tiles>& s) {
  for (const KeySpan& part : parts_of_span<Tiles>(tile.limits.rows, tile.span).spans) {
    if (part.count == 0) continue;
    const TileRows rows = {part.first - tile.span.first, part.count};
    const bool edge = is_edge(tile.limits.rows, part);
    if constexpr (Tiles::kPairsOfProducts) {
      edge ? form_edge_of_products(s, tile, rows, dim)
           : form_weights_of_products<false, false>(s, tile, rows, 0, dim);
    } else {
      edge ? form_weights<true>(s, tile, rows, dim) : form_weights<false>(s, tile, rows, dim);
    }
    const int64_t step = edge ? Tiles::kMaskStep : part.count;
    for (int64_t row = rows.begin; row < rows.begin + rows.count; row += step) {
      const int64_t count = min_of(step, rows.begin + rows.count - row);
      add_key_gradients(params, tile, index, row, count, s);
    }
  }
}

// One tile: what a query block sees of a task's key block.
template <class Tiles>
void backward_tile(const BackwardParams& params,
                   int64_t block,
                   const QueryPlace& at,
                   BackwardScratch<Tiles>& s) {
  constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  using Value = typename Tiles::Value;
  const Problem& p = params.problem;
  const int64_t dim = Tiles::padded(p.D), place = range_index<Tiles>(p, at);
  const KeyRange keys = p.ranges[place];
  const KeySpan span = span_in_block<Tiles>(block, keys);
  const int64_t offset = span.first - block * kKeys;
  const bool is_first = keys.begin / kKeys == block, is_last = (keys.end - 1) / kKeys == block;
  Turns turns(params.turns[place]);
  if (is_first) {
    pack_queries<Tiles>(params, at);
    turns.set(block);
  } else {
    turns.wait_until_packed();
  }
  const auto& limits = *query_limits<Tiles>(params, at.index);
  const auto queries_of = [&](char* array) -> const Value* {
    return query_values<Tiles>(params, array, at.index);
  };
  const auto next_block = [&](char* array) {
    return Ahead(query_values<Tiles>(params, array, at.index + 1),
                 kQueries * dim * static_cast<int64_t>(sizeof(Value)),
                 span.count / 2);
  };

  fill_key_bias(p, at.b * p.H + at.h, span, limits.rows.reference, s.keys);
  memset(s.row_sums, 0, sizeof(s.row_sums));
  const BackwardTile<Tiles> tile = {
      .limits = limits,
      .span = span,
      .offset = offset,
      .scale2 = static_cast<float>(p.scale * kLog2EExact),
      .keys = {s.key_rows(p.D) + offset * dim, dim},
      .values = {s.value_rows(p.D) + offset * dim, dim},
      .queries = query_factor<Tiles>(queries_of(params.query_lanes), dim),
      .douts = query_factor<Tiles>(queries_of(params.dout_lanes), dim),
      .ahead = {next_block(params.query_lanes),
                next_block(params.dout_lanes),
                next_block(params.query_rows),
                next_block(params.dout_rows),
                {dq_sums<Tiles>(params, at.index + 1),
                 kQueries * dim * static_cast<int64_t>(sizeof(float)),
                 span.count / 2}}};
  add_keys_of_tile(params, tile, at.index, dim, s);

  turns.wait_for(block);
  double* totals = row_sums<Tiles>(params, at.index);
  if (is_first) memset(totals, 0, kQueries * sizeof(double));
  for (int64_t i = 0; i < kQueries; ++i) totals[i] += s.row_sums[i];

  const Matrix<const Value> left{s.key_columns(p.D) + offset, kKeys};
  const auto right = query_factor<Tiles>(s.right_dscores(), kKeys);
  const auto dq = query_sums_of<Tiles>(dq_sums<Tiles>(params, at.index), dim);
  if (is_first) {
    Tiles::template multiply<false>(left, right, dq, dim, kQueries, span.count);
  } else {
    Tiles::template multiply<true>(left, right, dq, dim, kQueries, span.count);
  }
  if (is_last) write_query_gradients<Tiles>(params, at);
  turns.set(block + 1);
}

template <class Tiles>
void flush_key_sums(BackwardScratch<Tiles>& s) {
  for (int64_t j = 0; j < Tiles::kKeys; ++j) {
    for (int i = 0; i < kLanes; ++i) s.key_totals[j] += s.key_sums[j * kLanes + i];
  }
  memset(s.key_sums, 0, sizeof(s.key_sums));
}

template <class Tiles>
void pack_key_block(const Problem& p, const BackwardTask& task, BackwardScratch<Tiles>& s) {
  pack_key_rows<Tiles>(p, p.k, task.pair, task.block, s.key_rows(p.D));
  pack_key_columns<Tiles>(p, p.k, task.pair, task.block, s.key_columns(p.D));
  pack_key_rows<Tiles>(p, p.v, task.pair, task.block, s.value_rows(p.D));
}

// All query blocks of one head, counted within its group, against one key block, the last first: so
// tasks of neighbouring key blocks follow each other from the beginning. Slots hold them in this
// order, as processors look ahead in memory upwards.
template <class Tiles>
void backward_head(const BackwardParams& params,
                   const BackwardTask& task,
                   int64_t head,
                   bool& is_packed,
                   BackwardScratch<Tiles>& s) {
  const Problem& p = params.problem;
  const int64_t group = p.H / p.G, b = task.pair / p.G, h = task.pair % p.G * group + head;
  const int64_t num_blocks = div_up(p.Tq, Tiles::kQueries);
  const int64_t first = task.block * Tiles::kKeys, last = min_of(first + Tiles::kKeys, p.Tk);
  const int64_t last_index = (task.slot * group + head + 1) * num_blocks - 1;
  memset(s.key_sums, 0, sizeof(s.key_sums));
  memset(s.key_totals, 0, sizeof(s.key_totals));
  int unflushed = 0;
  for (int64_t m = num_blocks - 1; m >= 0; --m) {
    const QueryPlace at = {.b = b, .h = h, .query_block = m, .index = last_index - m};
    const KeyRange keys = p.ranges[range_index<Tiles>(p, at)];
    if (keys.empty() || keys.begin >= last || keys.end <= first) continue;
    if (!is_packed) pack_key_block(p, task, s);
    is_packed = true;
    backward_tile(params, task.block, at, s);
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
                         const BackwardTask& task,
                         BackwardScratch<Tiles>& s) {
  const Problem& p = params.problem;
  const int64_t dim = Tiles::padded(p.D), first = task.block * Tiles::kKeys;
  const int64_t num_rows = min_of(Tiles::kKeys, p.Tk - first);
  const auto write = [&](const Operand& to, const float* from, float factor) {
    with_output_rows(to, task.pair / p.G, first, task.pair % p.G, [&](auto* rows) {
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
void backward(const BackwardParams& params, const BackwardTask& task, char* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const typename Tiles::Session session;
  const Problem& p = params.problem;
  auto& s = *reinterpret_cast<BackwardScratch<Tiles>*>(scratch);
  memset(s.dk(), 0, 2 * key_block_values<Tiles>(p.D) * sizeof(float));
  bool is_packed = false;
  for (int64_t head = 0; head < p.H / p.G; ++head) {
    backward_head(params, task, head, is_packed, s);
  }
  write_key_gradients(params, task, s);
}

}  // namespace
}  // namespace reynard::attention::cpu
