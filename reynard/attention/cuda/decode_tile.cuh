#pragma once
// Decode with the matrix unit: the query heads of a key/value head, up to 16, are the rows of one
// tile, so keys and values are read once for all of them and cost few instructions. A warp reads 16
// keys at a time straight into the layout of right operands.
//
// Lane 4 g + t. Scores: of row g (and g + 8), keys 2 t, 2 t + 1 of each eight. Depth may come in
// any order as long as both operands agree: a lane loads 16 bytes of key g, eight dimensions, and
// uses them as the depths that it must hold. Values: 16 bytes of keys 2 t, 2 t + 1, 2 t + 8, 2 t +
// 9; the product of their i-th dimensions has the dimensions 64 e + 8 n + i as its columns n.

#include "reynard/attention/cuda/decode.h"
#include "reynard/attention/cuda/decode_combine.cuh"
#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/sm80/tile.cuh"

namespace reynard::attention::cuda {

constexpr int kTileHeads = 16;
constexpr float kMostAbove = 8;  // of a score over its row's reference, in powers of two

// One warp: its pages of a run.
template <class Scalar, int kDim>
class TileReader {
  static constexpr int kChunks = kDim / 32, kEighths = kDim / 64;
  static constexpr int kBlocks = kDim == 64 ? 2 : 1;  // of 16 keys whose loads are in flight

 public:
  __device__ __forceinline__ TileReader(const DecodeTask& task, int pair, int first_head)
      : t_(task),
        g_(threadIdx.x % 32 / 4),
        quad_(threadIdx.x % 4),
        group_(task.H / task.G),
        first_head_(first_head),
        s_(pair / task.G),
        first_row_(int64_t{s_} * task.H + pair % task.G * group_),
        scale2_(static_cast<float>(task.scale * kLog2E)) {
    pages_ = t_.page_table + int64_t{pair} * t_.N;
    length_ = static_cast<int>(t_.lengths[s_]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int in_group = first_head + g_ + 8 * r;
      has_head_[r] = in_group < group_;
      query_sums_[r] = 0;
      if (has_head_[r] && length_ > 0 && t_.sums) {
        query_sums_[r] = sums_of(pages_[(length_ - 1) / kPageKeys], r)[(length_ - 1) % kPageKeys];
      }
      const auto* q = static_cast<const Scalar*>(t_.q) + (first_row_ + in_group) * kDim;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint4 piece = {};
        if (has_head_[r]) piece = *reinterpret_cast<const uint4*>(q + 8 * (4 * c + quad_));
        q_[2 * c][r] = piece.x, q_[2 * c][2 + r] = piece.y;
        q_[2 * c + 1][r] = piece.z, q_[2 * c + 1][2 + r] = piece.w;
      }
    }
  }

  // first_pages (S, H): of each query, or null: every page that lies there.
  __device__ __forceinline__ void begin_at(const int32_t* first_pages) {
    const int first_key = t_.first_key ? max(t_.first_key[s_], 0) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      begins_[r] = length_;
      if (!has_head_[r] || length_ == 0) continue;
      const int64_t row = first_row_ + first_head_ + g_ + 8 * r;
      begins_[r] = max(first_pages ? first_pages[row] * kPageKeys : 0, first_key);
    }
    begin_ = min(begins_[0], begins_[1]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      begin_ = min(begin_, __shfl_xor_sync(~0U, begin_, step));
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
#pragma unroll 1
    for (int slot = 0; slot < kPageKeys; slot += 16 * kBlocks) {
      uint4 k[kBlocks][2][kChunks], v[kBlocks][4][kEighths];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        load(n, page, slot + 16 * block, k[block], v[block]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        add(n, page, slot + 16 * block, k[block], v[block]);
    }
  }

  // Of row g + 8 r: the reference, the sum of weights and, at [e][i], the sums of the dimensions
  // 64 e + 8 (2 quad) + i and eight further.
  __device__ __forceinline__ float reference(int r) const {
    return reference_[r];
  }
  __device__ __forceinline__ float total(int r) const {
    float sum = total_[r] + __shfl_xor_sync(~0U, total_[r], 1);
    return sum + __shfl_xor_sync(~0U, sum, 2);
  }
  // Writes the sums of row g + 8 r.
  __device__ __forceinline__ void store(int r, float* row) const {
#pragma unroll
    for (int e = 0; e < kEighths; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        row[64 * e + 16 * quad_ + i] = out_[e][i][2 * r];
        row[64 * e + 16 * quad_ + 8 + i] = out_[e][i][2 * r + 1];
      }
    }
  }

 private:
  __device__ __forceinline__ const double* sums_of(int32_t page, int r) const {
    return t_.sums + (int64_t{page} * group_ + first_head_ + g_ + 8 * r) * kPageKeys;
  }

