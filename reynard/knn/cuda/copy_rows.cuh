#pragma once
// Rows of keys into shared memory, 16 bytes at a time and asynchronously. 16-byte chunk c of row r
// lies at chunk c ^ (r & 7) of its row: eight rows' chunk c are then in different banks.

#include "reynard/knn/cuda/code.cuh"

#include <cstdint>

namespace reynard::knn::cuda {

constexpr int kPieceKeys = 32;     // that a warp copies by itself
constexpr int kColumnBytes = 128;  // of each key per copy; so many columns make a key
constexpr int kColumnChunks = kColumnBytes / 16;
constexpr int kColumn = kPieceKeys * kColumnChunks;  // chunks of a column of a piece

__device__ inline void copy_16(void* to, const void* from, bool there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = there ? 16 : 0;  // the rest is zeros
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(address),
               "l"(from),
               "r"(bytes));
}
__device__ inline void end_copies() {
  asm volatile("cp.async.commit_group;\n" ::);
}
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending));
}

// One column of the piece of keys that begins at a place; zeros beyond the keys and their ends.
template <class Element>
__device__ void copy_column(const FilterTask& t,
                            const KeyGroup& keys,
                            int64_t first_place,
                            int column,
                            uint4* to,
                            int lane) {
  constexpr int kChunkValues = 16 / sizeof(Element);
  constexpr int kRowsAtOnce = 32 / kColumnChunks;
  const int row_chunks = t.head_dim * static_cast<int>(sizeof(Element)) / 16;
  const int chunk = column * kColumnChunks + lane % kColumnChunks;
  const int64_t first_slot = slot_of(keys, first_place);
  // Nearly always: no end of the keys, nor of the ring that they lie in, among these.
  if (first_place + kPieceKeys <= keys.size && first_slot + kPieceKeys <= keys.slots) {
    const bool there = chunk < row_chunks;
    const auto* from = static_cast<const Element*>(keys.keys) +
                       (first_slot + lane / kColumnChunks) * keys.stride +
                       (there ? chunk * kChunkValues : 0);
#pragma unroll
    for (int i = 0; i < kPieceKeys / kRowsAtOnce; ++i, from += kRowsAtOnce * keys.stride) {
      const int row = i * kRowsAtOnce + lane / kColumnChunks;
      copy_16(to + row * kColumnChunks + ((lane % kColumnChunks) ^ (row & 7)), from, there);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPieceKeys / kRowsAtOnce; ++i) {
    const int row = i * kRowsAtOnce + lane / kColumnChunks;
    const int64_t place = first_place + row;
    const bool there = place < keys.size && chunk < row_chunks;
    const int64_t slot = there ? slot_of(keys, place) : 0;
    const auto* from = static_cast<const Element*>(keys.keys) + slot * keys.stride +
                       (there ? chunk * kChunkValues : 0);
    copy_16(to + row * kColumnChunks + ((lane % kColumnChunks) ^ (row & 7)), from, there);
  }
}

}  // namespace reynard::knn::cuda
