#pragma once
// Forward pass of one query block, over a tile struct (tiles_f32.h, tiles_bf16.h): for each key
// block from the right end of what the queries see to the left,
//   S^T = K Q^T,   P^T = exp2(logits - m),   O^T += V^T P^T,
// with queries in the lanes. The diagonal comes first and settles the maximum m; later tiles go
// from products to weights in registers, relative to that m. Only a tile that exceeds it by far is
// done again with S in memory and raises m. Where products are a matrix unit's, V^T P of some keys
// is formed beside the weights of the next ones.

#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace reynard::attention::cpu {
namespace {

// exp2 of at most 8 above the maximum: sums stay far from overflow, and relative precision is that
// of the type wherever the exponent lies.
constexpr float kSlack = 8;

// What the weights of a tile may add up to before m must be raised: times 65,536 keys it is far
// from overflow too.
constexpr float kLargestSum = 0x1p40f;

// Everything one thread needs for a query block.
template <class Tiles>
struct ForwardScratch {
  static constexpr int64_t kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;

  alignas(64) QueryRows<kQueries> rows;
  alignas(64) KeyBias<Tiles::kForwardKeys> keys;
  alignas(64) float scores[kKeys * kQueries];                   // [key][query]
  alignas(64) typename Tiles::Value weights[kKeys * kQueries];  // P as the right factor
  alignas(64) float tile_max[kQueries];
  alignas(64) float max[kQueries];   // m, base 2
  alignas(64) float sum[kQueries];   // of P before rounding
  alignas(64) float lost[kQueries];  // what its additions have rounded off

