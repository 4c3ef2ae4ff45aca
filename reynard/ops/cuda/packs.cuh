#pragma once
// Several neighbouring elements in one memory access, as f32 in registers, and the choice of how
// many and of the element type at launch.

#include "reynard/ops/row_kernels.h"

#include <cuda_bf16.h>

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
__device__ Pack<V> load(const T* from) {
  const auto elements = *reinterpret_cast<const Elements<T, V>*>(from);
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

// In a fixed order; every lane gets the sum.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffU, x, distance);
  }
  return x;
}

// The largest power of two up to `most` that divides width and leaves work for `lanes` lanes, 1
// when a pointer is not aligned for 16 bytes.
inline int vector_width(int64_t width,
                        int lanes,
                        int most,
                        std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return 1;
  }
  int v = most;
  while (v > 1 && (width % v != 0 || width < static_cast<int64_t>(v) * lanes)) v /= 2;
  return v;
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
