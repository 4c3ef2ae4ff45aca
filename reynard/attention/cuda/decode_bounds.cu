#include "reynard/attention/cuda/decode.h"

#include "reynard/attention/cuda/decode_rows.cuh"
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
constexpr int kOwnPages = 4;  // neighbours that a thread looks at in one pass
constexpr int kPassPages = kThreads * kOwnPages;
constexpr int kFloorPages = 2;  // the pages nearest to the query, whose lse bounds its own
constexpr int kFloorWarps = kWarps / kFloorPages;  // that multiply the keys of one of them
constexpr int kLanes = 8;  // that multiply a key, kDims dimensions each at a time
constexpr int kRows = 32 / kLanes;
constexpr int kKeys = kPageKeys / kFloorWarps / kRows;  // of a lane

// NaN once there stays, so that a comparison with it keeps the pages.
__device__ float larger(float a, float b) {
  return b > a || b != b ? b : a;
}

// The smallest index that any thread found; INT_MAX: none.
__device__ int first_of_block(int index) {
  __shared__ int found[kWarps];
  index = __reduce_min_sync(~0U, index);
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = index;
  __syncthreads();
  int first = found[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) first = min(first, found[w]);
  return first;
}

// One block of threads per query. There is little to compute: what takes time is loads that wait
// for loads and threads that wait for threads. So loads are issued together, first page ids, then
// what lies in these pages, and a pass over kPassPages pages has two barriers.
template <class Scalar, bool kWhole>
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
    begin_ = min(first_key_ / kPageKeys, end_ - 1);
  }

  __device__ int find() {
    if (length_ == 0) return 0;
    if (!t_.prunes()) return first_kept([](int, int) { return true; });
    if (!t_.logit_bound) factor_ = query_norm() * t_.scale;
    query_sum_ = sum_of(pages_[end_ - 1], length_ - 1);
    return t_.tight ? tight() : published();
  }

 private:
  // Ids of a thread's pages of one pass; -1: evicted, or none before the last.
  struct Pages {
    int first, ids[kOwnPages];
  };
  __device__ Pages pages_of_pass(int base) const {
    Pages own;
    own.first = base + static_cast<int>(threadIdx.x) * kOwnPages;
#pragma unroll
    for (int i = 0; i < kOwnPages; ++i) {
      own.ids[i] = own.first + i < end_ - 1 ? pages_[own.first + i] : -1;
    }
    return own;
  }

  // The first page that lies there and that `keeps` says to keep, but the last in any case.
  template <class Keeps>
  __device__ int first_kept(const Keeps& keeps) const {
    for (int base = begin_; base < end_ - 1; base += kPassPages) {
      const Pages own = pages_of_pass(base);
      int first = INT_MAX;
#pragma unroll
      for (int i = kOwnPages - 1; i >= 0; --i) {
        if (own.ids[i] >= 0 && keeps(own.first + i, own.ids[i])) first = own.first + i;
      }
      first = first_of_block(first);
      if (first != INT_MAX) return first;
      __syncthreads();  // all have read what the next pass overwrites
    }
    return end_ - 1;
  }

  __device__ double sum_of(int page, int key) const {
    const int64_t row = int64_t{page} * group_ + h_ % group_;
    return t_.sums[row * kPageKeys + key % kPageKeys];
  }
  __device__ double bound_of_norm(float norm) const {
    return t_.logit_bound ? t_.logit_bound[h_] : factor_ * norm;
  }
  // Log of the mass that eviction dropped, at most, for this query.
  __device__ double evicted() const {
    if (!t_.evicted_masses) return -INFINITY;
    return bound_of_norm(t_.evicted_norms[s_ * t_.G + g_]) + query_sum_ + t_.evicted_masses[row_];
  }

  // A lane's dimensions of a row, d and on.
  __device__ static RowPiece<Scalar, kWhole> piece(const Scalar* row, int d, int D) {
    RowPiece<Scalar, kWhole> own;
    own.load(row, d, D);
    return own;
  }
  __device__ const Scalar* query() const {
    return static_cast<const Scalar*>(t_.q) + row_ * t_.D;
  }
  __device__ static int first_dim() {
    return threadIdx.x % kLanes * kDims;
  }

  __device__ double query_norm() const {
    double squares = 0;
    for (int d = first_dim(); d < t_.D; d += kLanes * kDims) {
      const auto q = piece(query(), d, t_.D);
#pragma unroll
      for (int i = 0; i < kDims; ++i) squares += static_cast<double>(q.at(i)) * q.at(i);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) squares += __shfl_xor_sync(~0U, squares, step);
    return sqrt(squares);
  }

  // Logits of a lane's keys of the nearest pages, the same in every lane of a team; -inf: not seen.
  struct Logits {
    float of[kKeys];
  };
  __device__ Logits nearest_logits() const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n = end_ - kFloorPages + warp / kFloorWarps;
    const int page = n >= 0 ? pages_[n] : -1;
    const int slot = warp % kFloorWarps * kRows * kKeys + lane / kLanes;
    const auto* keys =
        static_cast<const Scalar*>(t_.keys) + (int64_t{max(page, 0)} * kPageKeys + slot) * t_.D;
    float products[kKeys] = {};
    for (int d = first_dim(); d < t_.D; d += kLanes * kDims) {
      const auto q = piece(query(), d, t_.D);
      RowPiece<Scalar, kWhole> k[kKeys];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) k[j] = piece(keys + j * kRows * t_.D, d, t_.D);
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
#pragma unroll
        for (int i = 0; i < kDims; ++i) products[j] = fmaf(q.at(i), k[j].at(i), products[j]);
      }
    }
    Logits logits;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) {
        products[j] += __shfl_xor_sync(~0U, products[j], step);
      }
      const int key = n * kPageKeys + slot + j * kRows;
      const bool is_seen = page >= 0 && key >= first_key_ && key < length_;
      const double bias = is_seen ? query_sum_ - sum_of(page, key) : -INFINITY;
      logits.of[j] = is_seen ? fmaf(products[j], t_.scale, static_cast<float>(bias)) : -INFINITY;
    }
    return logits;
  }

  // Log-sum-exp over the nearest pages.
  __device__ float floor() const {
    __shared__ float tops[kWarps], totals[kWarps];
    const Logits logits = nearest_logits();
    float top = kLowest, total = 0;
#pragma unroll
    for (const float x : logits.of) top = fmaxf(top, x);
#pragma unroll
    for (int step = kLanes; step < 32; step *= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
    }
#pragma unroll
    for (const float x : logits.of) total += __expf(x - top);
#pragma unroll
    for (int step = kLanes; step < 32; step *= 2) total += __shfl_xor_sync(~0U, total, step);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) tops[warp] = top, totals[warp] = total;
    __syncthreads();
    top = tops[0], total = 0;
