#pragma once
// Forward pass of one query block, over a tile struct (tiles_f32.h, tiles_bf16.h): for each key
// block from the right end of what the queries see to the left,
//   S^T = K Q^T,   P^T = exp2(logits - m),   O^T += V^T P^T,
// with queries in the lanes. The diagonal comes first and settles the maximum m; later tiles go
// from products to weights in registers, relative to that m. Only a tile that exceeds it by far is
// done again with S in memory and raises m. Where products are a matrix unit's, V^T P of some keys
// is formed beside the weights of the next ones.

#include "reynard/attention/cpu/forward_weights.h"
#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

// Keys that every query of a block sees, from key `first` of the first block of values on.
template <class Value>
struct WholeTile {
  const Value* keys;              // (count, dim)
  Matrix<const Value> queries;    // right factor
  const Value* values = nullptr;  // blocks of [d][key], or null
  int64_t first = 0, count = 0, dim = 0;
  Matrix<float> out;  // [d][query], of the tile alone
};

inline void add_values(float* to, const float* from, int64_t count) {
  for (int64_t x = 0; x < count; x += kLanes) store(to + x, load(to + x) + load(from + x));
}

// O and the sums of keys that every query sees, where V^T P is formed beside weights. Like
// weigh_products false, with nothing added, where m does not serve.
template <class Tiles>
bool add_whole_span(
    const ForwardParams& params, int64_t b, int64_t h, KeySpan span, ForwardScratch<Tiles>& s) {
  constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  using Value = typename Tiles::Value;
  const Problem& p = params.problem;
  TileSums<kQueries> sums;
  if (!begin_sums(s, sums)) return false;
  const int64_t pair = b * p.G + h / (p.H / p.G), dim = Tiles::padded(p.D);
  const auto block_of = [&](char* array) -> const Value* {
    return key_block<Tiles>(p, params.packed, array, pair, span.first / kKeys);
  };
  const WholeTile<Value> tile = {
      .keys = block_of(params.packed.key_rows) + span.first % kKeys * dim,
      .queries = query_factor<Tiles>(s.query_lanes(), dim),
      .values = params.out.data ? block_of(params.packed.value_columns) : nullptr,
      .first = span.first % kKeys,
      .count = span.count,
      .dim = dim,
      .out = query_sums_of<Tiles>(s.tile_out(p.D), dim)};
  fill_key_bias(p, b * p.H + h, span, s.rows.reference, s.keys);
  const float scale2 = static_cast<float>(p.scale * kLog2EExact);
  const auto weigh = [&](
      int64_t key, int64_t query, const float* scores, Value* weights, const auto& beside)
      __attribute__((always_inline)) {
    // Copies of what would be read again after each instruction of the tile unit.
    const float scale = scale2, *const bias = s.keys.bias + key;
    Vec shift[2], sum[2];
    for (int v = 0; v < 2; ++v) {
      shift[v] = load(sums.shift + query + v * kLanes);
      sum[v] = load(sums.sum + query + v * kLanes);
    }
#pragma GCC unroll 16
    for (int j = 0; j < 32; j += 2) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const float* product = scores + j * 32 + v * kLanes;
        const Vec even = load(product) * scale + (shift[v] - bias[j]);
        const Vec odd = load(product + 32) * scale + (shift[v] - bias[j + 1]);
        const Vec weight[2] = {exp2<Tiles::kExpDegree>(even), exp2<Tiles::kExpDegree>(odd)};
        Tiles::store_weights(weights, j, v * kLanes, weight[0], weight[1]);
        sum[v] += weight[0] + weight[1];
        beside(j + v);
      }
    }
    for (int v = 0; v < 2; ++v) store(sums.sum + query + v * kLanes, sum[v]);
  };
  Tiles::weigh_and_sum(tile, weigh);
  if (!end_sums(s, sums)) return false;
  if (tile.values) add_values(s.out(p.D), tile.out.data, dim * kQueries);
  return true;
}

// The keys of a tile that some query of a panel sees, rounded outwards to whole steps.
template <class Tiles>
TilePanel panel_of_tile(const QueryRows<Tiles::kQueries>& rows, KeySpan tile, int64_t query) {
  constexpr int64_t kStep = Tiles::kKeyStep;
  const int64_t last = query + Tiles::kPanel - 1, end = tile.first + tile.count;
  const int64_t seen_begin = max_of(rows.first[query] / kStep * kStep, tile.first);
  const int64_t seen_end = min_of(round_up(rows.end[last], kStep), end);
  return {query, {seen_begin, max_of(seen_end - seen_begin, 0)}, seen_begin - tile.first};
}

