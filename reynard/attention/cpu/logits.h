#pragma once
// From scores S^T[key][query] = k . q of one tile to base-2 logits. Tiles that every query sees
// whole take the short way; edge tiles (causal diagonal, first_key, start) are masked.
//
//   logit2_ij = scale2 * S_ij + a_i - b_j,  a_i = log2(e) (c_i - c_ref), b_j = log2(e) (c_j -
//   c_ref)
//
// with c_ref the sum at the query block's first row: a single f32 prefix sum would be wrong by
// 1e-2 after 65,536 gates. On edge tiles queries lie behind strong gates of the same block, where
// a_i and b_j are large and almost equal; there the f32 rest of both is kept too.

#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

// What a query block's rows bring to every tile; lanes are queries.
template <int64_t kQueries>
struct alignas(64) QueryRows {
  float bias[kQueries];       // a_i
  float bias_rest[kQueries];  // its rounding error
  int32_t first[kQueries];    // first key seen
  int32_t end[kQueries];      // one past the last key seen; 0: none
  double reference;           // c_ref
  int64_t full_begin;         // keys [full_begin, full_end) are seen by every row
  int64_t full_end;
};

template <int64_t kKeys>
struct alignas(64) KeyBias {
  float bias[kKeys];       // b_j
  float bias_rest[kKeys];  // its rounding error
};

inline void split(double x, float& high, float& rest) {
  high = static_cast<float>(x);
  rest = static_cast<float>(x - static_cast<double>(high));
}

template <int64_t kQueries>
void fill_query_rows(
    const Problem& p, int64_t b, int64_t h, int64_t query_block, QueryRows<kQueries>& rows) {
  const int64_t first = query_block * kQueries;
  const int64_t num_rows = min_of(kQueries, p.Tq - first);
  const double* sums = p.query_sums ? p.query_sums + (b * p.H + h) * p.Tq + first : nullptr;
  rows.reference = sums ? sums[0] : 0;
  rows.full_begin = 0;
  rows.full_end = p.Tk;
  for (int64_t i = 0; i < kQueries; ++i) {
    // Rows past Tq repeat the last one's limits, so that they do not make a tile an edge.
    const int64_t row = first + min_of(i, num_rows - 1);
    const KeyRange keys = keys_of_query(p, b, h, row);
    rows.first[i] = static_cast<int32_t>(keys.begin);
    rows.end[i] = static_cast<int32_t>(keys.end);
    rows.full_begin = max_of(rows.full_begin, keys.begin);
    rows.full_end = min_of(rows.full_end, keys.end);
    const double bias = sums ? (sums[row - first] - rows.reference) * kLog2EExact : 0;
    split(bias, rows.bias[i], rows.bias_rest[i]);
  }
}

// A tile of a query block: `count` keys from `first`.
struct KeySpan {
  int64_t first = 0, count = 0;
};

// Bias of the keys of a span for the head b H + h; those past Tk get 0.
template <int64_t kKeys>
void fill_key_bias(
    const Problem& p, int64_t head, KeySpan span, double reference, KeyBias<kKeys>& keys) {
  const int64_t num_real = p.key_sums ? max_of(0, min_of(span.count, p.Tk - span.first)) : 0;
  const double* sums = num_real > 0 ? p.key_sums + head * p.Tk + span.first : nullptr;
  for (int64_t j = 0; j < num_real; ++j) {  // without a branch it becomes vectors
    split((sums[j] - reference) * kLog2EExact, keys.bias[j], keys.bias_rest[j]);
  }
  for (int64_t j = num_real; j < span.count; ++j) keys.bias[j] = keys.bias_rest[j] = 0;
}

// The part of a block of keys in `keys`, rounded outwards to whole steps of the packed layout.
template <class Tiles, int64_t kBlockKeys = Tiles::kKeys>
KeySpan span_in_block(int64_t block, KeyRange keys) {
  const int64_t block_begin = block * kBlockKeys;
  const int64_t begin = max_of(keys.begin - block_begin, 0) / Tiles::kKeyStep * Tiles::kKeyStep;
  const int64_t end = round_up(min_of(keys.end - block_begin, kBlockKeys), Tiles::kKeyStep);
  return {block_begin + begin, end - begin};
}

// Whether some query does not see some key of the span.
template <int64_t kQueries>
bool is_edge(const QueryRows<kQueries>& rows, KeySpan span) {
  return span.first < rows.full_begin || span.first + span.count > rows.full_end;
}

// A span cut at the borders of what every query sees, rounded inwards to whole steps of the packed
// layout: the part to the right of it, the whole part, and the part to the left; any may be empty.
struct SpanParts {
  KeySpan spans[3];
};
template <class Tiles>
SpanParts parts_of_span(const QueryRows<Tiles::kQueries>& rows, KeySpan span) {
  const int64_t end = span.first + span.count;
  const int64_t whole_begin =
      min_of(max_of(round_up(rows.full_begin, Tiles::kKeyStep), span.first), end);
  const int64_t whole_end =
      max_of(min_of(rows.full_end / Tiles::kKeyStep * Tiles::kKeyStep, end), whole_begin);
  return {{{whole_end, end - whole_end},
           {whole_begin, whole_end - whole_begin},
           {span.first, whole_begin - span.first}}};
}

// Vectors of queries handled together: independent chains hide the latency of max and add.
template <int64_t kQueries>
constexpr int kGroup = kQueries / kLanes < 4 ? kQueries / kLanes : 4;

// Lanes of QueryRows as the logits of an edge tile need them.
struct EdgeRows {
  Vec bias, bias_rest;
  IntVec first, end;
};
template <int64_t kQueries>
inline EdgeRows edge_rows(const QueryRows<kQueries>& rows, int64_t q) {
  return {load(rows.bias + q), load(rows.bias_rest + q), load(rows.first + q), load(rows.end + q)};
}

// The logit with a_i; -inf where a query does not see the key.
inline Vec edge_logit(Vec score,
                      float scale2,
                      const EdgeRows& rows,
                      float key_bias,
                      float key_bias_rest,
                      int64_t key) {
  const IntVec index = splat(static_cast<int32_t>(key));
  const Vec bias = (rows.bias - key_bias) + (rows.bias_rest - key_bias_rest);
  const Vec logit = score * scale2 + bias;
  return ((index >= rows.first) & (index < rows.end)) ? logit : splat(-kInfinity);
}

}  // namespace
}  // namespace reynard::attention::cpu
