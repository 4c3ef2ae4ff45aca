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
  const auto eight = [](const int8_t* from) __attribute__((always_inline)) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  };
  const __m256 halves[2] = {eight(p), eight(p + 8)};
  return __builtin_bit_cast(Vector, halves);
#else
  using Bytes = int8_t __attribute__((vector_size(16)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, Vector);
#endif
}

// In the order of sum_of, which takes its lanes through memory: too slow for short rows.
REYNARD_INLINE float sum_of_row(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#else
  return sum_of(v);
#endif
}

REYNARD_INLINE void store_one(float* p, float x) {
  *p = x;
}
REYNARD_INLINE void store_one(BF16* p, float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + (((bits >> 16) & 1U) + 0x7fffU)) >> 16;
  *p = static_cast<BF16>(x != x ? 0x7fc0U : rounded);
}

constexpr int64_t kStep = 2 * kLanes;
constexpr int kRowsAtOnce = 4;    // of the weight: they share what is loaded of x
constexpr int kTokensAtOnce = 4;  // of x: they share what is loaded of the weight
// Where rows are walked together, a weight is asked for at least this far ahead, in whole blocks of
// rows, so that each line is asked for once: hardware prefetch stops at the end of a page.
constexpr int64_t kAheadBytes = 4096;

// kStep neighbouring values.
struct Pair {
  Vector first, second;
};

// In order.
template <class T, class Other>
REYNARD_INLINE Pair load_pair(const T* p, const Other* /*factor*/) {
  return {load(p), load(p + kLanes)};
}
// Even ones and odd ones, where both factors are bf16: two cheap instructions, and products do not
// ask for the order.
REYNARD_INLINE Pair load_pair(const BF16* p, const BF16* /*factor*/) {
  Bits both;
  __builtin_memcpy(&both, p, sizeof both);
  return {reinterpret_cast<Vector>(both << 16), reinterpret_cast<Vector>(both & 0xffff0000U)};
}
template <class T, class Other>
REYNARD_INLINE Pair load_pair(const T* p, const Other* factor, int64_t count) {
  T padded[kStep] = {};
  __builtin_memcpy(padded, p, count * sizeof(T));
  return load_pair(padded, factor);
}

// Rows of the weight that are walked beside each other: for one row of x none, so that a weight is
// read in the order of memory, which the hardware asks for by itself (on Zen 4 28 GB/s and more
// where four rows arrive at 18).
template <int kRows, int kTokens>
constexpr int kTogether = kTokens == 1 ? 1 : kRows;

template <int kRows, int kTokens, class X, class W, class Y>
REYNARD_INLINE void product_block(const ProductRows& p, int64_t row, int64_t token) {
  const X* x = static_cast<const X*>(p.x) + token * p.width;
  const W* weight = static_cast<const W*>(p.weight) + row * p.width;
  Vector sums[kRows][kTokens] = {};
  const auto add = [&](int first, int64_t i, auto... count) __attribute__((always_inline)) {
    Pair values[kTokens];
    for (int t = 0; t < kTokens; ++t) values[t] = load_pair(x + t * p.width + i, weight, count...);
    for (int r = first; r < first + kTogether<kRows, kTokens>; ++r) {
      const Pair w = load_pair(weight + r * p.width + i, x, count...);
      for (int t = 0; t < kTokens; ++t) {
        sums[r][t] += values[t].first * w.first;
        sums[r][t] += values[t].second * w.second;
      }
    }
  };
  const int64_t whole = p.width / kStep * kStep;
  const int64_t block_bytes = kRows * p.width * static_cast<int64_t>(sizeof(W));
  const int64_t ahead = (kAheadBytes + block_bytes - 1) / block_bytes * block_bytes;
  for (int first = 0; first < kRows; first += kTogether<kRows, kTokens>) {
    for (int64_t i = 0; i < whole; i += kStep) {
      if constexpr (kTokens > 1) {
        for (int r = 0; r < kRows; ++r) {
          const W* now = weight + r * p.width + i;
          __builtin_prefetch(reinterpret_cast<const char*>(now) + ahead);
        }
      }
      add(first, i);
    }
    if (whole < p.width) add(first, whole, p.width - whole);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      float sum = sum_of_row(sums[r][t]);
      if constexpr (sizeof(W) == 1) sum *= p.scales[row + r];
      store_one(static_cast<Y*>(p.y) + (token + t) * p.rows + row + r, sum);
    }
  }
}

template <int kRows, class X, class W, class Y>
REYNARD_INLINE void product_tokens(const ProductRows& p, int64_t row) {
  int64_t token = 0;
  for (; token + kTokensAtOnce <= p.tokens; token += kTokensAtOnce) {
    product_block<kRows, kTokensAtOnce, X, W, Y>(p, row, token);
  }
  switch (p.tokens - token) {
    case 1:
      return product_block<kRows, 1, X, W, Y>(p, row, token);
    case 2:
      return product_block<kRows, 2, X, W, Y>(p, row, token);
    case 3:
      return product_block<kRows, 3, X, W, Y>(p, row, token);
    default:
      return;
  }
}

template <class X, class W, class Y>
void product_rows(const ProductRows& p, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) product_tokens<kRowsAtOnce, X, W, Y>(p, row);
  for (; row < end; ++row) product_tokens<1, X, W, Y>(p, row);
}

constexpr ProductKernels kTable = {.f32_by_f32 = &product_rows<float, float, float>,
                                   .bf16_by_f32 = &product_rows<BF16, float, float>,
                                   .bf16_by_bf16 = &product_rows<BF16, BF16, BF16>,
                                   .bf16_by_int8 = &product_rows<BF16, int8_t, BF16>};

}  // namespace

const ProductKernels& REYNARD_PRODUCT_KERNELS() {
  return kTable;
}

}  // namespace reynard::ops::cpu
