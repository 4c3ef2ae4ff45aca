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

// One query block of a task.
struct QueryPlace {
  int64_t b = 0, h = 0, query_block = 0;
  int64_t index = 0;  // in the slots' arrays
};

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

// Where `ranges` and `turns` speak of a query block.
template <class Tiles>
int64_t range_index(const Problem& p, const QueryPlace& at) {
  return (at.b * p.H + at.h) * div_up(p.Tq, Tiles::kQueries) + at.query_block;
}

template <class Done>
void wait_until(const Done& done) {
  constexpr int kSpins = 1000;  // some 20 us: about a tile
  for (int spins = 0; !done(); ++spins) {
    spins < kSpins ? pause() : static_cast<void>(sched_yield());
  }
}

// The order in which key blocks add to the sums of a query block.
class Turns {
 public:
  explicit Turns(int32_t& next) : next_(next) {}
  void set(int64_t key_block) {
    __atomic_store_n(&next_, static_cast<int32_t>(key_block), __ATOMIC_RELEASE);
  }
  void wait_until_packed() const {
    wait_until([&] { return next() != kNotPacked; });
  }
  void wait_for(int64_t key_block) const {
    wait_until([&] { return next() == key_block; });
  }

 private:
  int32_t next() const { return __atomic_load_n(&next_, __ATOMIC_ACQUIRE); }

  int32_t& next_;
};

// dq and dquery_sums of a query block whose sums are complete.
template <class Tiles>
void write_query_gradients(const BackwardParams& params, const QueryPlace& at) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const Problem& p = params.problem;
  const int64_t first = at.query_block * kQueries, num_rows = min_of(kQueries, p.Tq - first);
  alignas(64) float factors[kQueries];
  for (float& factor : factors) factor = static_cast<float>(p.scale);
  with_output_rows(params.dq, at.b, first, at.h, [&](auto* rows) {
    write_transposed<Tiles>(
        query_sums_of<Tiles>(dq_sums<Tiles>(params, at.index), Tiles::padded(p.D)),
        factors,
        num_rows,
        p.D,
        rows,
        params.dq.time);
  });
  if (!params.dquery_sums) return;
  memcpy(params.dquery_sums + (at.b * p.H + at.h) * p.Tq + first,
         row_sums<Tiles>(params, at.index),
         num_rows * sizeof(double));
}

template <class Tiles>
void pack_queries(const BackwardParams& params, const QueryPlace& at) {
  constexpr int64_t kQueries = Tiles::kQueries;
  const Problem& p = params.problem;
  const auto [b, h, query_block, index] = at;
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
}

}  // namespace
}  // namespace reynard::attention::cpu
