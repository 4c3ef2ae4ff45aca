#pragma once
// The instructions of Ampere and later GPUs that the kernels of this folder stand on: asynchronous
// copies of 16 bytes into shared memory, and a warp's product of a 16 x 16 with a 16 x 8 matrix.
//
// Tiles in shared memory are rows of kDim half-precision numbers whose 16-byte pieces are exchanged
// within 128 bytes by the row, so that eight rows at one depth lie in different banks. A warp's
// sums are [row tile][column tile][4]: lane t holds, of rows r = t / 4 and r + 8, the columns 2 (t
// % 4) and the next one, [0, 1] of row r and [2, 3] of row r + 8.

#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/problem.h"
#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/visibility.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace reynard::attention::cuda::sm80 {

// Copies.

// 16 bytes; zeros, and nothing is read, unless `there`.
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Rows [first, first + kRows) of one head; rows outside `valid` become zeros and are not read (they
// may hold anything). All kThreads threads call it.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void load_rows(
    uint32_t tile, const HeadRows& rows, int D, int first, KeyRange valid) {
  constexpr int kPieces = kDim / 8;
  static_assert(kRows * kPieces % kThreads == 0 && kThreads % kPieces == 0);
  const Operand& x = rows.array;
  const char* base = static_cast<const char*>(x.data) + rows.offset * 2;
  const int piece = threadIdx.x % kPieces, first_row = threadIdx.x / kPieces;
  const char* from = base + (int64_t{first + first_row} * x.time + piece * 8) * 2;
  const int64_t step = x.time * (kThreads / kPieces * 2);
#pragma unroll 8
  for (int i = 0; i < kRows * kPieces / kThreads; ++i, from += step) {
    const int row = first_row + i * (kThreads / kPieces);
    const bool there = piece * 8 < D && valid.holds(first + row);
    const uint32_t to = tile + row * kDim * 2 + ((piece ^ (row & 7)) << 4);
    copy_piece(to, there ? from : base, there);
  }
}

// kCount structs of a contiguous array, which reaches that far.
template <int kCount, int kThreads, class Record>
__device__ __forceinline__ void load_records(uint32_t to, const Record* from) {
  constexpr int kPieces = kCount * sizeof(Record) / 16;
  static_assert(kPieces * 16 == kCount * sizeof(Record) && kPieces <= kThreads);
  if (threadIdx.x < kPieces) {
    copy_piece(to + threadIdx.x * 16, reinterpret_cast<const char*>(from) + threadIdx.x * 16, true);
  }
}

// Fragments of tiles.

__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Where a lane's row of a fragment begins, and its piece before the exchange. `upper_rows`: lanes
// 16 to 31 take the second eight rows (right operands), else the second eight depths.
template <int kDim>
struct LaneAddress {
  uint32_t row, piece;

  __device__ __forceinline__ LaneAddress(int lane, bool upper_rows) {
    const int in_tile = upper_rows ? lane / 16 * 8 + lane % 8 : lane % 16;
    const int second = upper_rows ? lane / 8 % 2 : lane / 16;
    row = in_tile * kDim * 2;
    piece = (second ^ (lane & 7)) << 4;
  }
  // Of 16 rows from `rows` on, the pieces 2 step and 2 step + 1.
  __device__ __forceinline__ uint32_t at(uint32_t tile, int rows, int step) const {
    return tile + row + rows * kDim * 2 + step / 4 * 128 + (piece ^ (step % 4 << 5));
  }
};

template <class Scalar>
__device__ __forceinline__ void multiply(float (&d)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  if constexpr (std::is_same_v<Scalar, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// sums = rows of the warp (left fragments by (row tile, step)) times rows of a tile, transposed.
template <class Scalar, int kDim, int kRowTiles, int kColumnTiles, class Left>
__device__ __forceinline__ void multiply_rows(const Left& left,
                                              uint32_t right,
                                              float (&sums)[kRowTiles][kColumnTiles][4]) {
  static_assert(kColumnTiles % 2 == 0);
  const LaneAddress<kDim> address(threadIdx.x % 32, true);
#pragma unroll
  for (auto& row : sums) {
#pragma unroll
    for (auto& column : row) column[0] = column[1] = column[2] = column[3] = 0;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) left(a[r], r, step);
#pragma unroll
    for (int c = 0; c < kColumnTiles; c += 2) {
      uint32_t b[4];
      load_matrices(b, address.at(right, c * 8, step));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply<Scalar>(sums[r][c], a[r], b[0], b[1]);
        multiply<Scalar>(sums[r][c + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// sums += weights (pairs in the order of the sums that they were made of) times the first
// 8 kColumnTiles rows of a tile.
template <class Scalar, int kDim, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void add_weighted_rows(
    const uint32_t (&weights)[kRowTiles][kColumnTiles][2],
    uint32_t tile,
    float (&sums)[kRowTiles][kDim / 8][4]) {
  const LaneAddress<kDim> address(threadIdx.x % 32, false);
#pragma unroll
  for (int c = 0; c < kColumnTiles; c += 2) {
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      uint32_t b[4];
      load_transposed(b, address.at(tile, c * 8, d));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const uint32_t a[4] = {
            weights[r][c][0], weights[r][c][1], weights[r][c + 1][0], weights[r][c + 1][1]};
        multiply<Scalar>(sums[r][2 * d], a, b[0], b[1]);
        multiply<Scalar>(sums[r][2 * d + 1], a, b[2], b[3]);
      }
    }
  }
}

// Over the four lanes that share a row.
template <class Value, class Combine>
__device__ __forceinline__ Value over_row(Value value, const Combine& combine) {
  value = combine(value, __shfl_xor_sync(~0U, value, 1));
  return combine(value, __shfl_xor_sync(~0U, value, 2));
}

}  // namespace reynard::attention::cuda::sm80
