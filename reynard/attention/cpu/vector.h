#pragma once
// Vectors of f32 as wide as the instruction set that this file is compiled for, the exponential,
// and conversions. In an unnamed namespace: each instruction set has its own copy, which the linker
// must not mix up.

#include <immintrin.h>

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));

inline Vec splat(float x) {
  return x - Vec{};
}
inline IntVec splat(int32_t x) {
  return x - IntVec{};
}
inline Vec load(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}
inline void store(float* p, Vec x) {
  *reinterpret_cast<Vec*>(p) = x;
}
// Wherever p lies.
template <class Register>
inline Register load_unaligned(const void* p) {
  Register x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
// Into the second-level cache.
inline void prefetch(const void* p) {
  __builtin_prefetch(p, 0, 2);
}

// Of a loop that waits for another thread.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
inline IntVec load(const int32_t* p) {
  return *reinterpret_cast<const IntVec*>(p);
}

// The larger of limit and x; NaN where x is NaN.
inline Vec at_least(Vec x, Vec limit) {
#if defined(__AVX512F__)
  return _mm512_max_ps(limit, x);
#elif defined(__AVX2__)
  return _mm256_max_ps(limit, x);
#else
  return _mm_max_ps(limit, x);
#endif
}

// The smaller of limit and x; NaN where x is NaN.
inline Vec at_most(Vec x, Vec limit) {
#if defined(__AVX512F__)
  return _mm512_min_ps(limit, x);
#elif defined(__AVX2__)
  return _mm256_min_ps(limit, x);
#else
  return _mm_min_ps(limit, x);
#endif
}

// Whether any lane of a comparison holds.
inline bool any(IntVec mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#else
  return _mm_movemask_epi8((__m128i)mask) != 0;
#endif
}

// Two vectors element by element: the first half of the pairs, and the second.
#if defined(__AVX512F__)
constexpr IntVec kFirstPairs = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#elif defined(__AVX2__)
constexpr IntVec kFirstPairs = {0, 8, 1, 9, 2, 10, 3, 11};
#else
constexpr IntVec kFirstPairs = {0, 4, 1, 5};
#endif
constexpr IntVec kLastPairs = kFirstPairs + kLanes / 2;

// Lane i of the result is the sum of the lanes of rows[i]. Each step interleaves two vectors of
// partial sums and adds the halves; rows[i] meets rows[i + count] so that the order comes out
// right.
inline Vec sums_of_lanes(Vec (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int count = kLanes / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      rows[i] = __builtin_shuffle(rows[i], rows[i + count], kFirstPairs) +
                __builtin_shuffle(rows[i], rows[i + count], kLastPairs);
    }
  }
  return rows[0];
}

// Lane i of x in lane (i - step) % kLanes.
inline Vec rotated(Vec x, int32_t step) {
  IntVec lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = (i + step) % kLanes;
  return __builtin_shuffle(x, lanes);
}
inline float sum_of_lanes(Vec x) {
#pragma GCC unroll 4
  for (int step = kLanes / 2; step > 0; step /= 2) x += rotated(x, step);
  return x[0];
}
inline float largest_lane(Vec x) {
#pragma GCC unroll 4
  for (int step = kLanes / 2; step > 0; step /= 2) x = at_least(rotated(x, step), x);
  return x[0];
}

// Lane j of rows[i] becomes lane i of rows[j]: log2(kLanes) perfect shuffles.
inline void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {
    Vec shuffled[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      shuffled[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], kFirstPairs);
      shuffled[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], kLastPairs);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
  }
}

constexpr float kInfinity = __builtin_inff();
constexpr double kLog2EExact = 1.44269504088896340736;
constexpr double kLn2Exact = 0.693147180559945309417;

// Whether exp2 of 128 and more is infinite; where not, its argument must be at most 127.
#if defined(__AVX512DQ__)
constexpr bool kExp2Saturates = true;
#else
constexpr bool kExp2Saturates = false;
#endif

// 2^x, exactly 1 at 0 and 2^n at every integer n; 0 for x <= -127 (denormals are flushed, see
// below); NaN stays NaN. The fraction goes through a minimax polynomial whose constant term is
// exactly 1. Relative error for x > -126, rounding included: degree 6: 8e-8, degree 5: 1.7e-7.
//
// AVX-512 has instructions that take the fraction x - floor(x), in [0, 1), and that multiply by
// 2^floor(x), whatever the exponents: 8 operations for degree 5. Elsewhere the fraction is in
// [-1/2, 1/2] and the integer becomes the exponent of a factor: 11. Degree 2, AVX-512 only, takes
// 2^(i/16) from a register and the polynomial of what is left, in [-1/32, 1/32]: relative error
// 5.5e-7. It has half the multiplications of degree 5, for processors on which only these compete
// with the products.
#if defined(__AVX512DQ__)
alignas(64) constexpr float kSixteenthPowers[16] = {0x1p+0f,
                                                    0x1.0b5586p+0f,
                                                    0x1.172b84p+0f,
                                                    0x1.2387a6p+0f,
                                                    0x1.306fe0p+0f,
                                                    0x1.3dea64p+0f,
                                                    0x1.4bfdaep+0f,
                                                    0x1.5ab07ep+0f,
                                                    0x1.6a09e6p+0f,
                                                    0x1.7a1148p+0f,
                                                    0x1.8ace54p+0f,
                                                    0x1.9c4918p+0f,
                                                    0x1.ae89fap+0f,
                                                    0x1.c199bep+0f,
                                                    0x1.d5818ep+0f,
                                                    0x1.ea4afap+0f};

