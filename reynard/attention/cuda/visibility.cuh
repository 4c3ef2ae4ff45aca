#pragma once
// Which keys a query sees: the same three limits (causality, first_key, start) for every kernel.

#include "reynard/attention/cuda/problem.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/div_up.h"

#include <cstdint>

namespace reynard::attention::cuda {

using tensor::div_up;

constexpr int kQueriesPerStart = kQueryBlock;  // that share one entry of Problem::start

struct KeyRange {
  int begin = 0, end = 0;
  __device__ bool empty() const { return begin >= end; }
  __device__ bool holds(int key) const { return key >= begin && key < end; }
};

// Keys of query i from the start of its block on; empty where it sees nothing.
__device__ inline KeyRange keys_from(const Problem& p, int b, int start, int i) {
  KeyRange keys = {start, p.causal ? i + p.Tk - p.Tq + 1 : p.Tk};
  if (p.first_key) keys.begin = max(keys.begin, p.first_key[int64_t{b} * p.Tq + i]);
  return keys;
}

// The entry of Problem::start for query i of head h; 0 without pruning.
__device__ inline int start_of(const Problem& p, int64_t head, int i) {
  if (!p.start) return 0;
  return max(0, p.start[head * div_up(p.Tq, kQueriesPerStart) + i / kQueriesPerStart]);
}

__device__ inline KeyRange keys_of_query(const Problem& p, int b, int h, int i) {
  return keys_from(p, b, start_of(p, int64_t{b} * p.H + h, i), i);
}

// Union over queries [first, last), which lie in one block of 128: both limits only grow.
__device__ inline KeyRange keys_of_queries(const Problem& p, int b, int h, int first, int last) {
  return {keys_of_query(p, b, h, first).begin, keys_of_query(p, b, h, last - 1).end};
}

}  // namespace reynard::attention::cuda
