#pragma once
// What every CUDA kernel of the operator is handed: one key part as plain pointers. No torch
// header, so that kernels compile fast; the bridge is attention_cuda.cpp.
//
// Legend: B batch, Tq queries, Tk keys, H query heads, G key/value heads, D head dimension.

#include "reynard/attention/operand.h"
#include "reynard/tensor/host_device.h"

#include <cstdint>

namespace reynard::attention::cuda {

// An operand and its shape.
struct RowArray {
  Operand rows;
  int B = 0, T = 0, heads = 0, D = 0;
};

// The rows of one head: `offset` elements from the data on.
struct HeadRows {
  Operand array;
  int64_t offset = 0;
};
REYNARD_HOST_DEVICE inline HeadRows rows_of(const Operand& x, int b, int head) {
  return {x, b * x.batch + head * x.head};
}

// Whether rows can be moved 16 bytes at a time: half precision, rows and addresses to match.
inline bool is_tileable(const Operand& x, int D) {
  constexpr int64_t kAlignment = 16;
  if (x.element == Element::kFloat || D % 8 != 0) return false;
  const bool strides =
      x.batch * 2 % kAlignment == 0 && x.time * 2 % kAlignment == 0 && x.head * 2 % kAlignment == 0;
  return strides && reinterpret_cast<uintptr_t>(x.data) % kAlignment == 0;
}

// Everything that is not an Operand is contiguous.
struct Problem {
  int B = 0, Tq = 0, Tk = 0, H = 0, G = 0, D = 0;
  Operand q, k, v;
  const double* query_sums = nullptr;  // (B, H, Tq), or null: no bias
  const double* key_sums = nullptr;    // (B, H, Tk), or null
  const int32_t* first_key = nullptr;  // (B, Tq), non-decreasing in Tq, or null: 0
  const int32_t* start = nullptr;      // (B, H, ceil(Tq/128)): keys before it are pruned, or null
  float scale = 1;
  bool causal = true;  // queries are the last Tq positions of the keys
};

struct ForwardTask {
  Problem problem;
  Operand out;           // (B, Tq, H, D); without data (simt) only lse is computed
  float* lse = nullptr;  // (B, H, Tq) natural logarithm
};

struct BackwardTask {
  Problem problem;
  Operand dout;                   // (B, Tq, H, D)
  const float* lse = nullptr;     // (B, H, Tq) of all key parts together
  const double* delta = nullptr;  // (B, H, Tq) rowsum(dout * out) - dlse
  Operand dq;                     // (B, Tq, H, D) f32 or dtype of q
  Operand dk, dv;                 // (B, Tk, G, D)
  double* dquery_sums = nullptr;  // (B, H, Tq), or null
  double* dkey_sums = nullptr;    // (B, H, Tk), or null
};

}  // namespace reynard::attention::cuda
