#pragma once
// Several neighbouring elements in one memory access, as f32 in registers, and the choice of how
// many and of the element type at launch.

#include "reynard/ops/row_kernels.h"

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace reynard::ops::cuda {

inline constexpr int kWarpSize = 32;

__device__ inline float widened(float x) {
  return x;
}
__device__ inline float widened(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline void narrow(float x, float& to) {
  to = x;
}
__device__ inline void narrow(float x, __nv_bfloat16& to) {
  to = __float2bfloat16_rn(x);
}

// A GPU thread moves at most 16 bytes at a time.
template <class T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Elements {
  T at[V];
};

template <int V>
struct Pack {
  float at[V];
};

template <int V, class T>
__device__ Elements<T, V> load_elements(const T* from) {
  return *reinterpret_cast<const Elements<T, V>*>(from);
}

template <int V, class T>
__device__ Pack<V> load(const T* from) {
  const Elements<T, V> elements = load_elements<V>(from);
  Pack<V> pack;
#pragma unroll
  for (int v = 0; v < V; ++v) pack.at[v] = widened(elements.at[v]);
  return pack;
}

template <int V, class T>
__device__ void store(T* to, const Pack<V>& pack) {
  Elements<T, V> elements;
#pragma unroll
  for (int v = 0; v < V; ++v) narrow(pack.at[v], elements.at[v]);
  *reinterpret_cast<Elements<T, V>*>(to) = elements;
}

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

// A 64-bit division takes as long as a row of 64 elements; few values need one.
struct Divided {
  int64_t quotient, rest;
};
__device__ inline Divided divided(int64_t value, int64_t by) {
  if (((value | by) >> 32) != 0) return {value / by, value % by};
  const auto low = static_cast<uint32_t>(value), divisor = static_cast<uint32_t>(by);
  const uint32_t quotient = low / divisor;
  return {quotient, low - quotient * divisor};
}

// 1 / sqrt(x) of an f64 number, rounded to f32: one step of Newton's method from what the hardware
// estimates, as exact in f64 as f32 can show, for a tenth of the instructions.
__device__ inline float inverse_root(double x) {
  const float guess = rsqrtf(static_cast<float>(x));
  if (!(guess > 0 && guess < INFINITY)) return static_cast<float>(1.0 / sqrt(x));
  const double y = guess;
  return static_cast<float>(y * (1.5 - 0.5 * x * y * y));
}

// Over teams of `lanes` neighbours, a power of two, in a fixed order; every lane gets the sum. All
// lanes of the warp must call it.
__device__ inline float team_sum(float x, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffU, x, distance);
  }
  return x;
}

__device__ inline float warp_sum(float x) {
  return team_sum(x, kWarpSize);
}

// Rows of `width` elements, each read by a team of `lanes` threads of one warp, V elements at once.
struct Teams {
  int lanes;
  int vector;
  static constexpr int kThreads = 256;
  __host__ __device__ int per_block() const { return kThreads / lanes; }
};

// The row of this thread's team. Teams past the end repeat the last row, so that warps stay whole.
__device__ inline int64_t team_row(Teams teams, int64_t rows) {
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * teams.per_block() + threadIdx.x / teams.lanes;
  return row < rows ? row : rows - 1;
}

// The largest power of two up to `most` that divides width, 1 when a pointer is not aligned for 16
// bytes.
inline int vector_width(int64_t width, int most, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return 1;
  }
  int v = most;
  while (width % v != 0) v /= 2;
  return v;
}

// As few lanes as read a row at once, at most a warp.
inline Teams teams_for(int64_t width, std::initializer_list<const void*> pointers) {
  Teams teams{.lanes = 1, .vector = vector_width(width, 8, pointers)};
  while (teams.lanes < kWarpSize && teams.lanes * teams.vector < width) teams.lanes *= 2;
  return teams;
}

template <int V>
using Width = std::integral_constant<int, V>;

// body(Width<V>{}) for V = 1, 2, 4, 8.
template <class Body>
void with_width(int v, const Body& body) {
  if (v == 8) return body(Width<8>{});
  if (v == 4) return body(Width<4>{});
  if (v == 2) return body(Width<2>{});
  body(Width<1>{});
}

// body(T{}) with the C++ type of the elements.
template <class Body>
void with_element(Element element, const Body& body) {
  if (element == Element::kF32) return body(float{});
  body(__nv_bfloat16{});
}

inline unsigned blocks_for(int64_t items, int64_t items_per_block) {
  return static_cast<unsigned>((items + items_per_block - 1) / items_per_block);
}

}  // namespace reynard::ops::cuda
