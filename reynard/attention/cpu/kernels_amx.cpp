#include "reynard/attention/cpu/kernel_table.h"
#include "reynard/attention/cpu/tiles_bf16.h"
#include "reynard/tensor/amx_tiles.inl"

namespace reynard::attention::cpu {

namespace {

struct TilesAmx : LayoutBf16<128, 128, 32, 32> {
  using Session = tensor::AmxTiles;
  static constexpr int64_t kMaskStep = 32;  // depth of one tile

  // Adds a 32 x 32 block of a * b to tiles 0..3, by tiles 4, 5 of a and 6, 7 of b: each loaded tile
  // takes part in two products, so that loads keep up with the tile unit.
  static inline void add_products(Matrix<const Value> a, Matrix<const Value> b, int64_t depth) {
    const int64_t a_bytes = a.stride * sizeof(Value), b_bytes = b.stride * sizeof(Value);
    for (int64_t k = 0; k < depth; k += 32) {
      _tile_loadd(4, a.data, a_bytes);
      _tile_loadd(6, b.data, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b.data + 32, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a.data + 16 * a.stride, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      a.data += 32;
      b.data += 16 * b.stride;
    }
  }
  // GCC does not know that loads into tiles read memory: stores before this stay before it.
  static inline void written_by_vectors() { __asm__ volatile("" ::: "memory"); }

  static inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  static inline void store_sums(Matrix<float> c) {
    const int64_t c_bytes = c.stride * sizeof(float);
    _tile_stored(0, c.data, c_bytes);
    _tile_stored(1, c.data + 16, c_bytes);
    _tile_stored(2, c.data + 16 * c.stride, c_bytes);
    _tile_stored(3, c.data + 16 * c.stride + 16, c_bytes);
  }

  // Blocks of 32 columns: of sums from row m, column n on, and of a right factor.
  static inline Matrix<float> block_of(Matrix<float> c, int64_t m, int64_t n) {
    return {c.data + m * c.stride + (c.panel ? n / 32 * c.panel : n), c.stride};
  }
  static inline Matrix<const Value> right_panel(Matrix<const Value> b, int64_t n) {
    return {b.data + (b.panel ? n / 32 * b.panel : 2 * n), b.stride};
  }

  // All sizes are multiples of 32.
  template <bool kAccumulate>
  static void multiply(Matrix<const Value> a,
                       Matrix<const Value> b,
                       Matrix<float> c,
                       int64_t rows,
                       int64_t columns,
                       int64_t depth) {
    const int64_t c_bytes = c.stride * sizeof(float);
    written_by_vectors();
    for (int64_t n = 0; n < columns; n += 32) {
      for (int64_t m = 0; m < rows; m += 32) {
        float* upper = block_of(c, m, n).data;
        float* lower = upper + 16 * c.stride;
        if constexpr (kAccumulate) {
          _tile_loadd(0, upper, c_bytes);
          _tile_loadd(1, upper + 16, c_bytes);
          _tile_loadd(2, lower, c_bytes);
          _tile_loadd(3, lower + 16, c_bytes);
        } else {
          zero_sums();
        }
        add_products({a.data + m * a.stride, a.stride}, right_panel(b, n), depth);
        store_sums({upper, c.stride});
      }
    }
  }

  // Weights of keys j, j + 1 in a panel of a right factor. Rounded to nearest by adding half of the
  // last place, ties away from zero: vcvtne2ps2bf16 takes as long as four such instructions.
  static inline void store_weights(Value* panel, int64_t j, int64_t q, Vec even, Vec odd) {
    alignas(64) static constexpr int8_t kHighWords[64] = {
        2,  3,  0,  0,  6, 7, 0,  0,  10, 11, 0, 0, 14, 15, 0, 0, 2,  3,  0,  0,  6, 7,
        0,  0,  10, 11, 0, 0, 14, 15, 0,  0,  2, 3, 0,  0,  6, 7, 0,  0,  10, 11, 0, 0,
        14, 15, 0,  0,  2, 3, 0,  0,  6,  7,  0, 0, 10, 11, 0, 0, 14, 15, 0,  0};
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_add_epi32((__m512i)even, half);
    const __m512i high = _mm512_add_epi32((__m512i)odd, half);
    _mm512_store_si512(
        panel + j * kPanel + 2 * q,
        _mm512_mask_shuffle_epi8(high, 0x3333333333333333u, low, _mm512_load_si512(kHighWords)));
  }

  // Whole tiles of the forward pass. While vectors turn a block of 32 keys x 32 queries of S into
  // weights, the tile unit forms S of the next block and adds V^T P of the blocks before to O. They
  // run side by side only where its instructions are dealt out among those on vectors: all that it
  // has to do meanwhile is numbered, and `beside(n)` issues the n-th of 32 shares.
  //
  // A stored tile takes 16 cycles in which no other instruction starts, and fills the window of
  // instructions while it waits for its products. So products have 16 rows, whose sums are in tiles
  // 0, 1 and 2, 3 by turns, and are stored while the next ones are formed.
  static constexpr bool kSumsBesideWeights = true;
  // First scores, last sums and the addition to O take the time of 3 of a tile's 64 blocks.
  static constexpr int64_t kForwardKeys = 512;
  // Keys whose V^T P is added at once. Their weights, a panel's queries and sums and two blocks of
  // S stay in the first-level cache: stores that miss it take four times as long.
  static constexpr int64_t kDepth = 64;
  static constexpr int64_t kBlock = 32;

  // 16 x 32 sums of products, and where they begin; a row of zeros has stride 0.
  struct HalfBlock {
    Matrix<const Value> a;
    const Value* b;
    Matrix<const float> before;
    float* after;
  };

  // One tile of the sums of a half block. Numbers of tiles are constants, once all is inlined.
  static inline __attribute__((always_inline)) void load_sum(int tile, Matrix<const float> from) {
    const int64_t bytes = from.stride * sizeof(float);
    const float* data = from.data + tile % 2 * from.stride / 2;
    switch (tile) {
      case 0:
        _tile_loadd(0, data, bytes);
        break;
      case 1:
        _tile_loadd(1, data, bytes);
        break;
      case 2:
        _tile_loadd(2, data, bytes);
        break;
      default:
        _tile_loadd(3, data, bytes);
    }
  }
  static inline __attribute__((always_inline)) void zero_sum(int tile) {
    switch (tile) {
      case 0:
        _tile_zero(0);
        break;
      case 1:
        _tile_zero(1);
        break;
      case 2:
        _tile_zero(2);
        break;
      default:
        _tile_zero(3);
    }
  }
  static inline __attribute__((always_inline)) void store_sum(int tile, float* to) {
    constexpr int64_t kBytes = kBlock * sizeof(float);
    switch (tile) {
      case 0:
        _tile_stored(0, to, kBytes);
        break;
      case 1:
        _tile_stored(1, to + 16, kBytes);
        break;
      case 2:
        _tile_stored(2, to, kBytes);
        break;
      default:
        _tile_stored(3, to + 16, kBytes);
    }
  }

  // Left factors stream through the first-level cache: the hint keeps them from displacing what
  // stays there. Tiles 4 and 5 hold them by turns, one on its way while the other multiplies.
  static inline __attribute__((always_inline)) void load_left(int tile, Matrix<const Value> a) {
    if (tile == 4) {
      _tile_stream_loadd(4, a.data, a.stride * sizeof(Value));
    } else {
      _tile_stream_loadd(5, a.data, a.stride * sizeof(Value));
    }
  }
  // Instruction n of 4 that add 32 of the depth to tiles 0, 1 or, where odd, 2, 3.
  static inline __attribute__((always_inline)) void multiply_step(int n,
                                                                  bool odd,
                                                                  int left,
                                                                  const Value* b) {
    constexpr int64_t kRightBytes = 2 * kPanel * sizeof(Value);
    switch (n) {
      case 0:
        _tile_loadd(6, b, kRightBytes);
        break;
      case 1:
        if (odd) {
          if (left == 4) _tile_dpbf16ps(2, 4, 6);
          if (left == 5) _tile_dpbf16ps(2, 5, 6);
        } else {
          if (left == 4) _tile_dpbf16ps(0, 4, 6);
          if (left == 5) _tile_dpbf16ps(0, 5, 6);
        }
        break;
      case 2:
        _tile_loadd(7, b + 32, kRightBytes);
        break;
      default:
        if (odd) {
          if (left == 4) _tile_dpbf16ps(3, 4, 7);
          if (left == 5) _tile_dpbf16ps(3, 5, 7);
        } else {
          if (left == 4) _tile_dpbf16ps(1, 4, 7);
          if (left == 5) _tile_dpbf16ps(1, 5, 7);
        }
    }
  }

  // Step n of a half block of depth 32 kDepthSteps, in which the sums of the one before it are
  // stored. Its first left tile has been loaded; that of the half block after it, `next`, is
  // loaded at its end. Where kFromZero the first sums are 0.
  template <int kDepthSteps>
  static constexpr int kSteps = 2 + 6 * (kDepthSteps < 2 ? 2 : kDepthSteps);
  template <int kDepthSteps, bool kFromZero>
  static inline __attribute__((always_inline)) void half_block_step(int n,
                                                                    bool odd,
                                                                    int first_left,
                                                                    const HalfBlock& block,
                                                                    Matrix<const Value> next,
                                                                    float* stored) {
    if (n < 2) {
      kFromZero ? zero_sum(2 * odd + n) : load_sum(2 * odd + n, block.before);
      return;
    }
    const int k = (n - 2) / 6, part = (n - 2) % 6, left = 4 + (first_left + k) % 2;
    if (part == 0 && k + 1 < kDepthSteps) {
      load_left(9 - left, {block.a.data + 32 * (k + 1), block.a.stride});
    } else if (part == 0 && k + 1 == kDepthSteps) {
      load_left(9 - left, next);
    } else if (part < 5 && k < kDepthSteps) {
      multiply_step(part - 1, odd, left, block.b + 32 * kPanel * k);
    } else if (part == 5 && k < 2) {
      store_sum(2 * !odd + k, stored);
    }
  }

  // 32 dimensions x 32 queries of O, to which V^T P is added.
  struct SumBlock {
    const Value* values;  // [d][kKeys]
    const Value* weights;
    Matrix<const float> before;
    float* after;
    HalfBlock half(int x) const {
      return {{values + 16 * x * kKeys, kKeys},
              weights,
              {before.data + 16 * x * before.stride, before.stride},
              after + 16 * x * kBlock};
    }
    SumBlock below() const {
      return {values + kBlock * kKeys,
              weights,
              {before.data + kBlock * before.stride, before.stride},
              after + kBlock * kBlock};
    }
  };
  // Adds the keys of `depth` with nothing beside it.
  static void add_sums(const SumBlock& block, int64_t depth) {
    for (int x = 0; x < 2; ++x) {
      const HalfBlock half = block.half(x);
      load_sum(0, half.before);
      load_sum(1, half.before);
      for (int64_t k = 0; k < depth; k += 32) {
        load_left(4, {half.a.data + k, kKeys});
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) multiply_step(n, false, 4, half.b + k * kPanel);
      }
      store_sum(0, half.after);
      store_sum(1, half.after);
    }
  }

