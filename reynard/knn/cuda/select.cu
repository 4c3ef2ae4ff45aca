#include "reynard/knn/cuda/select.h"

#include "reynard/knn/cuda/code.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <climits>

namespace reynard::knn::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

// Ordered as the codes, without a sign.
__device__ inline uint64_t ordered(Code code) {
  return static_cast<uint64_t>(code) ^ (uint64_t{1} << 63);
}
__device__ inline Code code_of(uint64_t key) {
  return static_cast<Code>(key ^ (uint64_t{1} << 63));
}

struct Shared {
  int counts[kDigits];
  uint64_t low[kWarps], high[kWarps];
  int digit, above;
};

// The smallest and the largest of n >= 1 codes, for all threads.
__device__ void find_range(const Code* codes, int n, Shared& s, uint64_t& low, uint64_t& high) {
  low = UINT64_MAX, high = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const uint64_t key = ordered(codes[i]);
    low = min(low, key), high = max(high, key);
  }
  for (int step = 16; step > 0; step /= 2) {
    low = min(low, __shfl_xor_sync(0xffffffffU, low, step));
    high = max(high, __shfl_xor_sync(0xffffffffU, high, step));
  }
  if (threadIdx.x % 32 == 0) s.low[threadIdx.x / 32] = low, s.high[threadIdx.x / 32] = high;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) low = min(low, s.low[w]), high = max(high, s.high[w]);
}

// One warp: the digit in which the `rank`-th code from above lies, and how many have larger ones.
__device__ void find_digit(Shared& s, int rank) {
  constexpr int kPerLane = kDigits / 32;
  const int lane = threadIdx.x;
  int own = 0;
  // Lane 0 has the largest digits.
  for (int i = 0; i < kPerLane; ++i) own += s.counts[kDigits - 1 - lane * kPerLane - i];
  int upto = own;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, upto, step);
    if (lane >= step) upto += other;
  }
  int above = upto - own;
  if (above >= rank || upto < rank) return;
  int digit = kDigits - 1 - lane * kPerLane;
  for (; above + s.counts[digit] < rank; --digit) above += s.counts[digit];
  s.digit = digit, s.above = above;
}

// A bound that exactly `rank` of the n codes (different, 1 <= rank <= n) reach: digit by digit from
// the first in which they differ, until all that share the digits so far are among them.
__device__ Code bound_of_rank(const Code* codes, int n, int rank, Shared& s) {
  uint64_t low, high;
  find_range(codes, n, s, low, high);
  if (rank == n) return code_of(low);
  int shift = 64 - __clzll(static_cast<long long>(low ^ high));  // n > 1: they differ
  uint64_t prefix = shift < 64 ? high >> shift << shift : 0;
  while (shift > 0) {
    const int end = shift;
    shift = max(0, shift - kDigitBits);
    const uint64_t same = end < 64 ? UINT64_MAX << end : 0;
    __syncthreads();
    for (int i = threadIdx.x; i < kDigits; i += kThreads) s.counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const uint64_t key = ordered(codes[i]);
      if (((key ^ prefix) & same) == 0) {
        atomicAdd(s.counts + static_cast<int>((key & ~same) >> shift), 1);
      }
    }
    __syncthreads();
    if (threadIdx.x < 32) find_digit(s, rank);
    __syncthreads();
    prefix |= static_cast<uint64_t>(s.digit) << shift;
    rank -= s.above;
    if (s.counts[s.digit] == rank) break;
  }
  return code_of(prefix);
}

__global__ void __launch_bounds__(kThreads)
    raise_kernel(FilterTask t, Code* thresholds, int* counts, int rank) {
  __shared__ Shared s;
  const int64_t query = blockIdx.x;
  const int n = min(counts[query], t.capacity);
  if (n >= rank) {
    const Code bound = bound_of_rank(t.candidates + query * t.capacity, n, rank, s);
    if (threadIdx.x == 0) thresholds[query] = max(thresholds[query], bound);
  }
  __syncthreads();
  if (threadIdx.x == 0) counts[query] = 0;
}

