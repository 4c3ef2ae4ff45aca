#pragma once
// What both kernels of the backward have in common: a warp owns rows of one side (queries or keys),
// a block of threads walks over tiles of the other side. With S and dP of a tile in registers,
//
//   P = exp2(scale S + c_i - lse_i - c_j)    dS = P (dP - delta_i)
//
// and sums of dS, or of P, times rows of the tile: dq or dk, and dv.

#include "reynard/attention/cuda/sm80/records.cuh"
#include "reynard/attention/cuda/sm80/tile.cuh"

namespace reynard::attention::cuda::sm80 {

// Whose rows a block of threads owns.
enum class Side : int { kQueries, kKeys };

// kDim: head dimension rounded up to 64, 128 or 256. kScores: sums of dS times q or k are wanted,
// and of dS itself; kWeights: sums of P times dout.
template <int kDim_, class Scalar_, Side kSide_, bool kScores_, bool kWeights_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr Side kSide = kSide_;
  static constexpr bool kScores = kScores_, kWeights = kWeights_;
  static constexpr bool kOwnsKeys = kSide == Side::kKeys;
  // Two row tiles share every fragment of the other side, where their sums fit into registers.
  static constexpr int kRowTiles = kDim == 64 || (kDim == 128 && !kOwnsKeys) ? 2 : 1;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kRowTiles * kWarps;
  // Two stages of tiles beside the own ones, within the 99 KB of the smallest supported GPU.
  static constexpr int kColumns = kDim == 64 ? 64 : kDim == 128 ? 32 : 16;
  static constexpr int kColumnsPerStep = kDim == 256 ? 16 : 32;  // in registers at a time
  static constexpr int kColumnTiles = kColumnsPerStep / 8;
  static constexpr int kOwn = 2 * kRowTiles;  // rows of a thread
  using ColumnRecord = std::conditional_t<kOwnsKeys, QueryRecord, KeyRecord>;
};

template <class C>
struct Tiles {
  char first[C::kColumns * C::kDim * 2];   // k or q
  char second[C::kColumns * C::kDim * 2];  // v or dout
  alignas(16) typename C::ColumnRecord records[C::kColumns];
};

template <class C>
struct alignas(128) Shared {
  char first[C::kRows * C::kDim * 2];   // q or k
  char second[C::kRows * C::kDim * 2];  // dout or v
  alignas(128) Tiles<C> tiles[2];
  int found[C::kThreads], num_found[C::kWarps];  // tiles to walk over
};

// The rows of a warp.
template <class C>
class Rows {
  using Scalar = typename C::Scalar;

 public:
  __device__ __forceinline__ Rows(const Problem& problem, int first)
      : p_(problem),
        lane_(threadIdx.x % 32),
        first_(first + threadIdx.x / 32 * (16 * C::kRowTiles)),
        scale2_(static_cast<float>(problem.scale * kLog2E)) {
    clear(first_sums_);
    clear(second_sums_);
  }

