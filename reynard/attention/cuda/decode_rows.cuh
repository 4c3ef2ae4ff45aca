#pragma once
// Decode row by row: kLanes lanes hold eight dimensions each of a key and of its value, so 32 /
// kLanes keys arrive with one load, and several loads are in flight. Lanes that share a key add up
// its score; each such group keeps a softmax of its own over the keys that it has seen. All heads
// of a key/value head use what was read.

#include "reynard/attention/cuda/decode.h"
#include "reynard/attention/cuda/decode_combine.cuh"
#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/registers.cuh"

namespace reynard::attention::cuda {

constexpr int kDims = 8;   // of a lane
constexpr int kLoads = 4;  // of keys in flight, and as many of values

// Eight dimensions of a row; those beyond D are zeros. kWhole: D is a multiple of eight, so rows
// are aligned.
template <class Scalar, bool kWhole>
struct RowPiece {
  uint4 words[sizeof(Scalar) / 2];

  __device__ __forceinline__ void load(
      const Scalar* row, int d, int D, bool there = true, Caching caching = Caching::kKept) {
#pragma unroll
    for (uint4& w : words) w = {0, 0, 0, 0};
    if (!there) return;
    if constexpr (kWhole) {
      if (d >= D) return;
      const auto* from = reinterpret_cast<const uint4*>(row + d);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(Scalar)) / 2; ++i) {
        words[i] = caching == Caching::kLetGoFirst ? __ldcs(from + i) : __ldg(from + i);
      }
    } else {
      auto* to = reinterpret_cast<Scalar*>(words);
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        if (d + i < D) to[i] = row[d + i];
      }
    }
  }
  __device__ __forceinline__ float at(int i) const {
    return static_cast<float>(reinterpret_cast<const Scalar*>(words)[i]);
  }
};

// The softmax of one head over the keys that a group of lanes has seen.
struct Softmax {
  float largest = kLowest, total = 0;
  float out[kDims] = {};

  __device__ __forceinline__ void raise(float top) {
    const float raised = fmaxf(largest, top), keep = exp2_approx(largest - raised);
    largest = raised;
    total *= keep;
#pragma unroll
    for (float& x : out) x *= keep;
  }
  // Adds the softmax of other keys.
  __device__ __forceinline__ void add(float other_largest, float other_total, const float* other) {
    raise(other_largest);
    const float weight = exp2_approx(other_largest - largest);
    total += weight * other_total;
#pragma unroll
    for (int i = 0; i < kDims; ++i) out[i] = fmaf(weight, other[i], out[i]);
  }
};

// One warp: its pages of a run, for kHeads heads of one key/value head.
template <class Scalar, int kLanes, int kHeads, bool kWhole>
class PageReader {
  static constexpr int kRows = 32 / kLanes;  // keys of one load

