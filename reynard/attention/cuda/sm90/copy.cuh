#pragma once
// Barriers in shared memory and the copy engine of Hopper: tiles travel between global and shared
// memory without registers, and a barrier counts their bytes.

#include "reynard/attention/cuda/registers.cuh"

#include <cuda.h>

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

constexpr int kWarp = 32, kWarpgroup = 128;  // threads

// Barriers that count arrivals and bytes (mbarrier), by shared address.

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Threads that have met arrive by one of them. compute-sanitizer's racecheck follows only what the
// arriving thread itself did: in a library for it all of them arrive (CMake: REYNARD_RACECHECK).
#ifdef REYNARD_RACECHECK
constexpr bool kAllArrive = true;
#else
constexpr bool kAllArrive = false;
#endif
// At a barrier for so many groups of kThreads.
template <int kThreads>
__device__ __forceinline__ void init_group_barrier(uint32_t barrier, uint32_t groups) {
  init_barrier(barrier, kAllArrive ? groups * kThreads : groups);
}
// thread: in its group, all of which calls it.
__device__ __forceinline__ void arrive_for_group(uint32_t barrier, int thread) {
  if (kAllArrive || thread == 0) arrive(barrier);
}
// Returns when the phase of that parity is over.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE_%=;\nbra AGAIN_%=;\nDONE_%=:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Whether the phase of that parity is over.
__device__ __forceinline__ bool is_over(uint32_t barrier, uint32_t parity) {
  uint32_t over;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over != 0;
}
// Makes barriers that one thread initialised, and shared memory that it wrote, visible to the copy
// engine and the matrix units.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers among threads of some warps, by number.

__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_threads(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The copy engine.

// Position of a tile in a (B, T, heads, D) array.
struct TilePosition {
  int dim = 0, time = 0, head = 0, batch = 0;
};

__device__ __forceinline__ void load_tile(uint32_t to,
                                          const CUtensorMap& map,
                                          const TilePosition& at,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)),
      "r"(at.dim),
      "r"(at.time),
      "r"(at.head),
      "r"(at.batch),
      "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_tile(const CUtensorMap& map,
                                           uint32_t from,
                                           const TilePosition& at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          reinterpret_cast<uint64_t>(&map)),
      "r"(from),
      "r"(at.dim),
      "r"(at.time),
      "r"(at.head),
      "r"(at.batch)
      : "memory");
}
// Bytes as they lie; a multiple of 16.
__device__ __forceinline__ void load_bytes(uint32_t to,
                                           const void* from,
                                           uint32_t bytes,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)),
      "r"(bytes),
      "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the shared memory of all stores may be written again.
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Until all stores are done.
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Rings of tiles.

constexpr int kRowBytes = 128;  // of a swizzled tile: 64 half-precision dimensions

// Position in a ring of kStages tiles, and the parity of the turn.
template <int kStages>
struct Stage {
  int index = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++index == kStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// The dynamic shared memory as a struct: swizzled tiles start at multiples of 1024 bytes, so
// launches ask for kAlignment bytes more than it has.
constexpr int kAlignment = 1024;
template <class Shared>
__device__ __forceinline__ Shared& aligned_shared(char* raw) {
  const uint32_t beyond = shared_address(raw) % kAlignment;
  return *reinterpret_cast<Shared*>(raw + (beyond ? kAlignment - beyond : 0));
}

// Registers.

// Every warp of a warpgroup asks for this many registers per thread.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace reynard::attention::cuda::sm90
