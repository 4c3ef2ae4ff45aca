#pragma once
// Packing of keys, values, queries and output gradients of any input type into the layouts of a
// tile struct, once per head: the inner loops then read contiguous, zero-padded, aligned tiles.

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

// Calls body with a typed pointer to x[b, first, head, 0].
template <class Body>
void with_rows(const Operand& x, int64_t b, int64_t first, int64_t head, const Body& body) {
  const int64_t offset = b * x.batch + first * x.time + head * x.head;
  switch (x.element) {
    case Element::kFloat:
      return body(static_cast<const float*>(x.data) + offset);
    case Element::kBFloat16:
      return body(static_cast<const BFloat16*>(x.data) + offset);
    case Element::kHalf:
      return body(static_cast<const Half*>(x.data) + offset);
  }
}

// The same for writing.
template <class Body>
void with_output_rows(const Operand& x, int64_t b, int64_t first, int64_t head, const Body& body) {
  const int64_t offset = b * x.batch + first * x.time + head * x.head;
  switch (x.element) {
    case Element::kFloat:
      return body(static_cast<float*>(x.data) + offset);
    case Element::kBFloat16:
      return body(static_cast<BFloat16*>(x.data) + offset);
    case Element::kHalf:
      return body(static_cast<Half*>(x.data) + offset);
  }
}

// Matrices with the queries of a block as columns and `rows` rows: f32 sums, and right factors.
template <class Tiles>
Matrix<float> query_sums_of(float* data, int64_t rows) {
  return {data, Tiles::kPanel, rows * Tiles::kPanel};
}
template <class Tiles>
Matrix<const typename Tiles::Value> query_factor(const typename Tiles::Value* data, int64_t rows) {
  return {data, Tiles::right_stride(Tiles::kPanel), rows * Tiles::kPanel};
}
// The panel of them that begins with a query.
template <class Tiles, class T>
Matrix<T> panel_of(Matrix<T> x, int64_t query) {
  return {x.data + query / Tiles::kPanel * x.panel, x.stride, x.panel};
}

// Writes x[d][query] * factors[query] as rows [query][d].
template <class Tiles, class Element>
void write_transposed(Matrix<float> x,
                      const float* factors,
                      int64_t num_rows,
                      int64_t num_dims,
                      Element* rows,
                      int64_t row_stride) {
  for (int64_t q = 0; q < num_rows; q += kLanes) {
    const Vec factor = load(factors + q);
    const float* from = x.data + q / Tiles::kPanel * x.panel + q % Tiles::kPanel;
    for (int64_t d = 0; d < num_dims; d += kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = load(from + (d + i) * x.stride) * factor;
      transpose(block);
      const int64_t count = min_of(kLanes, num_rows - q), dims = min_of(kLanes, num_dims - d);
      for (int64_t i = 0; i < count; ++i) {
        Element* to = rows + (q + i) * row_stride + d;
        if (dims == kLanes) {
          store_values(block[i], to);
        } else {
          for (int64_t j = 0; j < dims; ++j) from_float(block[i][j], to[j]);
        }
      }
    }
  }
}

template <class Tiles>
int64_t key_block_values(int64_t head_dim) {
  return Tiles::kKeys * Tiles::padded(head_dim);
}
template <class Tiles>
int64_t query_block_values(int64_t head_dim) {
  return Tiles::kQueries * Tiles::padded(head_dim);
}

// The packed block of one (pair, key block), in one of the arrays of PackedKeys.
template <class Tiles>
typename Tiles::Value* key_block(
    const Problem& p, const PackedKeys& packed, char* array, int64_t pair, int64_t block) {
  const int64_t index = (pair - packed.first_pair) * div_up(p.Tk, Tiles::kKeys) + block;
  return reinterpret_cast<typename Tiles::Value*>(array) + index * key_block_values<Tiles>(p.D);
}

// Calls body with the rows of a key block, `from` its first, in k or v of a pair.
template <class Tiles, class Body>
void with_key_rows(
    const Problem& p, const Operand& x, int64_t pair, int64_t block, const Body& body) {
  const int64_t first = block * Tiles::kKeys, num_rows = min_of(Tiles::kKeys, p.Tk - first);
  with_rows(
      x, pair / p.G, first, pair % p.G, [&](const auto* from) { body(from, x.time, num_rows); });
}
template <class Tiles>
void pack_key_rows(
    const Problem& p, const Operand& x, int64_t pair, int64_t block, typename Tiles::Value* to) {
  with_key_rows<Tiles>(p, x, pair, block, [&](const auto* from, int64_t stride, int64_t num_rows) {
    Tiles::pack_rows(from, stride, num_rows, p.D, to, Tiles::kKeys);
  });
}
template <class Tiles>
void pack_key_columns(
    const Problem& p, const Operand& x, int64_t pair, int64_t block, typename Tiles::Value* to) {
  with_key_rows<Tiles>(p, x, pair, block, [&](const auto* from, int64_t stride, int64_t num_rows) {
    Tiles::pack_columns(from, stride, num_rows, p.D, to, Tiles::kKeys);
  });
}

// For the forward pass.
template <class Tiles>
void pack_keys(const Problem& p, const PackedKeys& packed, int64_t pair, int64_t block) {
  const FlushDenormals flush;
  const auto block_of = [&](char* array) {
    return key_block<Tiles>(p, packed, array, pair, block);
  };
  pack_key_rows<Tiles>(p, p.k, pair, block, block_of(packed.key_rows));
  if (!packed.value_columns) return;
  pack_key_columns<Tiles>(p, p.v, pair, block, block_of(packed.value_columns));
}

}  // namespace
}  // namespace reynard::attention::cpu
