#pragma once
// How far each head of an attention layer looks, and what its gates are: single numbers per head
// from the gates of all tokens and the attention of some queries.

#include "reynard/models/observer.h"

#include <cstdint>
#include <vector>

namespace reynard::evaluation {

inline constexpr int64_t kGateBins = 20;

struct HeadStatistics {
  // Distance back within which 90 % of a query's attention lies, itself at distance 0: the median
  // over the queries that were read (of an even number the mean of both middle ones).
  double reach = 0;
  double mean_distance = 0;  // of a query's attention, in tokens, over the same queries
  // Mean over all tokens of sum_j F_ij over the keys that the query sees and gates act on: how many
  // tokens' worth of these (itself included) the gates leave. 1 forgets at once; where all of the
  // text is seen, half of it forgets nothing. NaN without gates.
  double gate_memory = 0;
  double mean_gate = 0;                // NaN without gates
  std::vector<double> gate_histogram;  // shares of gates in kGateBins equal bins of [0, 1]
};

// Per head. queries: how many, evenly spread over the second half of the sequence, are read for
// the distances. view lies on the CPU.
std::vector<HeadStatistics> head_statistics(const models::AttentionView& view, int64_t queries);

}  // namespace reynard::evaluation
