#pragma once
// The matrix instruction of Hopper: a warpgroup (4 warps) multiplies a 64 x 16 by a 16 x N matrix
// and adds to 64 x N sums in registers. Asynchronous: fence, issue, commit, wait.
//
// Thread t of the warpgroup holds, for rows r = 16 (t / 32) + (t % 32) / 4 and r + 8, the columns
// 8 j + 2 (t % 4) and the next one: d[4 j + 0, 1] of row r and d[4 j + 2, 3] of row r + 8.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace reynard::attention::cuda::sm90 {

// Whether an operand's depth (kDepth, "K-major") or its rows (kRows, "MN-major") are contiguous.
enum class Contiguous : int { kDepth = 0, kRows = 1 };

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler must not move uses of sums across a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptors of operands in shared memory: address, the two strides and the swizzle.
// `leading` and `stride` in bytes, as the layout asks (PTX ISA, matrix descriptor).
__device__ __forceinline__ uint64_t plain_descriptor(uint32_t address,
                                                     uint32_t leading,
                                                     uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}
// Rows of 128 bytes whose 16-byte pieces are exchanged by their row (the layout that the copy
// engine writes); tiles start at multiples of 1024 bytes.
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t address,
                                                        uint32_t leading,
                                                        uint32_t stride) {
  return plain_descriptor(address, leading, stride) | uint64_t{1} << 62;
}
// The operand `bytes` further on: addresses fill the low half, so that nothing is carried.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, uint32_t bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor & 0xFFFFFFFF00000000) | low;
}

#define REYNARD_WGMMA_SUMS_32                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define REYNARD_WGMMA_OPERANDS_32(d)                                                              \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define REYNARD_WGMMA_SUMS_64                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
  "%56, %57, %58, %59, %60, %61, %62, %63}"
#define REYNARD_WGMMA_OPERANDS_64(d)                                                              \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),  \
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),  \
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),  \
      "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),  \
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

#define REYNARD_WGMMA_SHARED_64(type)                                                       \
  asm volatile(                                                                             \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " REYNARD_WGMMA_SUMS_32 \
      ", %32, %33, p, 1, 1, %35, %36;\n}\n"                                                 \
      : REYNARD_WGMMA_OPERANDS_32(d)                                                        \
      : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB))
#define REYNARD_WGMMA_REGISTERS_64(type)                                                    \
  asm volatile(                                                                             \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " REYNARD_WGMMA_SUMS_32 \
      ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"                                     \
      : REYNARD_WGMMA_OPERANDS_32(d)                                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kB))
#define REYNARD_WGMMA_SHARED_128(type)                                                       \
  asm volatile(                                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " REYNARD_WGMMA_SUMS_64 \
      ", %64, %65, p, 1, 1, %67, %68;\n}\n"                                                  \
      : REYNARD_WGMMA_OPERANDS_64(d)                                                         \
      : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB))
#define REYNARD_WGMMA_REGISTERS_128(type)                                                    \
  asm volatile(                                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " REYNARD_WGMMA_SUMS_64 \
      ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"                                      \
      : REYNARD_WGMMA_OPERANDS_64(d)                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kB))

// d = a b, or d += a b when add is not 0; both operands in shared memory.
template <int N,
          class Scalar,
          Contiguous kLeft = Contiguous::kDepth,
          Contiguous kRight = Contiguous::kDepth>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  static_assert(N == 64 || N == 128);
  constexpr int kA = static_cast<int>(kLeft), kB = static_cast<int>(kRight);
  if constexpr (N == 64 && std::is_same_v<Scalar, __half>) {
    REYNARD_WGMMA_SHARED_64("f16");
  } else if constexpr (N == 64) {
    REYNARD_WGMMA_SHARED_64("bf16");
  } else if constexpr (std::is_same_v<Scalar, __half>) {
    REYNARD_WGMMA_SHARED_128("f16");
  } else {
    REYNARD_WGMMA_SHARED_128("bf16");
  }
}

// The same with the left operand in registers: four pairs of values, in the order of the sums that
// they were made of.
template <int N, class Scalar, Contiguous kRight>
__device__ __forceinline__ void wgmma_registers(float (&d)[N / 2],
                                                const uint32_t* a,
                                                uint64_t b,
                                                int add) {
  static_assert(N == 64 || N == 128);
  constexpr int kB = static_cast<int>(kRight);
  if constexpr (N == 64 && std::is_same_v<Scalar, __half>) {
    REYNARD_WGMMA_REGISTERS_64("f16");
  } else if constexpr (N == 64) {
    REYNARD_WGMMA_REGISTERS_64("bf16");
  } else if constexpr (std::is_same_v<Scalar, __half>) {
    REYNARD_WGMMA_REGISTERS_128("f16");
  } else {
    REYNARD_WGMMA_REGISTERS_128("bf16");
  }
}

#undef REYNARD_WGMMA_SUMS_32
#undef REYNARD_WGMMA_OPERANDS_32
#undef REYNARD_WGMMA_SUMS_64
#undef REYNARD_WGMMA_OPERANDS_64
#undef REYNARD_WGMMA_SHARED_64
#undef REYNARD_WGMMA_REGISTERS_64
#undef REYNARD_WGMMA_SHARED_128
#undef REYNARD_WGMMA_REGISTERS_128

}  // namespace reynard::attention::cuda::sm90