// P by way of S and logits in memory: masks where the tile is an edge, and raises m as needed.
template <class Tiles>
void weigh_scores(ForwardScratch<Tiles>& s,
                  Matrix<const typename Tiles::Value> keys,
                  const TilePanel& panel,
                  bool edge,
                  float scale2,
                  Matrix<float> out) {
  constexpr int64_t kQueries = Tiles::kQueries;
  Tiles::template multiply<false>(
      {keys.data + panel.row * keys.stride, keys.stride},
      panel_of<Tiles>(query_factor<Tiles>(s.query_lanes(), keys.stride), panel.query),
      {s.scores + panel.row * kQueries + panel.query, kQueries},
      panel.keys.count,
      Tiles::kPanel,
      keys.stride);
  if (edge) {
    edge_logits(s, panel, scale2);
  } else {
    whole_logits(s, panel, scale2);
  }
  raise_max(s, panel, out, keys.stride);
  weigh(s, panel, edge);
}

// A span of one key block.
template <class Tiles>
void forward_tile(
    const ForwardParams& params, int64_t b, int64_t h, KeySpan span, ForwardScratch<Tiles>& s) {
  constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys, kPanel = Tiles::kPanel;
  using Value = typename Tiles::Value;
  const Problem& p = params.problem;
  const int64_t pair = b * p.G + h / (p.H / p.G), padded_dim = Tiles::padded(p.D);
  const int64_t block = span.first / kKeys, offset = span.first % kKeys;
  const auto* rows = key_block<Tiles>(p, params.packed, params.packed.key_rows, pair, block);
  const Matrix<const Value> keys{rows + offset * padded_dim, padded_dim};
  const Matrix<float> out = query_sums_of<Tiles>(s.out(p.D), padded_dim);
  const Value* values =
      params.out.data
          ? key_block<Tiles>(p, params.packed, params.packed.value_columns, pair, block) + offset
          : nullptr;
  const auto add_products = [&](const TilePanel& x, Matrix<float> sums, int64_t queries) {
    if (!values) return;
    const Matrix<const Value> weights = query_factor<Tiles>(s.weights, kKeys);
    Tiles::template multiply<true>(
        {values + x.row, kKeys},
        {weights.data + x.query / kPanel * weights.panel + x.row / 2 * weights.stride,
         weights.stride,
         weights.panel},
        sums,
        padded_dim,
        queries,
        x.keys.count);
  };

  fill_key_bias(p, b * p.H + h, span, s.rows.reference, s.keys);
  const float scale2 = static_cast<float>(p.scale * kLog2EExact);
  const bool edge = is_edge(s.rows, span);
  if constexpr (!Tiles::kSumsBesideWeights) {
    if (!edge && weigh_products(s, keys, span.count, scale2)) {
      return add_products({0, span, 0}, out, kQueries);
    }
  }
  for (int64_t query = 0; query < kQueries; query += kPanel) {
    const TilePanel panel = panel_of_tile<Tiles>(s.rows, span, query);
    if (panel.keys.count == 0) continue;
    const Matrix<float> sums = panel_of<Tiles>(out, query);
    weigh_scores(s, keys, panel, edge, scale2, sums);
    add_products(panel, sums, kPanel);
  }
}

// lse of the block's rows and, in tile_max, what their O is to be multiplied by; -inf and 0 where
// nothing was seen.
template <class Tiles>
void write_lse(const ForwardParams& params,
               int64_t b,
               int64_t h,
               int64_t query_block,
               ForwardScratch<Tiles>& s) {
  const Problem& p = params.problem;
  const int64_t first = query_block * Tiles::kQueries;
  const int64_t num_rows = min_of(Tiles::kQueries, p.Tq - first);
  float* lse = params.lse + (b * p.H + h) * p.Tq + first;
  for (int64_t i = 0; i < num_rows; ++i) {
    const double sum = static_cast<double>(s.sum[i]) + s.lost[i];
    const bool nothing = sum == 0;
    lse[i] = nothing ? -kInfinity : static_cast<float>(s.max[i] * kLn2Exact + __builtin_log(sum));
    // O has been rounded as s.sum has, in equal additions of equal values.
    s.tile_max[i] = nothing ? 0 : 1 / s.sum[i];
  }
}

