#include "reynard/attention/cuda/decode.h"

#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <climits>
#include <cmath>

namespace reynard::attention::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kFloorPages = 2;  // the pages nearest to the query, whose lse bounds its own

struct Higher {
  static constexpr double kNeutral = -INFINITY;
  __device__ double operator()(double a, double b) const { return b > a ? b : a; }
};
struct Sum {
  static constexpr double kNeutral = 0;
  __device__ double operator()(double a, double b) const { return a + b; }
};
// NaN once there stays, so that a comparison with it keeps the pages.
struct Largest {
  static constexpr double kNeutral = 0;
  __device__ double operator()(double a, double b) const { return b > a || b != b ? b : a; }
};

// Every thread's value combined with those of the threads before it, in their order.
template <class Combine>
__device__ double inclusive_scan(double value, const Combine& combine) {
  __shared__ double totals[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const double before = __shfl_up_sync(~0U, value, distance);
    if (lane >= distance) value = combine(before, value);
  }
  __syncthreads();
  if (lane == 31) totals[warp] = value;
  __syncthreads();
  double carry = Combine::kNeutral;
  for (int w = 0; w < warp; ++w) carry = combine(carry, totals[w]);
  return combine(carry, value);
}

template <class Combine>
__device__ double over_block(double value, const Combine& combine) {
  __shared__ double result;
  value = inclusive_scan(value, combine);
  if (threadIdx.x == kThreads - 1) result = value;
  __syncthreads();
  const double all = result;
  __syncthreads();
  return all;
}

// The smallest index that any thread found; INT_MAX: none.
__device__ int first_of_block(int index) {
  __shared__ int least;
  if (threadIdx.x == 0) least = INT_MAX;
  __syncthreads();
  if (index != INT_MAX) atomicMin(&least, index);
  __syncthreads();
  const int found = least;
  __syncthreads();
  return found;
}

// One block of threads per query.
template <class Scalar>
class FirstPage {
 public:
  __device__ explicit FirstPage(const DecodeTask& task)
      : t_(task),
        row_(blockIdx.x),
        s_(blockIdx.x / task.H),
        h_(blockIdx.x % task.H),
        group_(task.H / task.G) {
    g_ = h_ / group_;
    pages_ = t_.page_table + (int64_t{s_} * t_.G + g_) * t_.N;
    length_ = static_cast<int>(t_.lengths[s_]);
    end_ = (length_ + kPageKeys - 1) / kPageKeys;
    first_key_ = t_.first_key ? max(t_.first_key[s_], 0) : 0;
  }

  __device__ int find() {
    if (length_ == 0) return 0;
    const int held = first_held();
    if (!t_.sums || !(t_.log_tolerance < 0)) return held;
    query_sum_ = sum_of(length_ - 1);
    if (!t_.logit_bound) factor_ = sqrt(over_block(own_squares(), Sum())) * t_.scale;
    return t_.tight ? tight(held) : published(held);
  }

 private:
  __device__ double sum_of(int key) const {
    const int64_t row = int64_t{pages_[key / kPageKeys]} * group_ + h_ % group_;
    return t_.sums[row * kPageKeys + key % kPageKeys];
  }
  __device__ const Scalar* query() const { return static_cast<const Scalar*>(t_.q) + row_ * t_.D; }
  __device__ double own_squares() const {
    double sum = 0;
    for (int d = threadIdx.x; d < t_.D; d += kThreads) {
      const double value = static_cast<float>(query()[d]);
      sum += value * value;
    }
    return sum;
  }

  // The first page that lies there, but the last in any case.
  __device__ int first_held() const {
    const int last = end_ - 1;
    for (int base = min(first_key_ / kPageKeys, last); base < last; base += kThreads) {
      const int n = base + threadIdx.x;
      const int found = first_of_block(n < last && pages_[n] >= 0 ? n : INT_MAX);
      if (found != INT_MAX) return found;
    }
    return last;
  }

  __device__ double bound_of_norm(float norm) const {
    return t_.logit_bound ? t_.logit_bound[h_] : factor_ * norm;
  }
  __device__ double bound_of_page(int n) const {
    return bound_of_norm(t_.norms ? t_.norms[pages_[n]] : 0);
  }
  // Log of the mass that eviction dropped, at most, for this query.
  __device__ double evicted() const {
    if (!t_.evicted_masses) return -INFINITY;
    return bound_of_norm(t_.evicted_norms[s_ * t_.G + g_]) + query_sum_ + t_.evicted_masses[row_];
  }

