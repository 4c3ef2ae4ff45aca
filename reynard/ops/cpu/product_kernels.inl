// The loops behind product_kernels.h, written once; product_kernels_avx512.cpp, _avx2.cpp and
// _portable.cpp include this with their target options and REYNARD_PRODUCT_KERNELS set. Nothing
// here may call into a library: an inline function compiled for one ISA could be the copy that the
// linker keeps.
//
// Memory bounds these loops: a core of an idle Sapphire Rapids brings 64 bytes in about 16 cycles,
// which are 2.5 cycles of arithmetic for bf16 and 7 for int8.

#include "reynard/ops/product_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace reynard::ops::cpu {

namespace {

#include "reynard/ops/cpu/row_vector.inl"

// GCC 12 widens vectors of bytes lane by lane; hence intrinsics.
REYNARD_INLINE Vector load(const int8_t* p) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, Vector);
#endif
}

// In the order of sum_of, in fewer instructions: short rows are many.
REYNARD_INLINE float sum_of_row(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#else
  return sum_of(v);
#endif
}

REYNARD_INLINE BF16 rounded(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t nearest = (bits + (((bits >> 16) & 1U) + 0x7fffU)) >> 16;
  return static_cast<BF16>(x != x ? 0x7fc0U : nearest);
}

REYNARD_INLINE void store_one(const ProductRows& p, int64_t at, float x) {
  if (p.y_is_f32) {
    static_cast<float*>(p.y)[at] = x;
  } else {
    static_cast<BF16*>(p.y)[at] = rounded(x);
  }
}

constexpr int64_t kStep = 2 * kLanes;
// Rows of the weight share what is loaded of x, rows of x (tokens) what is loaded of the weight, as
// far as sums fit into the registers. For one row of x AVX-512 reads a weight in the order of
// memory, which the hardware asks for by itself (on Zen 4 28 GB/s and more where four rows arrive
// at 18); shorter vectors need a second row's sum to hide the latency of the first one's.
#if defined(__AVX512F__)
constexpr int kRowsAtOnce = 4, kTokensAtOnce = 4, kRowsOfOneToken = 1;
#else
constexpr int kRowsAtOnce = 2, kTokensAtOnce = 4, kRowsOfOneToken = 2;
#endif
// Where rows are walked together, a weight is asked for at least this far ahead, in whole blocks of
// rows, so that only one block asks for a line: hardware prefetch stops at the end of a page.
constexpr int64_t kAheadBytes = 4096;

// The sums of four lanes are put aside after so many values: as one chain they would round more
// than those of a library with wider vectors. Elsewhere chains are as long as rows.
constexpr bool kCutsChains = kLanes < 8;
constexpr int64_t kChain = 128;  // whole steps

// Half of kStep neighbouring values: the first ones (0) or the second ones (1).
template <int kHalf, class T, class Other>
REYNARD_INLINE Vector load_half(const T* p, const Other* /*factor*/) {
  return load(p + kHalf * kLanes);
}
// Where both factors are bf16: the even ones (0) or the odd ones (1), a cheap instruction each, and
// products do not ask for the order.
template <int kHalf>
REYNARD_INLINE Vector load_half(const BF16* p, const BF16* /*factor*/) {
  Bits both;
  __builtin_memcpy(&both, p, sizeof both);
  return kHalf == 0 ? reinterpret_cast<Vector>(both << 16)
                    : reinterpret_cast<Vector>(both & 0xffff0000U);
}

// Sums of products of rows, by lanes: each goes through the depth in one order, whatever the other
// rows of x and of the weight. Loops are unrolled so that sums stay in registers.
template <int kRows, int kTokens>
struct Sums {
  Vector lanes[kRows][kTokens] = {};