  // One tile of kDim dimensions.
  template <int kDim>
  class WholeTilePass {
   public:
    explicit WholeTilePass(const WholeTile<Value>& tile) : tile_(tile) {
      multiply<false>({tile.keys, kDim}, tile.queries, {scores_[0], kBlock}, kBlock, kBlock, kDim);
      load_left(4, keys_at(kBlock));
    }

    template <class Weigh>
    void run(const Weigh& weigh) {
      for (int64_t query = 0; query < kQueries; query += kBlock) {
        for (int64_t key = 0; key < tile_.count; key += kBlock) {
          weigh_block(key, query, weigh);
          const int64_t end = key + kBlock;
          if (end != tile_.count && (tile_.first + end) % kDepth != 0) continue;
          finish_sums(kDepth);
          if (tile_.values) begin_sums(end, query);
        }
      }
    }

   private:
    static constexpr int kBlocks = kDim / kBlock;
    // Sums over 64 keys are formed beside two blocks of weights.
    static constexpr int kFirstBlocks = (kBlocks + 1) / 2, kLastBlocks = kBlocks / 2;

    // After the last keys the first ones once more.
    Matrix<const Value> keys_at(int64_t key) const {
      return {tile_.keys + key % tile_.count * kDim, kDim};
    }

    // Weights of a block with S of the next one, and O as far as it lacks weights, beside it.
    template <class Weigh>
    inline __attribute__((always_inline)) void weigh_block(int64_t key,
                                                           int64_t query,
                                                           const Weigh& weigh) {
      const float* scores = scores_[block_];
      block_ = 1 - block_;
      Value* weights = weights_[which_] + (key - begin_) * kBlock;
      const int64_t next_query = key + kBlock == tile_.count ? (query + kBlock) % kQueries : query;
      const Matrix<const Value> keys = keys_at(key + kBlock);
      const Value* queries = right_panel(tile_.queries, next_query).data;
      HalfBlock next[2];
      for (int x = 0; x < 2; ++x) {
        next[x] = {
            {keys.data + 16 * x * kDim, kDim}, queries, {}, scores_[block_] + 16 * x * kBlock};
      }
      next_left_ = keys_at(key + 2 * kBlock);
      const auto body = [&](const auto& beside) __attribute__((always_inline)) {
        weigh(key, query, scores, weights, beside);
      };
      if (num_left_ == 0) {
        run_beside<0>(next, body);
      } else if (num_left_ == kBlocks || kFirstBlocks == kLastBlocks) {
        run_beside<kFirstBlocks>(next, body);
      } else {
        run_beside<kLastBlocks>(next, body);
      }
    }

