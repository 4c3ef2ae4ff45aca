#pragma once
// Which keys queries see: used by the kernels and by the scheduler on the torch side. In an unnamed
// namespace because the file is compiled for several instruction sets.

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/div_up.h"

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

using tensor::div_up;

// Of one entry of `start`, whatever the kernels' blocks are.
constexpr int64_t kQueriesPerStart = kQueryBlock;

inline int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}
inline int64_t round_up(int64_t a, int64_t b) {
  return div_up(a, b) * b;
}

// Keys of one query; empty where it sees nothing.
inline KeyRange keys_of_query(const Problem& p, int64_t b, int64_t h, int64_t i) {
  KeyRange keys;
  if (p.first_key) keys.begin = max_of(0, p.first_key[b * p.Tq + i]);
  if (p.start) {
    const int64_t num_starts = div_up(p.Tq, kQueriesPerStart);
    keys.begin = max_of(keys.begin, p.start[(b * p.H + h) * num_starts + i / kQueriesPerStart]);
  }
  keys.end = p.causal ? i + p.Tk - p.Tq + 1 : p.Tk;
  return keys;
}

// Union over queries [first, last), which lie in one block of 128: both limits only grow.
inline KeyRange keys_of_queries(
    const Problem& p, int64_t b, int64_t h, int64_t first, int64_t last) {
  return {keys_of_query(p, b, h, first).begin, keys_of_query(p, b, h, last - 1).end};
}

}  // namespace
}  // namespace reynard::attention::cpu