// Largest first; size is a power of two.
__device__ void sort_codes(Code* codes, int size) {
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const int other = i ^ step;
        if (other < i) continue;
        const bool falling = (i & width) == 0;
        const Code a = codes[i], b = codes[other];
        if ((a < b) == falling) codes[i] = b, codes[other] = a;
      }
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    best_kernel(FilterTask t, Code* best, int k, int* overflow) {
  __shared__ Shared s;
  __shared__ Code kept[kMostSorted];
  __shared__ int num_kept;
  const int64_t query = blockIdx.x;
  const Code* codes = t.candidates + query * t.capacity;
  const int found = t.counts[query], n = min(found, t.capacity);
  if (threadIdx.x == 0) {
    num_kept = 0;
    if (found > t.capacity) *overflow = 1;
  }
  int size = 1;
  while (size < k) size *= 2;
  for (int i = threadIdx.x; i < size; i += kThreads) kept[i] = kNoCode;
  const Code bound = n > k ? bound_of_rank(codes, n, k, s) : kNoCode;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kThreads) {
    if (codes[i] >= bound) kept[atomicAdd(&num_kept, 1)] = codes[i];
  }
  sort_codes(kept, size);
  for (int i = threadIdx.x; i < k; i += kThreads) best[query * k + i] = kept[i];
}

// Of one query, by a warp.
__device__ float margin_of(const FilterTask& t, int64_t query, float factor) {
  float size = 0, error = 0;
  for (int d = threadIdx.x % 32; d < t.head_dim; d += 32) {
    const float q = t.queries[query * t.head_dim + d];
    const float rounded = __bfloat162float(__float2bfloat16_rn(q));
    size += fabsf(q) + fabsf(rounded);
    error += fabsf(q - rounded);
  }
  for (int step = 16; step > 0; step /= 2) {
    size += __shfl_xor_sync(0xffffffffU, size, step);
    error += __shfl_xor_sync(0xffffffffU, error, step);
  }
  return (size * factor + error) * (1 + 0x1p-10F);  // far more than this sum's own rounding
}

// A warp per query, and one for the number behind the counts.
__global__ void begin_kernel(FilterTask t, Beginning to, int64_t queries) {
  const int64_t query = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (query > queries) return;
  const bool first = threadIdx.x % 32 == 0;
  if (first) to.counts[query] = 0;
  if (query == queries) return;
  if (first) to.thresholds[query] = kNoCode;
  if (!to.margins) return;
  const float margin = margin_of(t, query, to.margin_factor);
  if (first) to.margins[query] = margin;
}

int64_t num_queries(const FilterTask& t) {
  return static_cast<int64_t>(t.num_rows) * t.num_tokens * t.num_key_heads * t.repeat;
}

}  // namespace

void raise_thresholds(
    const FilterTask& task, Code* thresholds, int* counts, int rank, cudaStream_t stream) {
  raise_kernel<<<static_cast<unsigned>(num_queries(task)), kThreads, 0, stream>>>(
      task, thresholds, counts, rank);
  REYNARD_CHECK_LAUNCH();
}

void sort_best(const FilterTask& task, Code* best, int k, int* overflow, cudaStream_t stream) {
  best_kernel<<<static_cast<unsigned>(num_queries(task)), kThreads, 0, stream>>>(
      task, best, k, overflow);
  REYNARD_CHECK_LAUNCH();
}

void begin_search(const FilterTask& task, const Beginning& to, cudaStream_t stream) {
  constexpr int kBlock = 128;
  const int64_t queries = num_queries(task);
  const auto blocks = static_cast<unsigned>(((queries + 1) * 32 + kBlock - 1) / kBlock);
  begin_kernel<<<blocks, kBlock, 0, stream>>>(task, to, queries);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::knn::cuda