  template <int kHalf, class X, class W>
  REYNARD_INLINE void add_half(const X* x, int64_t x_stride, const W* weight, int64_t w_stride) {
    Vector w[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) w[r] = load_half<kHalf>(weight + r * w_stride, x);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const Vector value = load_half<kHalf>(x + t * x_stride, weight);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) lanes[r][t] += value * w[r];
    }
  }
  REYNARD_INLINE void add(const Sums& more) {
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTokens; ++t) lanes[r][t] += more.lanes[r][t];
    }
  }
  template <class X, class W>
  REYNARD_INLINE void add_step(const X* x, int64_t x_stride, const W* weight, int64_t w_stride) {
    add_half<0>(x, x_stride, weight, w_stride);
    add_half<1>(x, x_stride, weight, w_stride);
  }
};

// The last values of rows, and zeros up to a whole step.
template <int kCount, class T>
REYNARD_INLINE void copy_rest(const T* from,
                              int64_t stride,
                              int64_t count,
                              T (&to)[kCount][kStep]) {
  for (int r = 0; r < kCount; ++r) {
    for (int64_t i = 0; i < kStep; ++i) to[r][i] = i < count ? from[r * stride + i] : T{};
  }
}

template <int kRows, int kTokens, class X, class W>
REYNARD_INLINE void product_block(const ProductRows& p, int64_t row, int64_t token) {
  const X* x = static_cast<const X*>(p.x) + token * p.width;
  const W* weight = static_cast<const W*>(p.weight) + row * p.width;
  Sums<kRows, kTokens> sums, aside;
  const int64_t whole = p.width / kStep * kStep;
  const int64_t block_bytes = kRows * p.width * static_cast<int64_t>(sizeof(W));
  const int64_t ahead = (kAheadBytes + block_bytes - 1) / block_bytes * block_bytes;
  for (int64_t i = 0; i < whole; i += kStep) {
    if (kRows > 1 && token == 0) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __builtin_prefetch(reinterpret_cast<const char*>(weight + r * p.width + i) + ahead);
      }
    }
    sums.add_step(x + i, p.width, weight + i, p.width);
    if constexpr (kCutsChains) {
      if ((i + kStep) % kChain == 0) {
        aside.add(sums);
        sums = {};
      }
    }
  }
  if (whole < p.width) {
    X x_rest[kTokens][kStep];
    W weight_rest[kRows][kStep];
    copy_rest(x + whole, p.width, p.width - whole, x_rest);
    copy_rest(weight + whole, p.width, p.width - whole, weight_rest);
    sums.add_step(x_rest[0], kStep, weight_rest[0], kStep);
  }
  if constexpr (kCutsChains) sums.add(aside);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      float sum = sum_of_row(sums.lanes[r][t]);
      if constexpr (sizeof(W) == 1) sum *= p.scales[row + r];
      store_one(p, (token + t) * p.rows + row + r, sum);
    }
  }
}

// From a token on; what kTokens leaves goes in smaller blocks.
template <int kRows, int kTokens, class X, class W>
REYNARD_INLINE void product_tokens(const ProductRows& p, int64_t row, int64_t token) {
  for (; token + kTokens <= p.tokens; token += kTokens) {
    product_block<kRows, kTokens, X, W>(p, row, token);
  }
  if constexpr (kTokens > 1) product_tokens<kRows, kTokens - 1, X, W>(p, row, token);
}

template <class X, class W>
void product_rows(const ProductRows& p, int64_t begin, int64_t end) {
  int64_t row = begin;
  if (p.tokens == 1) {
    for (; row + kRowsOfOneToken <= end; row += kRowsOfOneToken) {
      product_block<kRowsOfOneToken, 1, X, W>(p, row, 0);
    }
  } else {
    for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) {
      product_tokens<kRowsAtOnce, kTokensAtOnce, X, W>(p, row, 0);
    }
  }
  for (; row < end; ++row) product_tokens<1, kTokensAtOnce, X, W>(p, row, 0);
}

constexpr ProductKernels kTable = {.f32_by_f32 = &product_rows<float, float>,
                                   .bf16_by_f32 = &product_rows<BF16, float>,
                                   .bf16_by_bf16 = &product_rows<BF16, BF16>,
                                   .bf16_by_int8 = &product_rows<BF16, int8_t>};

}  // namespace

const ProductKernels& REYNARD_PRODUCT_KERNELS() {
  return kTable;
}

}  // namespace reynard::ops::cpu
