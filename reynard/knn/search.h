#pragma once
// Exact search for the k keys with the largest inner product, per head. The result is defined by
// plain_search(), to the last bit: scores are f32 sums over d ascending, ties go to the smaller id.
// Not differentiable: gradients go through the keys that a caller gathers. Runs where the queries
// lie: on the CPU, or on a GPU that has a search of its own (gpu_search.h), to which keys in host
// memory are copied block by block (streamed_search.h). Shapes: B batch, Tq queries,
// H query heads, G key heads (G divides H; head h reads head h*G/H), D head dimension, N keys.

#include "reynard/knn/key_codes.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace reynard::knn {

struct SearchResult {
  at::Tensor ids;     // (B,Tq,H,k) i64; -1 where a row holds fewer than k keys
  at::Tensor scores;  // (B,Tq,H,k) f32, descending; -inf where the id is -1
};

// The keys of one row of a batch: a ring of S slots. The entry with id i lies in slot
// (i - base) % S; those with ids in [first, next) are there, next - first <= S.
struct KeyRing {
  at::Tensor keys;  // (G,S,D) f32 | bf16, the last dimension contiguous
  int64_t base = 0;
  int64_t first = 0, next = 0;
  KeyCodes codes = {};  // of the same slots; few queries then read these instead of the keys

  int64_t size() const { return next - first; }
};

// queries (B,Tq,H,D) f32 | bf16 | f16; one ring per row, or a single one that all rows share.
// Queries need not have the dtype of the keys: every number counts as its f32 value, which all of
// them have, so mixed dtypes give the result of both widened to f32, to the bit. Rings have one
// dtype, and may differ in size. Throws reynard::Error for mismatched shapes, dtypes or devices,
// for queries or keys that are not finite, and for k < 1 or k larger than every ring. On a GPU,
// where reading a value waits for all work before it, numbers that are not finite are not looked
// for: such keys rank last.
SearchResult search(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k);

// One head, one row: queries (Q,D) against keys (N,D) with ids 0 ... N - 1. Gives (Q,k).
SearchResult search(const at::Tensor& queries, const at::Tensor& keys, int64_t k);

// The definition: scores all keys of a query in ids' order, then sorts. O(N) memory per query.
SearchResult plain_search(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k);
SearchResult plain_search(const at::Tensor& queries, const at::Tensor& keys, int64_t k);

}  // namespace reynard::knn
