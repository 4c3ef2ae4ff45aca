#pragma once
// What the backward pass keeps per query block: packed queries and output gradients, the limits and
// biases of its rows, and its sums over keys, which key blocks add to in their order.

#include "reynard/attention/cpu/logits.h"
#include "reynard/attention/cpu/pack.h"

#include <sched.h>

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

template <int64_t kQueries>
struct alignas(64) QueryLimits {
  QueryRows<kQueries> rows;  // its bias is a_i - log2(e) lse_i, -inf for queries that see nothing
  float delta[kQueries];
};

// Index of a query block among those of the packed pairs.
template <class Tiles>
int64_t query_index(const BackwardParams& params, int64_t b, int64_t h, int64_t query_block) {
  const Problem& p = params.problem;
  const int64_t group = p.H / p.G, pair = b * p.G + h / group;
  const int64_t head = (pair - params.packed.first_pair) * group + h % group;
  return head * div_up(p.Tq, Tiles::kQueries) + query_block;
}

template <class Tiles>
QueryLimits<Tiles::kQueries>* query_limits(const BackwardParams& params, int64_t index) {
  return reinterpret_cast<QueryLimits<Tiles::kQueries>*>(params.query_limits) + index;
}

template <class Tiles>
typename Tiles::Value* query_values(const BackwardParams& params, char* array, int64_t index) {
  return reinterpret_cast<typename Tiles::Value*>(array) +
         index * query_block_values<Tiles>(params.problem.D);
}

template <class Tiles>
float* dq_sums(const BackwardParams& params, int64_t index) {
  return params.dq_sums + index * query_block_values<Tiles>(params.problem.D);
}

template <class Tiles>
double* row_sums(const BackwardParams& params, int64_t index) {
  return params.row_sums + index * Tiles::kQueries;
}

// Keys that any query of a block may see.
template <class Tiles>
KeyRange keys_of_block(const Problem& p, int64_t b, int64_t h, int64_t query_block) {
  return p.ranges[(b * p.H + h) * div_up(p.Tq, Tiles::kQueries) + query_block];
}

// Holds the sums of a query block for a key block, of which every one that the queries see takes
// its turn, in ascending order.
class Turn {
 public:
  Turn(int32_t& turn, int64_t key_block) : turn_(turn), next_(static_cast<int32_t>(key_block) + 1) {
    for (int spins = 0; __atomic_load_n(&turn_, __ATOMIC_ACQUIRE) != next_ - 1; ++spins) {
      spins < kSpins ? pause() : static_cast<void>(sched_yield());
    }
  }
  ~Turn() { __atomic_store_n(&turn_, next_, __ATOMIC_RELEASE); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static constexpr int kSpins = 1000;  // some 20 us: about a tile

  int32_t& turn_;
  int32_t next_;
};

// dq and dquery_sums of a query block whose sums are complete, or that sees nothing.
template <class Tiles>
void write_query_gradients(const BackwardParams& params,
                           int64_t b,
                           int64_t h,
                           int64_t query_block) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const Problem& p = params.problem;
  const int64_t first = query_block * kQueries, num_rows = min_of(kQueries, p.Tq - first);
  const int64_t index = query_index<Tiles>(params, b, h, query_block);
  const bool sees_keys = !keys_of_block<Tiles>(p, b, h, query_block).empty();
  with_output_rows(params.dq, b, first, h, [&](auto* rows) {
    if (sees_keys) {
      alignas(64) float factors[kQueries];
      for (float& factor : factors) factor = static_cast<float>(p.scale);
      return write_transposed<Tiles>(
          query_sums_of<Tiles>(dq_sums<Tiles>(params, index), Tiles::padded(p.D)),
          factors,
          num_rows,
          p.D,
          rows,
          params.dq.time);
    }
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t d = 0; d < p.D; ++d) from_float(0, rows[i * params.dq.time + d]);
    }
  });
  if (!params.dquery_sums) return;
  double* sums = params.dquery_sums + (b * p.H + h) * p.Tq + first;
  for (int64_t i = 0; i < num_rows; ++i) {
    sums[i] = sees_keys ? row_sums<Tiles>(params, index)[i] : 0;
  }
}

template <class Tiles>
void pack_queries(const BackwardParams& params, int64_t b, int64_t h, int64_t query_block) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const FlushDenormals flush;
  const Problem& p = params.problem;
  const int64_t index = query_index<Tiles>(params, b, h, query_block);
  const int64_t first = query_block * kQueries, num_rows = min_of(kQueries, p.Tq - first);
  const auto pack = [&](const Operand& x, char* lanes, char* rows) {
    with_rows(x, b, first, h, [&](const auto* from) {
      Tiles::pack_query_lanes(
          from, x.time, num_rows, p.D, query_values<Tiles>(params, lanes, index));
      Tiles::pack_query_rows(from, x.time, num_rows, p.D, query_values<Tiles>(params, rows, index));
    });
  };
  pack(p.q, params.query_lanes, params.query_rows);
  pack(params.dout, params.dout_lanes, params.dout_rows);

  auto& limits = *query_limits<Tiles>(params, index);
  fill_query_rows<kQueries>(p, b, h, query_block, limits.rows);
  const int64_t row = (b * p.H + h) * p.Tq + first;
  for (int64_t i = 0; i < kQueries; ++i) {
    const float lse = i < num_rows ? params.lse[row + i] : -kInfinity;
    const double bias = static_cast<double>(limits.rows.bias[i]) + limits.rows.bias_rest[i];
    split(bias - lse * kLog2EExact, limits.rows.bias[i], limits.rows.bias_rest[i]);
    if (lse == -kInfinity) {
      limits.rows.bias[i] = -kInfinity;
      limits.rows.bias_rest[i] = 0;
    }
    limits.delta[i] = i < num_rows ? static_cast<float>(params.delta[row + i]) : 0;
  }

  const KeyRange keys = keys_of_block<Tiles>(p, b, h, query_block);
  params.turns[index] = static_cast<int32_t>(keys.begin / Tiles::kKeys);
  if (keys.empty()) write_query_gradients<Tiles>(params, b, h, query_block);
}

}  // namespace
}  // namespace reynard::attention::cpu