#pragma unroll
    for (const float other : tops) top = fmaxf(top, other);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total = fmaf(__expf(tops[w] - top), totals[w], total);
    return top + __logf(total);
  }

  // Logs of what a thread's pages of a pass may weigh, at most.
  struct Masses {
    double logs[kOwnPages];
  };
  __device__ Masses masses_of(const Pages& own) const {
    Masses masses;
#pragma unroll
    for (int i = 0; i < kOwnPages; ++i) {
      const int page = max(own.ids[i], 0);
      const double mass = t_.masses[int64_t{page} * group_ + h_ % group_];
      masses.logs[i] = bound_of_norm(t_.logit_bound ? 0 : t_.norms[page]) + query_sum_ + mass;
    }
    return masses;
  }

  // The first page whose mass, with all before it, may matter. Masses are added as parts of the
  // limit; f32 is exact enough for what is near it, by kFloorMargin.
  __device__ int tight() const {
    __shared__ float totals[kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Pages own = pages_of_pass(begin_);
    Masses masses = masses_of(own);  // on their way while the floor is found
    const double of_evicted = evicted();
    const double limit = t_.log_tolerance - kFloorMargin + floor();
    float dropped = __expf(static_cast<float>(of_evicted - limit));
    for (int base = begin_; base < end_ - 1; base += kPassPages) {
      float parts[kOwnPages], sum = 0;
#pragma unroll
      for (int i = 0; i < kOwnPages; ++i) {
        const float part = __expf(static_cast<float>(masses.logs[i] - limit));
        parts[i] = own.ids[i] >= 0 ? part : 0;
        sum += parts[i];
      }
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(~0U, sum, step);
        if (lane >= step) sum += before;
      }
      if (lane == 31) totals[warp] = sum;
      sum = __shfl_up_sync(~0U, sum, 1);
      __syncthreads();
      float before = lane > 0 ? dropped + sum : dropped;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += totals[w];
        dropped += totals[w];
      }
      int first = INT_MAX;
#pragma unroll
      for (int i = 0; i < kOwnPages; ++i) {
        before += parts[i];
        // NaN keeps the page.
        if (own.ids[i] >= 0 && !(before <= 1)) first = min(first, own.first + i);
      }
      own = pages_of_pass(base + kPassPages);
      masses = masses_of(own);
      first = first_of_block(first);
      if (first != INT_MAX) return first;
    }
    return end_ - 1;
  }

  // The norm of the longest key, where no bound of logits is given.
  __device__ float longest() const {
    __shared__ float norms[kWarps];
    if (t_.logit_bound) return 0;
    float norm = 0;
    for (int n = begin_ + static_cast<int>(threadIdx.x); n < end_; n += kThreads) {
      const int page = pages_[n];
      if (page >= 0) norm = larger(norm, t_.norms[page]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      norm = larger(norm, __shfl_xor_sync(~0U, norm, step));
    }
    if (threadIdx.x % 32 == 0) norms[threadIdx.x / 32] = norm;
    __syncthreads();
#pragma unroll
    for (const float other : norms) norm = larger(norm, other);
    return norm;
  }

  __device__ int published() const {
    const double largest = bound_of_norm(longest());
    // Skipped keys weigh at most tolerance / T each, and share the tolerance with what was evicted.
    const double left = exp(t_.log_tolerance) - exp(fmin(evicted() + largest, 0.0));
    const double threshold =
        left > 0 ? log(left) - 2 * largest - log(static_cast<double>(length_ - first_key_))
                 : -INFINITY;
    return first_kept([&](int n, int page) {
      return !(query_sum_ - sum_of(page, n * kPageKeys + kPageKeys - 1) < threshold);
    });
  }

  const DecodeTask& t_;
  const int64_t row_;
  const int s_, h_, group_;
  int g_, length_, end_, first_key_, begin_;
  const int32_t* pages_;
  double query_sum_ = 0, factor_ = 0;
};