  // Of one head; a warp's range of the other side does not depend on it for keys.
  template <class Record>
  __device__ __forceinline__ void start_head(const Record* records) {
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      const Record record = records[row(a)];
      high_[a] = record.high, low_[a] = record.low;
      if constexpr (!C::kOwnsKeys) delta_[a] = record.delta, begin_[a] = record.begin;
      sums_[a] = 0;
    }
    if constexpr (!C::kOwnsKeys) {
      constexpr int kLast = 16 * C::kRowTiles - 1;
      own_ = full_ = {};
      if (first_ >= p_.Tq) return;
      const int last = min(first_ + kLast, p_.Tq - 1);
      own_ = {records[first_].begin, end_of(last)};
      if (first_ + kLast < p_.Tq) full_ = {records[last].begin, end_of(first_)};
    }
  }

  // A tile of columns from `base` on; addresses are those of the own tiles.
  __device__ __forceinline__ void differentiate(const Shared<C>& s,
                                                const Tiles<C>& tile,
                                                int base) {
    const auto [any, all] = sees(tile, base);
    if (!any) return;
#pragma unroll 1
    for (int column = 0; column < C::kColumns; column += C::kColumnsPerStep) {
      const uint32_t first = shared_address(tile.first) + column * C::kDim * 2;
      const uint32_t second = shared_address(tile.second) + column * C::kDim * 2;
      multiply_rows<Scalar, C::kDim>(own_rows(s.first), first, scores_);
      if constexpr (C::kScores) {
        multiply_rows<Scalar, C::kDim>(own_rows(s.second), second, dweights_);
      }
      if (all) {
        weigh<false>(tile.records + column, base + column);
      } else {
        weigh<true>(tile.records + column, base + column);
      }
      if constexpr (C::kWeights) {
        add_weighted_rows<Scalar, C::kDim>(weights_, second, second_sums_);
      }
      if constexpr (C::kScores) {
        add_weighted_rows<Scalar, C::kDim>(dscores_, first, first_sums_);
      }
    }
  }

  // Sums of dS over the head's columns, to the own rows of (B, H, T) sums.
  __device__ __forceinline__ void store_sums(double* to, int end, double factor) const {
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      const double sum = over_row(sums_[a], [](double x, double y) { return x + y; });
      if (lane_ % 4 == 0 && row(a) < end) to[row(a)] = factor * sum;
    }
  }

  __device__ __forceinline__ void store_first(const Operand& to, int b, int head, int end) const {
    store(to, first_sums_, b, head, end, p_.scale);
  }
  __device__ __forceinline__ void store_second(const Operand& to, int b, int head, int end) const {
    store(to, second_sums_, b, head, end, 1);
  }

 private:
  using Sums = float[C::kRowTiles][C::kDim / 8][4];
  using Pairs = uint32_t[C::kRowTiles][C::kColumnTiles][2];

  struct Sight {
    bool any, all;
  };

  static __device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (auto& row : sums) {
#pragma unroll
      for (auto& column : row) column[0] = column[1] = column[2] = column[3] = 0;
    }
  }

  __device__ __forceinline__ int row(int a) const {
    return first_ + a / 2 * 16 + lane_ / 4 + a % 2 * 8;
  }
  __device__ __forceinline__ int end_of(int query) const {
    return p_.causal ? query + p_.Tk - p_.Tq + 1 : p_.Tk;
  }

  // Whether any pair of the warp's rows and the tile's columns is visible, and whether all are.
  __device__ __forceinline__ Sight sees(const Tiles<C>& tile, int base) const {
    const int end = base + C::kColumns;
    if constexpr (C::kOwnsKeys) {
      const int last_key = first_ + 16 * C::kRowTiles;
      const int last_query = min(end, p_.Tq) - 1;
      return {tile.records[0].begin < last_key && end_of(last_query) > first_,
              tile.records[C::kColumns - 1].begin <= first_ && end_of(base) >= last_key};
    } else {
      return {own_.begin < end && own_.end > base, full_.begin <= base && full_.end >= end};
    }
  }

  // Left fragments of the warp's rows of an own tile.
  __device__ __forceinline__ auto own_rows(const char* tile) const {
    const uint32_t rows =
        shared_address(tile) + threadIdx.x / 32 * (16 * C::kRowTiles) * C::kDim * 2;
    return [rows, lane = lane_](uint32_t(&a)[4], int r, int step) {
      load_matrices(a, LaneAddress<C::kDim>(lane, false).at(rows, r * 16, step));
    };
  }

  __device__ __forceinline__ bool visible(int a, const QueryRecord& query, int column) const {
    return row(a) >= query.begin && row(a) < end_of(column);
  }
  __device__ __forceinline__ bool visible(int a, const KeyRecord&, int column) const {
    return column >= begin_[a] && column < end_of(row(a));
  }
  __device__ __forceinline__ float delta_of(int, const QueryRecord& query) const {
    return query.delta;
  }
  __device__ __forceinline__ float delta_of(int a, const KeyRecord&) const {
    return delta_[a];
  }

  // scores_ and dweights_ become pairs of P and of dS. Where a pair is hidden both are 0, whatever
  // the products are.
  template <bool kEdge>
  __device__ __forceinline__ void weigh(const typename C::ColumnRecord* records, int base) {
    float sums[C::kOwn] = {};
#pragma unroll
    for (int c = 0; c < C::kColumnTiles; ++c) {
      typename C::ColumnRecord column[2];
      const int first = c * 8 + lane_ % 4 * 2;
      column[0] = records[first], column[1] = records[first + 1];
#pragma unroll
      for (int a = 0; a < C::kOwn; ++a) {
        float weight[2], dscore[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          // c_i - lse_i - c_j: the rows are the queries, or the keys.
          const float difference = (high_[a] - column[e].high) + (low_[a] - column[e].low);
          const float bias = C::kOwnsKeys ? -difference : difference;
          weight[e] = exp2_approx(fmaf(scores_[a / 2][c][a % 2 * 2 + e], scale2_, bias));
          if constexpr (C::kScores) {
            const float dweight = dweights_[a / 2][c][a % 2 * 2 + e];
            dscore[e] = weight[e] * (dweight - delta_of(a, column[e]));
          }
          if (kEdge && !visible(a, column[e], base + first + e)) weight[e] = dscore[e] = 0;
          if constexpr (C::kScores) sums[a] += dscore[e];
        }
        if constexpr (C::kWeights) {
          weights_[a / 2][c][a % 2] = packed(weight[0], weight[1], Scalar());
        }
        if constexpr (C::kScores) {
          dscores_[a / 2][c][a % 2] = packed(dscore[0], dscore[1], Scalar());
        }
      }
    }
    if constexpr (C::kScores) {
#pragma unroll
      for (int a = 0; a < C::kOwn; ++a) sums_[a] += sums[a];
    }
  }

  __device__ __forceinline__ void store(
      const Operand& to, const Sums& sums, int b, int head, int end, float factor) const {
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      if (row(a) >= end) continue;
      const int64_t start = b * to.batch + int64_t{row(a)} * to.time + head * to.head;
#pragma unroll
      for (int c = 0; c < C::kDim / 8; ++c) {
        const int d = c * 8 + lane_ % 4 * 2;
        if (d >= p_.D) continue;
        const float x = sums[a / 2][c][a % 2 * 2] * factor;
        const float y = sums[a / 2][c][a % 2 * 2 + 1] * factor;
        if (C::kOwnsKeys || to.element != Element::kFloat) {
          *reinterpret_cast<uint32_t*>(static_cast<Scalar*>(to.data) + start + d) =
              packed(x, y, Scalar());
        } else {
          *reinterpret_cast<float2*>(static_cast<float*>(to.data) + start + d) = {x, y};
        }
      }
    }
  }

  const Problem& p_;
  const int lane_, first_;
  const float scale2_;
  KeyRange own_, full_;  // of queries: keys that some and that all of the warp's rows see
  float high_[C::kOwn], low_[C::kOwn];
  float delta_[C::kOwn];
  int begin_[C::kOwn];
  double sums_[C::kOwn];
  float scores_[C::kRowTiles][C::kColumnTiles][4], dweights_[C::kRowTiles][C::kColumnTiles][4];
  Pairs weights_, dscores_;
  Sums first_sums_, second_sums_;
};

}  // namespace reynard::attention::cuda::sm80
