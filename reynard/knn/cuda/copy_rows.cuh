#pragma once
// Rows of keys into shared memory, 16 bytes at a time and asynchronously. 16-byte chunk c of row r
// lies at chunk c ^ (r & 7) of its row: eight rows' chunk c are then in different banks.

#include <cstdint>

namespace reynard::knn::cuda {

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

}  // namespace reynard::knn::cuda
