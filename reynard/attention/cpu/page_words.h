#pragma once
// How a page of a cache in host memory holds its 64 keys and values: as matrices of 32-bit words,
// so that a register of words belongs to as many keys, or dimensions, and is multiplied as it lies
// there, without sums over lanes. A word has n = 4, 2 or 1 values of int8, 16-bit or f32 elements,
// the first in its lowest bits. Rows of D values are padded to D', a multiple of 16.
//
//   keys    (D'/n, 64): word w of key t has its dimensions n w ... n w + n - 1; zeros in the
//   padding values  (64/n, D'): word d of row r has dimension d of values n r ... n r + n - 1
//
// Includes no torch header; in an unnamed namespace, as kernels use it too (vector.h).

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

constexpr int64_t kKeysPerPage = 64;

constexpr int64_t kWordBytes = 4;
template <class Value>
constexpr int64_t kPerWord = kWordBytes / static_cast<int64_t>(sizeof(Value));

constexpr int64_t padded_row(int64_t head_dim) {
  constexpr int64_t kMultiple = 16;
  return (head_dim + kMultiple - 1) / kMultiple * kMultiple;
}

// Words of the keys, or values, of a page.
template <class Value>
constexpr int64_t page_words(int64_t head_dim) {
  return padded_row(head_dim) / kPerWord<Value> * kKeysPerPage;
}

// One row (D) into its slot of a page.
template <class Value>
void write_key(const Value* row, int64_t head_dim, int64_t slot, uint32_t* page) {
  constexpr int64_t n = kPerWord<Value>;
  const int64_t num_words = padded_row(head_dim) / n;
  uint32_t word = 0;
  int64_t w = 0;
  for (; (w + 1) * n <= head_dim; ++w) {
    std::memcpy(&word, row + w * n, sizeof(word));
    page[w * kKeysPerPage + slot] = word;
  }
  for (; w < num_words; ++w) {
    word = 0;
    if (w * n < head_dim) std::memcpy(&word, row + w * n, (head_dim - w * n) * sizeof(Value));
    page[w * kKeysPerPage + slot] = word;
  }
}
template <class Value>
void write_value(const Value* row, int64_t head_dim, int64_t slot, uint32_t* page) {
  constexpr int64_t n = kPerWord<Value>;
  auto* to = reinterpret_cast<Value*>(page + slot / n * padded_row(head_dim)) + slot % n;
  for (int64_t d = 0; d < head_dim; ++d) to[d * n] = row[d];
}

using FourWords = uint32_t __attribute__((vector_size(16)));
inline FourWords load_four(const uint32_t* from) {
  FourWords words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

// Four words of four keys, from a page, whose rows are kKeysPerPage words apart, to rows.
template <class Bits>
void transpose_words(const uint32_t* page, Bits* row, int64_t head_dim) {
  const FourWords a = load_four(page), b = load_four(page + kKeysPerPage);
  const FourWords c = load_four(page + 2 * kKeysPerPage), d = load_four(page + 3 * kKeysPerPage);
  const FourWords low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const FourWords low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const FourWords high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const FourWords high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const auto store = [&](int64_t key, FourWords words) {
    std::memcpy(row + key * head_dim, &words, sizeof(words));
  };
  store(0, __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5));
  store(1, __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7));
  store(2, __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5));
  store(3, __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7));
}

// All keys, or values, of a page as rows (64, D). Bits: an unsigned integer of the elements' size.
template <class Bits>
void read_keys(const uint32_t* page, int64_t head_dim, Bits* rows) {
  constexpr int64_t n = kPerWord<Bits>, kBlock = 4;
  for (int64_t slot = 0; slot < kKeysPerPage; slot += kBlock) {
    const uint32_t* words = page + slot;
    Bits* const row = rows + slot * head_dim;
    int64_t d = 0;
    for (; d + kBlock * n <= head_dim; d += kBlock * n) {
      transpose_words(words, row + d, head_dim);
      words += kBlock * kKeysPerPage;
    }
    for (; d < head_dim; ++d) {
      const int64_t shift = d % n * 8 * static_cast<int64_t>(sizeof(Bits));
      const uint32_t* const of_dim = page + d / n * kKeysPerPage + slot;
      for (int64_t i = 0; i < kBlock; ++i) {
        row[i * head_dim + d] = static_cast<Bits>(of_dim[i] >> shift);
      }
    }
  }
}
template <class Bits>
void read_values(const uint32_t* page, int64_t head_dim, Bits* rows) {
  constexpr int64_t n = kPerWord<Bits>, kWidth = 8 * sizeof(Bits);
  for (int64_t slot = 0; slot < kKeysPerPage; ++slot) {
    const uint32_t* const words = page + slot / n * padded_row(head_dim);
    const int64_t shift = slot % n * kWidth;
    Bits* const row = rows + slot * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) row[d] = static_cast<Bits>(words[d] >> shift);
  }
}

}  // namespace
}  // namespace reynard::attention::cpu