 public:
  __device__ __forceinline__ PageReader(const DecodeTask& task, int pair, int first_head)
      : t_(task),
        lane_(threadIdx.x % 32),
        d_(threadIdx.x % kLanes * kDims),
        group_(task.H / task.G),
        first_head_(first_head) {
    s_ = pair / t_.G;
    first_row_ = int64_t{s_} * t_.H + pair % t_.G * group_ + first_head;
    pages_ = t_.page_table + int64_t{pair} * t_.N;
    length_ = static_cast<int>(t_.lengths[s_]);
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      RowPiece<Scalar, kWhole> piece;
      const auto* row =
          static_cast<const Scalar*>(t_.q) + (has_head(i) ? first_row_ + i : 0) * t_.D;
      piece.load(row, d_, t_.D, has_head(i));
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        q_[i][d] = piece.at(d) * static_cast<float>(t_.scale * kLog2E);
      }
      query_sums_[i] = 0;
      if (has_head(i) && length_ > 0 && t_.sums) {
        query_sums_[i] = sums_of(pages_[(length_ - 1) / kPageKeys], i)[last_slot()];
      }
    }
  }

  // first_pages (S, H): of each query, or null: every page that lies there.
  __device__ __forceinline__ void begin_at(const int32_t* first_pages) {
    const int first_key = t_.first_key ? max(t_.first_key[s_], 0) : 0;
    begin_ = length_;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      begins_[i] = length_;
      if (!has_head(i) || length_ == 0) continue;
      begins_[i] = max(first_pages ? first_pages[first_row_ + i] * kPageKeys : 0, first_key);
      begin_ = min(begin_, begins_[i]);
    }
  }

  // The first key that any head sees, and the number of keys.
  __device__ __forceinline__ int begin() const {
    return begin_;
  }
  __device__ __forceinline__ int length() const {
    return length_;
  }
  __device__ __forceinline__ bool reads(int n) const {
    return n * kPageKeys < length_ && (n + 1) * kPageKeys > begin_;
  }

  // The page with keys 64 n and on.
  __device__ __forceinline__ int32_t page(int n) const {
    return __ldg(pages_ + n);
  }

  __device__ __forceinline__ void read(int n, int32_t page) {
    const int64_t base = int64_t{page} * kPageKeys * t_.D;
    const auto* keys = static_cast<const Scalar*>(t_.keys) + base;
    const auto* values = static_cast<const Scalar*>(t_.values) + base;
    double sums[kHeads][2];
    load_sums(page, n * kPageKeys, sums);
#pragma unroll 1
    for (int row = lane_ / kLanes; row < kPageKeys; row += kRows * kLoads) {
      RowPiece<Scalar, kWhole> k[kLoads], v[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int slot = row + u * kRows, key = n * kPageKeys + slot;
        const bool there = key >= begin_ && key < length_;
        k[u].load(keys + slot * t_.D, d_, t_.D, there, t_.caching);
        v[u].load(values + slot * t_.D, d_, t_.D, there, t_.caching);
      }
      if (row < kRows) set_biases(n * kPageKeys, sums);  // the first rows are under way
#pragma unroll
      for (int i = 0; i < kHeads; ++i) add_rows(i, row, k, v);
    }
  }

  // Over the groups of lanes: afterwards all of them hold the warp's softmax. Both sides of a pair
  // compute the same bits: product and sum are rounded each by itself.
  __device__ __forceinline__ Softmax combined(int i) const {
    Softmax softmax = softmax_[i];
#pragma unroll
    for (int step = kLanes; step < 32; step *= 2) {
      const float other = __shfl_xor_sync(~0U, softmax.largest, step);
      const float raised = fmaxf(softmax.largest, other);
      const float keep = exp2_approx(softmax.largest - raised),
                  weight = exp2_approx(other - raised);
      const auto add = [&](float own) {
        const float theirs = __shfl_xor_sync(~0U, own, step);
        return __fadd_rn(__fmul_rn(keep, own), __fmul_rn(weight, theirs));
      };
      softmax.largest = raised;
      softmax.total = add(softmax.total);
#pragma unroll
      for (float& x : softmax.out) x = add(x);
    }
    return softmax;
  }

 private:
  __device__ __forceinline__ bool has_head(int i) const {
    return first_head_ + i < group_;
  }
  __device__ __forceinline__ int last_slot() const {
    return (length_ - 1) % kPageKeys;
  }
  __device__ __forceinline__ const double* sums_of(int32_t page, int i) const {
    return t_.sums + (int64_t{page} * group_ + first_head_ + i) * kPageKeys;
  }

  __device__ __forceinline__ bool sees(int i, int key) const {
    return key >= begins_[i] && key < length_;
  }

  // c_j of a page's keys, two keys a lane.
  __device__ __forceinline__ void load_sums(int32_t page,
                                            int base,
                                            double (&sums)[kHeads][2]) const {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slot = half * 32 + lane_;
        sums[i][half] = t_.sums && sees(i, base + slot) ? sums_of(page, i)[slot] : 0;
      }
    }
  }
  // c_i - c_j of these keys in powers of two; -inf where a head sees nothing.
  __device__ __forceinline__ void set_biases(int base, const double (&sums)[kHeads][2]) {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float bias = static_cast<float>((query_sums_[i] - sums[i][half]) * kLog2E);
        biases_[i][half] = sees(i, base + half * 32 + lane_) ? bias : -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void add_rows(int i,
                                           int row,
                                           const RowPiece<Scalar, kWhole> (&k)[kLoads],
                                           const RowPiece<Scalar, kWhole> (&v)[kLoads]) {
    float scores[kLoads];
    float top = kLowest;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      float score = 0;
#pragma unroll
      for (int d = 0; d < kDims; ++d) score = fmaf(q_[i][d], k[u].at(d), score);
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) score += __shfl_xor_sync(~0U, score, step);
      // The keys of one turn lie in one half of the page.
      const int slot = row + u * kRows;
      scores[u] = score + __shfl_sync(~0U, slot < 32 ? biases_[i][0] : biases_[i][1], slot % 32);
      top = fmaxf(top, scores[u]);
    }
    Softmax& own = softmax_[i];
    if (top > own.largest) own.raise(top);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const float weight = exp2_approx(scores[u] - own.largest);
      own.total += weight;
#pragma unroll
      for (int d = 0; d < kDims; ++d) own.out[d] = fmaf(weight, v[u].at(d), own.out[d]);
    }
  }

  const DecodeTask& t_;
  const int lane_, d_, group_, first_head_;
  int64_t first_row_;       // of the heads' queries
  int s_, length_, begin_;  // the first key that any head sees
  const int32_t* pages_;
  int begins_[kHeads];
  double query_sums_[kHeads];
  float q_[kHeads][kDims];
  float biases_[kHeads][2];
  Softmax softmax_[kHeads];
};

}  // namespace reynard::attention::cuda