  // Blocks of [padded D][query] follow: q, O and, where sums are formed beside weights, what a
  // tile adds to O.
  typename Tiles::Value* query_lanes() {
    return reinterpret_cast<typename Tiles::Value*>(this + 1);
  }
  float* out(int64_t head_dim) {
    return reinterpret_cast<float*>(query_lanes() + query_block_values<Tiles>(head_dim));
  }
  float* tile_out(int64_t head_dim) { return out(head_dim) + query_block_values<Tiles>(head_dim); }
  static int64_t bytes(int64_t head_dim) {
    constexpr int64_t kSums = Tiles::kSumsBesideWeights ? 2 : 1;
    return sizeof(ForwardScratch) + query_block_values<Tiles>(head_dim) *
                                        (sizeof(typename Tiles::Value) + kSums * sizeof(float));
  }
};

// One panel of queries, from `query`, against keys of a tile.
struct TilePanel {
  int64_t query = 0;
  KeySpan keys;
  int64_t row = 0;  // of keys.first in the tile
};

// Scores to logits in place, and their largest per query (with a_i); a_i itself stays out.
template <class Tiles>
void whole_logits(ForwardScratch<Tiles>& s, const TilePanel& panel, float scale2) {
  constexpr int64_t kQueries = Tiles::kQueries;
  constexpr int kVectors = kGroup<Tiles::kPanel>;
  const int64_t end = panel.query + Tiles::kPanel;
  for (int64_t q = panel.query; q < end; q += kVectors * kLanes) {
    Vec largest[kVectors];
    for (int v = 0; v < kVectors; ++v) largest[v] = splat(-kInfinity);
    for (int64_t j = panel.row; j < panel.row + panel.keys.count; ++j) {
      float* scores = s.scores + j * kQueries + q;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vec logit = load(scores + v * kLanes) * scale2 - s.keys.bias[j];
        store(scores + v * kLanes, logit);
        largest[v] = at_least(logit, largest[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      store(s.tile_max + q + v * kLanes, largest[v] + load(s.rows.bias + q + v * kLanes));
    }
  }
}

// The same for a tile that needs masks; a_i is included.
template <class Tiles>
void edge_logits(ForwardScratch<Tiles>& s, const TilePanel& panel, float scale2) {
  constexpr int64_t kQueries = Tiles::kQueries;
  for (int64_t q = panel.query; q < panel.query + Tiles::kPanel; q += kLanes) {
    const EdgeRows rows = edge_rows(s.rows, q);
    Vec largest = splat(-kInfinity);
    for (int64_t i = 0; i < panel.keys.count; ++i) {
      const int64_t j = panel.row + i;
      float* scores = s.scores + j * kQueries + q;
      const Vec logit = edge_logit(
          load(scores), scale2, rows, s.keys.bias[j], s.keys.bias_rest[j], panel.keys.first + i);
      store(scores, logit);
      largest = at_least(logit, largest);
    }
    store(s.tile_max + q, largest);
  }
}

// Adds a tile's sums of P. Each of many tiles may round the same way, so what is lost is kept
// (Knuth's two-sum).
template <class Tiles>
void add_to_sums(ForwardScratch<Tiles>& s, int64_t query, Vec of_tile) {
  const Vec before = load(s.sum + query), sum = before + of_tile, added = sum - before;
  store(s.sum + query, sum);
  store(s.lost + query, load(s.lost + query) + ((before - (sum - added)) + (of_tile - added)));
}

// m = tile_max where that is more than kSlack above it; O, of the panel, and the sums are rescaled.
template <class Tiles>
void raise_max(ForwardScratch<Tiles>& s,
               const TilePanel& panel,
               Matrix<float> sums,
               int64_t padded_dim) {
  for (int64_t q = panel.query; q < panel.query + Tiles::kPanel; q += kLanes) {
    float* out = sums.data + q % Tiles::kPanel;
    const Vec old = load(s.max + q), tile = load(s.tile_max + q);
    const IntVec raise = tile > old + kSlack;
    if (!any(raise)) continue;
    const Vec raised = raise ? tile : old;
    // Lanes that have seen nothing yet: exp2(-inf) = 0 times their zeros.
    const Vec factor = raise ? exp2<6>(old - raised) : splat(1.0f);
    store(s.max + q, raised);
    store(s.sum + q, load(s.sum + q) * factor);
    store(s.lost + q, load(s.lost + q) * factor);
    for (int64_t d = 0; d < padded_dim; ++d) {
      float* o = out + d * Tiles::kPanel;
      store(o, load(o) * factor);
    }
  }
}

// P = exp2(logits + shift), stored as the right factor of V^T P; adds to the sums.
template <class Tiles>
void weigh(ForwardScratch<Tiles>& s, const TilePanel& panel, bool edge) {
  constexpr int kVectors = kGroup<Tiles::kPanel>;
  const int64_t end = panel.query + Tiles::kPanel;
  for (int64_t q = panel.query; q < end; q += kVectors * kLanes) {
    Vec shift[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lane = q + v * kLanes;
      const Vec max = load(s.max + lane);
      // Queries that have seen nothing keep -inf: subtracting 0 leaves their logits at -inf.
      const Vec finite_max = max == splat(-kInfinity) ? Vec{} : max;
      shift[v] = edge ? -finite_max : load(s.rows.bias + lane) - finite_max;
      sum[v] = Vec{};
    }
    for (int64_t j = panel.row; j < panel.row + panel.keys.count; j += 2) {
      const float* logits = s.scores + j * Tiles::kQueries + q;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vec even = exp2<Tiles::kExpDegree>(load(logits + v * kLanes) + shift[v]);
        const Vec odd =
            exp2<Tiles::kExpDegree>(load(logits + Tiles::kQueries + v * kLanes) + shift[v]);
        Tiles::store_right(s.weights, j, q + v * kLanes, even, odd);
        sum[v] += even + odd;
      }
    }
    for (int v = 0; v < kVectors; ++v) add_to_sums(s, q + v * kLanes, sum[v]);
  }
}

// What the weights of a tile need per query, relative to m as it is, and their sums.
template <int64_t kQueries>
struct alignas(64) TileSums {
  float shift[kQueries];  // a_i - m
  float sum[kQueries];
};

// False where m is not known yet.
template <class Tiles>
bool begin_sums(const ForwardScratch<Tiles>& s, TileSums<Tiles::kQueries>& tile) {
  for (int64_t q = 0; q < Tiles::kQueries; q += kLanes) {
    if (any(load(s.max + q) == splat(-kInfinity))) return false;
    store(tile.shift + q, load(s.rows.bias + q) - load(s.max + q));
    store(tile.sum + q, Vec{});
  }
  return true;
}

// False, with nothing added, where m is too far below the tile.
template <class Tiles>
bool end_sums(ForwardScratch<Tiles>& s, const TileSums<Tiles::kQueries>& tile) {
  for (int64_t q = 0; q < Tiles::kQueries; q += kLanes) {
    if (any(load(tile.sum + q) > splat(kLargestSum))) return false;
  }
  for (int64_t q = 0; q < Tiles::kQueries; q += kLanes) add_to_sums(s, q, load(tile.sum + q));
  return true;
}

// P of a tile that every query sees whole, straight from the products and relative to m as it is;
// adds to the sums. False, with nothing added, where m is too far below the tile or not known yet.
template <class Tiles>
bool weigh_products(ForwardScratch<Tiles>& s,
                    Matrix<const typename Tiles::Value> keys,
                    int64_t count,
                    float scale2) {
  TileSums<Tiles::kQueries> tile;
  if (!begin_sums(s, tile)) return false;
  const auto weight_of = [&](Vec product, Vec lane_shift, int64_t j) {
    const Vec logit = product * scale2 + (lane_shift - s.keys.bias[j]);
    return exp2<Tiles::kExpDegree>(kExp2Saturates ? logit : at_most(logit, splat(127.0f)));
  };
  const auto weigh = [&](int64_t j, int64_t q, auto& products) __attribute__((always_inline)) {
    constexpr int kRows = std::extent_v<std::remove_reference_t<decltype(products)>, 0>;
    constexpr int kVectors = std::extent_v<std::remove_reference_t<decltype(products)>, 1>;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lane = q + v * kLanes;
      const Vec lane_shift = load(tile.shift + lane);
      Vec total = load(tile.sum + lane);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r += 2) {
        const Vec even = weight_of(products[r][v], lane_shift, j + r);
        const Vec odd = weight_of(products[r + 1][v], lane_shift, j + r + 1);
        Tiles::store_right(s.weights, j + r, lane, even, odd);
        total += even + odd;
      }
      store(tile.sum + lane, total);
    }
  };
  Tiles::each_product(
      keys, query_factor<Tiles>(s.query_lanes(), keys.stride), count, keys.stride, weigh);
  return end_sums(s, tile);
}

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
  fill_key_bias(p, b, h, span.first, span.count, s.rows.reference, s.keys);
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

  fill_key_bias(p, b, h, span.first, span.count, s.rows.reference, s.keys);
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