    // body(beside) with the block of S of `scores` and the next kSums blocks of O beside it.
    template <int kSums, class Body>
    inline __attribute__((always_inline)) void run_beside(const HalfBlock (&scores)[2],
                                                          const Body& body) {
      constexpr int kScoreSteps = kSteps<kDim / 32>, kSumSteps = kSteps<kDepth / 32>;
      constexpr int kAllScores = 2 * kScoreSteps, kAll = kAllScores + 2 * kSums * kSumSteps;
      // The lower half of S of the call before is stored before it is read, in the second 16
      // shares.
      static_assert(16 * kAll / 32 > 13);
      HalfBlock halves[2 * kSums + 2] = {scores[0], scores[1]};
      Matrix<const Value> left[2 * kSums + 3] = {scores[0].a, scores[1].a};
      float* stored[2 * kSums + 3] = {stored_, scores[0].after, scores[1].after};
#pragma GCC unroll 4
      for (int x = 2; x < 2 * kSums + 2; ++x) {
        halves[x] = sums_.half(x % 2);
        left[x] = halves[x].a;
        stored[x + 1] = halves[x].after;
        if (x % 2 == 1) sums_ = sums_.below();
      }
      left[2 * kSums + 2] = next_left_;
      num_left_ -= kSums;
      stored_ = stored[2 * kSums + 2];
      written_by_vectors();
      body([&](int share) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int n = share * kAll / 32; n < (share + 1) * kAll / 32; ++n) {
          if (n < kAllScores) {
            const int x = n / kScoreSteps;
            half_block_step<kDim / 32, true>(
                n % kScoreSteps, x % 2, x * (kDim / 32), halves[x], left[x + 1], stored[x]);
          } else {
            const int x = 2 + (n - kAllScores) / kSumSteps;
            half_block_step<kDepth / 32, false>(
                (n - kAllScores) % kSumSteps, x % 2, 0, halves[x], left[x + 1], stored[x]);
          }
        }
      });
    }

