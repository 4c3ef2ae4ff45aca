#pragma once
// The kernels behind the search for prunable keys (docs/attention.md): norms and masses of blocks,
// and the first block that each rule keeps, each found by a warp or a binary search.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda {

// Largest norm of each block of `size` rows, slightly enlarged so that it is a bound:
// (B, heads, ceil(T/size)) f32.
void block_norms(const RowArray& array, int size, float* norms, cudaStream_t);

// log sum_j exp(-c_j) over each key block of 64: (rows, Tk) f64 -> (rows, ceil(Tk/64)) f64.
void block_masses(const double* sums, int rows, int Tk, double* masses, cudaStream_t);

// One key part as the rules see it.
struct PruningTask {
  int B = 0, Tq = 0, Tk = 0, H = 0, G = 0;
  bool causal = true;
  double log_tolerance = 0;            // this part's share
  const double* query_sums = nullptr;  // (B, H, Tq)
  const double* key_sums = nullptr;    // (B, H, Tk)
  const int32_t* first_key = nullptr;  // (B, Tq), or null
  // (B, H, ceil(Tq/128)): raised to the first key kept; without first_key it need hold nothing.
  int32_t* start = nullptr;

  // Tight rule: factor of the key norms per query block, or the fixed bound with key_norms null.
  const float* factors = nullptr;    // (B, H, ceil(Tq/128)): |q|max, or the logit bound
  double factor_scale = 1;           // of the logits, or 1
  const float* key_norms = nullptr;  // (B, G, ceil(Tk/64)), or null: 1
  const double* masses = nullptr;    // (B, H, ceil(Tk/64))
  const double* floors = nullptr;    // (B, H, Tq)

  // Published rule: skip where c_i - c_j of the first row and last column lies below. Null: of the
  // logit bounds and Tk, for a causal part that queries see from its first key on.
  const double* thresholds = nullptr;   // (B, H, ceil(Tq/128))
  const float* logit_bounds = nullptr;  // (H), or (B, H) with bound_stride H
  int bound_stride = 0;
};
void raise_starts_tight(const PruningTask& task, cudaStream_t);
void raise_starts_published(const PruningTask& task, cudaStream_t);

// rowsum(dout * out) in f64: (B, heads, T). out has the shape of dout.
void row_products(const RowArray& dout, const Operand& out, double* products, cudaStream_t);

}  // namespace reynard::attention::cuda
