#include "reynard/attention/cuda/sm80/records.cuh"

#include "reynard/attention/cuda/visibility.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <climits>
#include <cmath>

namespace reynard::attention::cuda::sm80 {

namespace {

constexpr int kThreads = 128;

struct Source {
  Problem problem;
  const float* lse;
  const double* delta;
  Records records;
};

__device__ KeyRecord key_record(const Problem& p, int64_t head, int j) {
  return p.key_sums && j < p.Tk ? split_sum(p.key_sums[head * p.Tk + j]) : KeyRecord();
}

__device__ QueryRecord query_record(const Source& s, int64_t head, int i) {
  const Problem& p = s.problem;
  if (i >= p.Tq) return {{}, 0, INT_MAX};
  const int64_t row = head * p.Tq + i;
  const float lse = s.lse ? s.lse[row] : 0;
  // A row that sees nothing is hidden in every tile.
  const double sum = (p.query_sums ? p.query_sums[row] : 0) - (lse == -INFINITY ? 0 : lse);
  const float delta = s.delta ? static_cast<float>(s.delta[row]) : 0;
  const int b = static_cast<int>(head / p.H), h = static_cast<int>(head % p.H);
  return {split_sum(sum), delta, keys_of_query(p, b, h, i).begin};
}

// Blocks of threads: heads and blocks of one alike may be more than a grid's second dimension
// takes.
__host__ __device__ int blocks_of_head(const Problem& p) {
  return static_cast<int>(padded(max(p.Tq, p.Tk)) / kThreads);
}

__global__ void __launch_bounds__(kThreads) records_kernel(const Source s) {
  const Problem& p = s.problem;
  const int64_t num_keys = padded(p.Tk), num_queries = padded(p.Tq);
  const int blocks = blocks_of_head(p);
  const int64_t head = blockIdx.x / blocks;
  const int i = blockIdx.x % blocks * kThreads + threadIdx.x;
  if (i < num_keys) s.records.keys[head * num_keys + i] = key_record(p, head, i);
  if (i < num_queries) s.records.queries[head * num_queries + i] = query_record(s, head, i);
}

}  // namespace

int64_t records_bytes(const Problem& p) {
  const int64_t heads = int64_t{p.B} * p.H;
  return heads * (padded(p.Tk) * sizeof(KeyRecord) + padded(p.Tq) * sizeof(QueryRecord));
}

Records records_in(void* scratch, const Problem& p) {
  auto* queries = static_cast<QueryRecord*>(scratch);
  auto* keys = reinterpret_cast<KeyRecord*>(queries + int64_t{p.B} * p.H * padded(p.Tq));
  return {keys, queries};
}

void make_records(const Problem& problem,
                  const float* lse,
                  const double* delta,
                  const Records& records,
                  cudaStream_t stream) {
  const unsigned blocks = problem.B * problem.H * blocks_of_head(problem);
  records_kernel<<<blocks, kThreads, 0, stream>>>({problem, lse, delta, records});
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda::sm80
