#pragma once
// What kernels of every tensor-core path do with single registers: pairs of half-precision numbers,
// powers of two, addresses of shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace reynard::attention::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A pair of sums as one register of a left operand; the last argument names the type.
__device__ __forceinline__ uint32_t packed(float low, float high, __nv_bfloat16) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint32_t packed(float low, float high, __half) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace reynard::attention::cuda