  // Log-sum-exp over the nearest pages. A warp multiplies its keys, all loads at once; the rest is
  // done for each by the lane of its number.
  __device__ double floor(int held) const {
    constexpr int kPageWarpKeys = kPageKeys / kWarps, kWarpKeys = kFloorPages * kPageWarpKeys;
    static_assert(kWarpKeys <= 32);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_page = max(end_ - kFloorPages, held);
    const int own = first_page * kPageKeys + warp + lane * kWarps;
    const bool is_seen = lane < kWarpKeys && own >= first_key_ && own < length_;
    const double own_sum = is_seen ? sum_of(own) : 0;
    const Scalar* rows[kFloorPages];
#pragma unroll
    for (int n = 0; n < kFloorPages; ++n) {
      const int64_t page = pages_[min(first_page + n, end_ - 1)];
      rows[n] = static_cast<const Scalar*>(t_.keys) + (page * kPageKeys + warp) * t_.D;
    }
    float products[kWarpKeys] = {};
    for (int d = lane; d < t_.D; d += 32) {
      const float value = static_cast<float>(query()[d]);
#pragma unroll
      for (int i = 0; i < kWarpKeys; ++i) {
        const Scalar* row = rows[i / kPageWarpKeys] + i % kPageWarpKeys * kWarps * t_.D;
        products[i] = fmaf(value, static_cast<float>(row[d]), products[i]);
      }
    }
    float own_product = 0;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        products[i] += __shfl_xor_sync(~0U, products[i], step);
      }
      if (lane == i) own_product = products[i];
    }
    const double logit =
        is_seen ? static_cast<double>(own_product) * t_.scale + query_sum_ - own_sum : -INFINITY;
    const double largest = over_block(logit, Higher());
    return largest + log(over_block(is_seen ? exp(logit - largest) : 0, Sum()));
  }

  // The first page from `held` on whose mass, with all before it, may matter. Masses are added as
  // parts of the limit, since sums of logarithms would take most of the time.
  __device__ int tight(int held) const {
    const int last = end_ - 1;
    const auto log_mass = [&](int n) {
      if (n >= last) return -static_cast<double>(INFINITY);
      const double mass = t_.masses[int64_t{pages_[n]} * group_ + h_ % group_];
      return bound_of_page(n) + query_sum_ + mass;
    };
    double next = log_mass(held + threadIdx.x);  // on its way while the floor is found
    const double limit = t_.log_tolerance - kFloorMargin + floor(held);
    double dropped = exp(evicted() - limit);
    for (int base = held; base < last; base += kThreads) {
      const int n = base + threadIdx.x;
      const double part = exp(next - limit);
      next = log_mass(n + kThreads);
      const double before = dropped + inclusive_scan(part, Sum());
      // NaN keeps the page.
      const int found = first_of_block(n < last && !(before <= 1) ? n : INT_MAX);
      if (found != INT_MAX) return found;
      dropped = over_block(before, Last());
    }
    return last;
  }

  __device__ int published(int held) const {
    const int last = end_ - 1;
    double largest = bound_of_norm(0);
    if (!t_.logit_bound) {
      for (int n = held + threadIdx.x; n <= last; n += kThreads) {
        largest = Largest()(largest, bound_of_page(n));
      }
      largest = over_block(largest, Largest());
    }
    // Skipped keys weigh at most tolerance / T each, and share the tolerance with what was evicted.
    const double left = exp(t_.log_tolerance) - exp(fmin(evicted() + largest, 0.0));
    if (!(left > 0)) return held;
    const double threshold =
        log(left) - 2 * largest - log(static_cast<double>(length_ - first_key_));
    for (int base = held; base < last; base += kThreads) {
      const int n = base + threadIdx.x;
      const bool keep =
          n < last && !(query_sum_ - sum_of(n * kPageKeys + kPageKeys - 1) < threshold);
      const int found = first_of_block(keep ? n : INT_MAX);
      if (found != INT_MAX) return found;
    }
    return last;
  }

  struct Last {
    static constexpr double kNeutral = 0;
    __device__ double operator()(double, double b) const { return b; }
  };

  const DecodeTask& t_;
  const int64_t row_;
  const int s_, h_, group_;
  int g_, length_, end_, first_key_;
  const int32_t* pages_;
  double query_sum_ = 0, factor_ = 0;
};

template <class Scalar>
__global__ void __launch_bounds__(kThreads)
    first_pages_kernel(const DecodeTask task, int32_t* pages, int32_t* counters) {
  tensor::let_next_kernel_start();
  FirstPage<Scalar> search(task);
  const int page = search.find();
  if (threadIdx.x != 0) return;
  counters[blockIdx.x] = 0;
  if (pages) pages[blockIdx.x] = page;
  const int first_key = task.first_key ? max(task.first_key[blockIdx.x / task.H], 0) : 0;
  task.start[blockIdx.x] = max(page * kPageKeys, first_key);
}

}  // namespace

void find_first_pages(const DecodeTask& task,
                      int32_t* pages,
                      int32_t* counters,
                      cudaStream_t stream) {
  // Not early: the kernel after it reads, before it waits, what was written before this one.
  const auto launch = [&](auto kernel) {
    kernel<<<task.S * task.H, kThreads, 0, stream>>>(task, pages, counters);
    REYNARD_CHECK_LAUNCH();
  };
  switch (task.element) {
    case Element::kFloat:
      return launch(&first_pages_kernel<float>);
    case Element::kBFloat16:
      return launch(&first_pages_kernel<__nv_bfloat16>);
    case Element::kHalf:
      return launch(&first_pages_kernel<__half>);
  }
}

}  // namespace reynard::attention::cuda
