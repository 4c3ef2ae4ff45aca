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

template <class Tiles>
void pack_keys(const Problem& p, const PackedKeys& packed, int64_t pair, int64_t block) {
  const FlushDenormals flush;
  const int64_t b = pair / p.G, g = pair % p.G, first = block * Tiles::kKeys;
  const int64_t num_rows = min_of(Tiles::kKeys, p.Tk - first);
  const auto pack = [&](const Operand& x, char* rows, char* columns) {
    with_rows(x, b, first, g, [&](const auto* from) {
      if (rows) {
        Tiles::pack_rows(from,
                         x.time,
                         num_rows,
                         p.D,
                         key_block<Tiles>(p, packed, rows, pair, block),
                         Tiles::kKeys);
      }
      if (columns) {
        Tiles::pack_columns(from,
                            x.time,
                            num_rows,
                            p.D,
                            key_block<Tiles>(p, packed, columns, pair, block),
                            Tiles::kKeys);
      }
    });
  };
  pack(p.k, packed.key_rows, packed.key_columns);
  pack(p.v, packed.value_rows, packed.value_columns);
}

}  // namespace
}  // namespace reynard::attention::cpu