template <class Scalar, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    first_pages_kernel(const DecodeTask task, int32_t* pages, int32_t* counters) {
  tensor::let_next_kernel_start();
  FirstPage<Scalar, kWhole> search(task);
  const int page = search.find();
  if (threadIdx.x != 0) return;
  counters[blockIdx.x] = 0;
  if (pages) pages[blockIdx.x] = page;
  const int first_key = task.first_key ? max(task.first_key[blockIdx.x / task.H], 0) : 0;
  task.start[blockIdx.x] = max(page * kPageKeys, first_key);
}

template <class Scalar>
void launch(const DecodeTask& task, int32_t* pages, int32_t* counters, cudaStream_t stream) {
  const auto kernel =
      task.D % kDims == 0 ? &first_pages_kernel<Scalar, true> : &first_pages_kernel<Scalar, false>;
  // Not early: the kernel after it reads, before it waits, what was written before this one.
  kernel<<<task.S * task.H, kThreads, 0, stream>>>(task, pages, counters);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

void find_first_pages(const DecodeTask& task,
                      int32_t* pages,
                      int32_t* counters,
                      cudaStream_t stream) {
  switch (task.element) {
    case Element::kFloat:
      return launch<float>(task, pages, counters, stream);
    case Element::kBFloat16:
      return launch<__nv_bfloat16>(task, pages, counters, stream);
    case Element::kHalf:
      return launch<__half>(task, pages, counters, stream);
  }
}

}  // namespace reynard::attention::cuda