    // The blocks of O of a panel lack the keys before `end`; the last of them, or fewer than are
    // added at once, are added here.
    void begin_sums(int64_t end, int64_t query) {
      alignas(64) static constexpr float kZeros[16] = {};
      float* out = block_of(tile_.out, 0, query).data;
      const int64_t at = tile_.first + begin_, depth = end - begin_;
      sums_ = {tile_.values + at / kKeys * kKeys * kDim + at % kKeys,
               weights_[which_],
               begin_ > 0 ? Matrix<const float>{out, kBlock} : Matrix<const float>{kZeros, 0},
               out};
      num_left_ = kBlocks;
      which_ = 1 - which_;
      const bool last = end == tile_.count;
      begin_ = last ? 0 : end;
      if (depth < kDepth || (last && query + kBlock == kQueries)) finish_sums(depth);
    }

    // Adds what O lacks with nothing beside it.
    void finish_sums(int64_t depth) {
      if (num_left_ == 0) return;
      store_sum(2, stored_);
      store_sum(3, stored_);
      stored_ = nowhere_;
      written_by_vectors();
      for (; num_left_ > 0; --num_left_, sums_ = sums_.below()) add_sums(sums_, depth);
      load_left(4, next_left_);
    }

    const WholeTile<Value>& tile_;
    alignas(64) float scores_[2][kBlock * kBlock];
    alignas(64) Value weights_[2][kDepth * kBlock];
    alignas(64) float nowhere_[16 * kBlock];
    SumBlock sums_ = {};    // the next block of O that lacks the keys before begin_
    int64_t num_left_ = 0;  // such blocks
    int64_t begin_ = 0;     // of the keys whose weights are in weights_[which_]
    int which_ = 0, block_ = 0;
    float* stored_ = nowhere_;            // where tiles 2 and 3 are to be stored
    Matrix<const Value> next_left_ = {};  // comes into tile 4
  };

  // Sums of V^T P over the tile's keys; weigh(key, query, scores, weights, beside) writes the
  // weights of 32 keys from `key` and 32 queries from `query`. Without values there are no sums.
  template <class Weigh>
  static void weigh_and_sum(const WholeTile<Value>& tile, const Weigh& weigh) {
    switch (tile.dim) {
      case 32:
        return WholeTilePass<32>(tile).run(weigh);
      case 64:
        return WholeTilePass<64>(tile).run(weigh);
      case 96:
        return WholeTilePass<96>(tile).run(weigh);
      case 128:
        return WholeTilePass<128>(tile).run(weigh);
      case 160:
        return WholeTilePass<160>(tile).run(weigh);
      case 192:
        return WholeTilePass<192>(tile).run(weigh);
      case 224:
        return WholeTilePass<224>(tile).run(weigh);
      default:
        return WholeTilePass<256>(tile).run(weigh);
    }
  }
};

}  // namespace

const KernelTable& amx_kernels() {
  static const KernelTable table = make_kernel_table<TilesAmx>();
  return table;
}

}  // namespace reynard::attention::cpu