// out = O / sum of the block's rows, after write_lse; 0 where nothing was seen.
template <class Tiles>
void write_outputs(const ForwardParams& params,
                   int64_t b,
                   int64_t h,
                   int64_t query_block,
                   ForwardScratch<Tiles>& s) {
  const Problem& p = params.problem;
  const int64_t first = query_block * Tiles::kQueries;
  const int64_t num_rows = min_of(Tiles::kQueries, p.Tq - first);
  with_output_rows(params.out, b, first, h, [&](auto* rows) {
    write_transposed<Tiles>(query_sums_of<Tiles>(s.out(p.D), Tiles::padded(p.D)),
                            s.tile_max,
                            num_rows,
                            p.D,
                            rows,
                            params.out.time);
  });
}

// Rows that have seen nothing yet.
template <class Tiles>
void begin_rows(const ForwardParams& params,
                int64_t b,
                int64_t h,
                int64_t query_block,
                ForwardScratch<Tiles>& s) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const Problem& p = params.problem;
  fill_query_rows<kQueries>(p, b, h, query_block, s.rows);
  const int64_t first = query_block * kQueries;
  with_rows(p.q, b, first, h, [&](const auto* rows) {
    Tiles::pack_query_lanes(rows, p.q.time, min_of(kQueries, p.Tq - first), p.D, s.query_lanes());
  });
  memset(s.out(p.D), 0, query_block_values<Tiles>(p.D) * sizeof(float));
  for (int64_t i = 0; i < kQueries; ++i) {
    s.max[i] = -kInfinity;
    s.sum[i] = 0;
    s.lost[i] = 0;
  }
}

// A span that every query sees whole, or one that is an edge. Where m is not known or too small
// yet, the part of it in the last key block settles it.
template <class Tiles>
void add_span(
    const ForwardParams& params, int64_t b, int64_t h, KeySpan span, ForwardScratch<Tiles>& s) {
  const bool whole = !is_edge(s.rows, span);
  while (span.count > 0) {
    if constexpr (Tiles::kSumsBesideWeights) {
      if (whole && add_whole_span(params, b, h, span, s)) return;
    }
    const int64_t end = span.first + span.count;
    const int64_t begin = max_of((end - 1) / Tiles::kKeys * Tiles::kKeys, span.first);
    forward_tile(params, b, h, {begin, end - begin}, s);
    span.count = begin - span.first;
  }
}

template <class Tiles>
void add_keys(
    const ForwardParams& params, int64_t b, int64_t h, KeyRange keys, ForwardScratch<Tiles>& s) {
  if (keys.empty()) return;
  constexpr int64_t kForwardKeys = Tiles::kForwardKeys;
  for (int64_t block = (keys.end - 1) / kForwardKeys; block >= keys.begin / kForwardKeys; --block) {
    const KeySpan of_block = span_in_block<Tiles, kForwardKeys>(block, keys);
    for (const KeySpan& span : parts_of_span<Tiles>(s.rows, of_block).spans) {
      if (span.count > 0) add_span(params, b, h, span, s);
    }
  }
}

template <class Tiles>
void forward(
    const ForwardParams& params, int64_t b, int64_t h, int64_t query_block, char* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const typename Tiles::Session session;
  const Problem& p = params.problem;
  auto& s = *reinterpret_cast<ForwardScratch<Tiles>*>(scratch);
  begin_rows(params, b, h, query_block, s);
  const int64_t num_blocks = div_up(p.Tq, Tiles::kQueries);
  add_keys(params, b, h, p.ranges[(b * p.H + h) * num_blocks + query_block], s);
  write_lse(params, b, h, query_block, s);
  if (params.out.data) write_outputs(params, b, h, query_block, s);
}

template <class Tiles>
void forward_nearest(const ForwardParams& params,
                     int64_t b,
                     int64_t h,
                     int64_t query_block,
                     KeyRange keys,
                     char* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const typename Tiles::Session session;
  auto& s = *reinterpret_cast<ForwardScratch<Tiles>*>(scratch);
  begin_rows(params, b, h, query_block, s);
  add_keys(params, b, h, keys, s);
  write_lse(params, b, h, query_block, s);
}

template <class Tiles>
void forward_rest(const ForwardParams& params,
                  int64_t b,
                  int64_t h,
                  int64_t query_block,
                  KeyRange keys,
                  char* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const typename Tiles::Session session;
  auto& s = *reinterpret_cast<ForwardScratch<Tiles>*>(scratch);
  if (!keys.empty()) {
    fill_query_rows<Tiles::kQueries>(params.problem, b, h, query_block, s.rows);
    add_keys(params, b, h, keys, s);
  }
  write_lse(params, b, h, query_block, s);
  write_outputs(params, b, h, query_block, s);
}

}  // namespace
}  // namespace reynard::attention::cpu
