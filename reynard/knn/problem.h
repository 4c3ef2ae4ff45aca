#pragma once
// The checked arguments of a search, as pointers and sizes: what every way of searching starts
// from.

#include "reynard/knn/search.h"

#include <cstdint>
#include <span>
#include <vector>

namespace reynard::knn {

// Consecutive ids in consecutive slots; a ring has at most two of them.
struct KeyRun {
  int64_t slot = 0;
  int64_t id = 0;
  int64_t size = 0;
};

// Where the keys of one row lie.
struct KeyRows {
  const void* data = nullptr;
  int64_t head_stride = 0, slot_stride = 0;  // in elements
  int64_t slots = 0;
  std::vector<KeyRun> runs;  // by ascending id
  int64_t size = 0;          // keys in all runs
  KeyCodes codes;
};

struct Problem {
  at::Tensor queries;  // (B,Tq,H,D) f32, contiguous, finite
  bool bf16_keys = false;
  std::vector<KeyRows> rows;  // one per row of the batch, or a single one for all
  int64_t num_key_heads = 1;
  int64_t k = 1;

  int64_t batch() const { return queries.size(0); }
  int64_t num_queries() const { return queries.size(1); }
  int64_t num_heads() const { return queries.size(2); }
  int64_t head_dim() const { return queries.size(3); }
  const KeyRows& keys_of(int64_t row) const { return rows[rows.size() == 1 ? 0 : row]; }
};

// Throws as search() does for shapes, dtypes, devices and k; values are not looked at.
void check_search(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k);

// The keys (N,D) of one head and row. Throws reynard::Error unless queries are (Q,D).
KeyRing ring_of(const at::Tensor& keys, const at::Tensor& queries);

// Throws as search() does, except for keys that are not finite: they are found while searching.
Problem make_problem(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k);

// Tensors of the result's shapes, filled with -1 and -inf.
SearchResult empty_result(const Problem& problem);

// The error for a key that holds NaN or an infinity.
[[noreturn]] void fail_not_finite(int64_t row, int64_t head, int64_t id);

}  // namespace reynard::knn
