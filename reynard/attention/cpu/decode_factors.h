#pragma once
// Products of a register of a page's words (page_words.h) as it lies in memory: words of keys by a
// query's dimensions, words of values by weights.

#include "reynard/attention/cpu/page_words.h"
#include "reynard/attention/cpu/vector.h"

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

inline IntVec load_words(const uint32_t* from) {
  return load(reinterpret_cast<const int32_t*>(from));
}

// Byte i of each word as its highest one, the others zero.
inline IntVec byte_to_top(IntVec words, int i) {
#if defined(__AVX512BW__)
  const int32_t index = i << 24 | 0x808080;  // in 16 bytes; 0x80: zero
  return (IntVec)_mm512_shuffle_epi8(
      (__m512i)words,
      _mm512_set4_epi32(index + (12 << 24), index + (8 << 24), index + (4 << 24), index));
#else
  return words << (24 - 8 * i) & static_cast<int32_t>(0xff000000);
#endif
}

// Values 0 ... n - 1 of words.
inline void unpack(IntVec words, Vec (&x)[1], const float* /*type*/) {
  x[0] = (Vec)words;
}
inline void unpack(IntVec words, Vec (&x)[2], const BFloat16* /*type*/) {
  x[0] = (Vec)(words << 16);
  x[1] = (Vec)(words & static_cast<int32_t>(0xffff0000));
}
inline void unpack(IntVec words, Vec (&x)[2], const Half* /*type*/) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const IntVec bits = (words >> 16 * i) & 0xffff;
#if defined(__AVX512F__)
    x[i] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)bits));
#elif defined(__AVX2__)
    const __m256i of_lanes = (__m256i)bits;
    x[i] = _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(of_lanes), _mm256_extracti128_si256(of_lanes, 1)));
#else
    for (int lane = 0; lane < kLanes; ++lane) {
      x[i][lane] = to_float(__builtin_bit_cast(Half, static_cast<uint16_t>(bits[lane])));
    }
#endif
  }
}
// Times 2^24, as a byte alone at the top of a word is: that spares its shift.
inline void unpack(IntVec words, Vec (&x)[4], const int8_t* /*type*/) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = __builtin_convertvector(byte_to_top(words, i), Vec);
  }
}
template <class Value>
constexpr float kPerUnpacked = 1;
template <>
constexpr float kPerUnpacked<int8_t> = 0x1p-24F;

// What words are multiplied by: for each of their values a factor, in memory kPerWord factors (a
// query's dimensions, the weights of keys) after another.
template <class Value>
struct Factors {
  using InMemory = float;
  static constexpr int64_t kPerWord = cpu::kPerWord<Value>;  // numbers in memory
  // Sums of so many rows of words are added up: that rounds less than one sum of all.
  static constexpr int64_t kRowsOfSum = 16 / kPerWord;
  Vec each[kPerWord];

  static void store(const Vec& x, int64_t first, float* to) {
    cpu::store(to + first, x * kPerUnpacked<Value>);
  }
  explicit Factors(const float* from) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kPerWord; ++i) each[i] = splat(from[i]);
  }
  void add_products(IntVec words, Vec& sum) const {
    Vec x[kPerWord];
    unpack(words, x, static_cast<const Value*>(nullptr));
#pragma GCC unroll 4
    for (int64_t i = 0; i < kPerWord; ++i) sum += x[i] * each[i];
  }
  void add_products(const uint32_t* words, Vec& sum) const {
    add_products(load_words(words), sum);
  }
};
#if defined(__AVX512BF16__)
// Pairs of bf16 numbers: a query's are bf16 anyway, weights are rounded.
template <>
struct Factors<BFloat16> {
  using InMemory = BFloat16;
  static constexpr int64_t kPerWord = 2;
  static constexpr int64_t kRowsOfSum = kKeysPerPage / kPerWord;  // rounds less than the weights
  IntVec pairs;

  static void store(const Vec& x, int64_t first, BFloat16* to) { store_values(x, to + first); }
  explicit Factors(const BFloat16* from) {
    int32_t pair;
    __builtin_memcpy(&pair, from, sizeof(pair));
    pairs = splat(pair);
  }
  void add_products(IntVec words, Vec& sum) const {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)words);
  }
  // With the load in the instruction, as the compiler leaves it beside: a fourth of all
  // instructions of the loop.
  void add_products(const uint32_t* words, Vec& sum) const {
    Vec result = sum;
    asm("vdpbf16ps %2, %1, %0"
        : "+v"(result)
        : "v"(pairs), "m"(*reinterpret_cast<const IntVec*>(words)));
    sum = result;
  }
};
#endif

}  // namespace
}  // namespace reynard::attention::cpu
