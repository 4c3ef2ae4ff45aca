#pragma once
// Of the forward pass of one query block (forward.h): what a thread needs for it, and how scores
// become weights P relative to the maximum m, by way of memory or straight from products.

#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <cstdint>
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
  const auto weight_of = [&](Vec product, Vec lane_shift, int64_t j)
      __attribute__((always_inline)) {
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

}  // namespace
}  // namespace reynard::attention::cpu