  __device__ __forceinline__ uint4
  piece_of(const void* rows, int n, int32_t page, int slot, int piece) const {
    const int key = n * kPageKeys + slot;
    if (key < begin_ || key >= length_) return {};  // what lies there may be anything
    const auto* row = static_cast<const Scalar*>(rows) + (int64_t{page} * kPageKeys + slot) * kDim;
    return __ldcs(reinterpret_cast<const uint4*>(row) + piece);
  }

  __device__ __forceinline__ void load(
      int n, int32_t page, int slot, uint4 (&k)[2][kChunks], uint4 (&v)[4][kEighths]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        k[half][c] = piece_of(t_.keys, n, page, slot + 8 * half + g_, 4 * c + quad_);
      }
    }
#pragma unroll
    for (int key = 0; key < 4; ++key) {
#pragma unroll
      for (int e = 0; e < kEighths; ++e) {
        v[key][e] =
            piece_of(t_.values, n, page, slot + 2 * quad_ + key % 2 + key / 2 * 8, 8 * e + g_);
      }
    }
  }

  // c_i - c_j in powers of two of keys `slot` and the next one; -inf where the row sees nothing.
  __device__ __forceinline__ float2 biases(int n, int32_t page, int slot, int r) const {
    const int key = n * kPageKeys + slot;
    const bool seen[2] = {key >= begins_[r] && key < length_,
                          key + 1 >= begins_[r] && key + 1 < length_};
    double2 sums = {query_sums_[r], query_sums_[r]};
    if (t_.sums && has_head_[r]) sums = *reinterpret_cast<const double2*>(sums_of(page, r) + slot);
    const auto bias = [&](double sum) {
      return static_cast<float>((query_sums_[r] - sum) * kLog2E);
    };
    return {seen[0] && has_head_[r] ? bias(sums.x) : -INFINITY,
            seen[1] && has_head_[r] ? bias(sums.y) : -INFINITY};
  }

  __device__ __forceinline__ void add(
      int n, int32_t page, int slot, const uint4 (&k)[2][kChunks], const uint4 (&v)[4][kEighths]) {
    float scores[2][4] = {};
    float top[2] = {kLowest, kLowest};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        sm80::multiply<Scalar>(scores[half], q_[2 * c], k[half][c].x, k[half][c].y);
        sm80::multiply<Scalar>(scores[half], q_[2 * c + 1], k[half][c].z, k[half][c].w);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 bias = biases(n, page, slot + 8 * half + 2 * quad_, r);
        scores[half][2 * r] = fmaf(scores[half][2 * r], scale2_, bias.x);
        scores[half][2 * r + 1] = fmaf(scores[half][2 * r + 1], scale2_, bias.y);
        top[r] = fmaxf(top[r], fmaxf(scores[half][2 * r], scores[half][2 * r + 1]));
      }
    }
    const bool exceeds = top[0] > reference_[0] + kMostAbove || top[1] > reference_[1] + kMostAbove;
    if (__any_sync(~0U, exceeds)) raise(top);
    uint32_t weights[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float first = exp2_approx(scores[half][2 * r] - reference_[r]);
        const float second = exp2_approx(scores[half][2 * r + 1] - reference_[r]);
        total_[r] += first + second;
        weights[2 * half + r] = packed(first, second, Scalar());
      }
    }
#pragma unroll
    for (int e = 0; e < kEighths; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sm80::multiply<Scalar>(
            out_[e][i], weights, pair_of(v[0][e], v[1][e], i), pair_of(v[2][e], v[3][e], i));
      }
    }
  }

  // The i-th of eight numbers of two keys.
  static __device__ __forceinline__ uint32_t pair_of(const uint4& a, const uint4& b, int i) {
    const uint32_t left = i < 2 ? a.x : i < 4 ? a.y : i < 6 ? a.z : a.w;
    const uint32_t right = i < 2 ? b.x : i < 4 ? b.y : i < 6 ? b.z : b.w;
    return __byte_perm(left, right, i % 2 == 0 ? 0x5410 : 0x7632);
  }

  // References become the maxima so far; what was summed is brought to them.
  __device__ __forceinline__ void raise(float (&top)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 2));
      const float raised = fmaxf(reference_[r], top[r]);
      const float keep = exp2_approx(reference_[r] - raised);
      reference_[r] = raised;
      total_[r] *= keep;
#pragma unroll
      for (int e = 0; e < kEighths; ++e) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out_[e][i][2 * r] *= keep, out_[e][i][2 * r + 1] *= keep;
      }
    }
  }

  const DecodeTask& t_;
  const int g_, quad_, group_, first_head_, s_;
  const int64_t first_row_;  // of the group's queries
  const float scale2_;
  const int32_t* pages_;
  int length_, begin_;  // the first key that any head sees
  bool has_head_[2];
  int begins_[2];
  double query_sums_[2];
  uint32_t q_[2 * kChunks][4];
  float reference_[2] = {kLowest, kLowest}, total_[2] = {};
  float out_[kEighths][8][4] = {};
};

}  // namespace reynard::attention::cuda
