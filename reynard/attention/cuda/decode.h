#pragma once
// One query per sequence against pages in place (split-KV decode). The first page that each query
// must read is found on the GPU; runs of pages are attended by blocks of threads and combined in
// their order, so the bits are the same in every run. Grids depend on shapes alone and nothing
// waits for the GPU: a call can be recorded in a CUDA graph.

#include "reynard/attention/cuda/problem.h"
#include "reynard/tensor/host_device.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda {

constexpr int kPageKeys = 64;

// What becomes of loaded lines in the L2 cache.
enum class Caching { kKept, kLetGoFirst };

// S sequences, N pages in the longest page table; the rest as in problem.h.
struct DecodeTask {
  int S = 0, H = 0, G = 0, D = 0, N = 0;
  Element element = Element::kFloat;
  const void* q = nullptr;              // (S, H, D)
  const void* keys = nullptr;           // (P, 64, D)
  const void* values = nullptr;         // (P, 64, D)
  const double* sums = nullptr;         // (P, H/G, 64), or null: no bias
  const int32_t* page_table = nullptr;  // (S, G, N); -1: evicted
  const int64_t* lengths = nullptr;     // (S)
  const int32_t* first_key = nullptr;   // (S), or null
  float scale = 1;

  // Pruning; off when log_tolerance is 0.
  double log_tolerance = 0;
  bool tight = true;
  const float* norms = nullptr;            // (P), or null
  const double* masses = nullptr;          // (P, H/G)
  const float* logit_bound = nullptr;      // (H), or null: measured norms
  const double* evicted_masses = nullptr;  // (S, H), or null
  const float* evicted_norms = nullptr;    // (S, G)

  void* out = nullptr;         // (S, H, D)
  float* lse = nullptr;        // (S, H)
  int32_t* start = nullptr;    // (S, H)
  int run_pages = 0;           // pages that a block of threads attends to
  int num_runs = 0;            // ceil(N / run_pages)
  bool last_combines = false;  // the last block of a query's runs combines them
  // Of decode by rows. What is loaded leaves the L2 cache first where all of it, a few times the
  // cache at most, would drive out what others wrote.
  Caching caching = Caching::kKept;

  REYNARD_HOST_DEVICE bool prunes() const { return sums && log_tolerance < 0; }
};

// Of a task whose shapes and pruning are set: fills what follows `start`.
void plan_runs(DecodeTask& task, int num_processors);

// Bytes of scratch, to be aligned to 256.
int64_t decode_scratch_bytes(const DecodeTask& task);
void decode(const DecodeTask& task, void* scratch, cudaStream_t stream);

// The first page that each query reads: (S, H), or null where only task.start is wanted. Counters
// (S, H) become zero. decode() begins with it.
void find_first_pages(const DecodeTask& task,
                      int32_t* pages,
                      int32_t* counters,
                      cudaStream_t stream);

// The newest T tokens of each of S sequences into their pages (page_kernels.h).
struct PageWriteTask {
  int S = 0, T = 0, H = 0, G = 0, N = 0;
  int row_bytes = 0;  // of a key
  int D = 0;
  Element element = Element::kFloat;
  void *keys = nullptr, *values = nullptr;
  double *sums = nullptr, *masses = nullptr;
  float* norms = nullptr;
  const int32_t* page_table = nullptr;    // (S, G, N)
  const int64_t* lengths = nullptr;       // (S)
  const void *k = nullptr, *v = nullptr;  // (S T, G, D)
  const float* log_gate = nullptr;        // (S T, H), or null
  const double* given_sums = nullptr;     // (S, H, T), or null: from log_gate
  double* token_sums = nullptr;           // (S, H, T): scratch for them, where T > 1
};
void write_pages(const PageWriteTask& task, cudaStream_t stream);

}  // namespace reynard::attention::cuda