template <int degree>
inline __attribute__((always_inline)) Vec exp2(Vec x) {
  static_assert(degree == 2 || degree == 5 || degree == 6);
  if constexpr (degree == 2) {
    constexpr float kRound = 786432.0f;  // 1.5 * 2^19: adding it rounds to sixteenths
    const Vec shifted = x + kRound;      // i sits in its lowest 4 bits
    const Vec f = _mm512_reduce_ps(x, 4 << 4 | _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec power = _mm512_permutexvar_ps((__m512i)shifted, load(kSixteenthPowers));
    const Vec y = (f * power) * (f * 0x1.ebfc0cp-3f + 0x1.62e980p-1f) + power;
    return _mm512_scalef_ps(y, shifted - kRound);
  }
  const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vec y;
  if constexpr (degree == 6) {
    y = f * 0x1.c54174p-13f + 0x1.46d64ep-10f;
    y = y * f + 0x1.3d0b92p-7f;
    y = y * f + 0x1.c68912p-5f;
    y = y * f + 0x1.ebfd58p-3f;
    y = y * f + 0x1.62e42cp-1f;
  } else {
    y = f * 0x1.e974fap-10f + 0x1.277856p-7f;
    y = y * f + 0x1.c91ce6p-5f;
    y = y * f + 0x1.ebdb56p-3f;
    y = y * f + 0x1.62e4bap-1f;
  }
  return _mm512_scalef_ps(y * f + 1.0f, x);
}
#else
template <int degree>
inline __attribute__((always_inline)) Vec exp2(Vec x) {
  static_assert(degree == 5 || degree == 6);
  // 1.5 * 2^23 + 127: adding it rounds to an integer and adds the bias of an exponent.
  constexpr float kRound = 12582912.0f + 127;
  x = at_least(x, splat(-127.0f));
  const Vec shifted = x + kRound;
  const Vec f = x - (shifted - kRound);
  Vec y;
  if constexpr (degree == 6) {
    y = f * 0x1.41fbbcp-13f + 0x1.5f3e54p-10f;
    y = y * f + 0x1.3b2d4cp-7f;
    y = y * f + 0x1.c6aee8p-5f;
    y = y * f + 0x1.ebfbdcp-3f;
    y = y * f + 0x1.62e430p-1f;
  } else {
    y = f * 0x1.5bba14p-10f + 0x1.3cea88p-7f;
    y = y * f + 0x1.c6b752p-5f;
    y = y * f + 0x1.ebf9bcp-3f;
    y = y * f + 0x1.62e42ap-1f;
  }
  y = y * f + 1.0f;
  // The exponent sits in the low bits of `shifted`. A product, not a sum of bits: y may be NaN.
  return y * (Vec)((IntVec)shifted << 23);
}
#endif

// A matrix by its first element and the distance between rows, in elements. Where `panel` is not 0
// the columns lie in panels (kPanel of a tile struct), which are this far apart.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
  int64_t panel = 0;
};

// 16-bit inputs by value.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  _Float16 value;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(Half x) {
  return static_cast<float>(x.value);
}
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  return __builtin_bit_cast(float, bits);
}

// Rounds to nearest even; NaN stays NaN.
inline void from_float(float x, float& out) {
  out = x;
}
inline void from_float(float x, Half& out) {
  out.value = static_cast<_Float16>(x);
}
inline void from_float(float x, BFloat16& out) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  out.bits = static_cast<uint16_t>(x == x ? rounded : (bits >> 16) | 0x40);
}

// All lanes of x to unaligned memory, each as from_float converts it.
inline void store_values(Vec x, float* to) {
  __builtin_memcpy(to, &x, sizeof(x));
}
#if defined(__AVX512BF16__)
inline void store_values(Vec x, BFloat16* to) {
  const __m256bh values = _mm512_cvtneps_pbh(x);  // flushes denormals, as the kernels do
  __builtin_memcpy(to, &values, sizeof(values));
}
#else
inline void store_values(Vec x, BFloat16* to) {
  typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t HalfWords __attribute__((vector_size(kLanes * 2)));
  const Words bits = (Words)x;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const HalfWords values =
      __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40, HalfWords);
  __builtin_memcpy(to, &values, sizeof(values));
}
#endif
inline void store_values(Vec x, Half* to) {
  for (int i = 0; i < kLanes; ++i) from_float(x[i], to[i]);
}

// Flushes denormals to zero while it lives: far keys weigh that little, and denormals are slow.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

}  // namespace
}  // namespace reynard::attention::cpu
