#pragma once
// All products of a page: keys times the query and, by turns with them, values of the page before
// times their weights, while what is read next is asked for.

#include "reynard/attention/cpu/decode_factors.h"
#include "reynard/attention/cpu/kernels.h"

#include <cstdint>
#include <type_traits>

namespace reynard::attention::cpu {
namespace {

constexpr int kKeyVectors = kKeysPerPage / kLanes;  // of one number for each key of a page

template <class Value>
constexpr bool kHasScales = std::is_same_v<Value, int8_t>;

// Where a processor finds what is read next. It follows a page that is begun: few lines of each are
// asked for, into the first-level cache.
struct Follows {
  static constexpr int kLinesOfRow = 1, kLocality = 0;  // of __builtin_prefetch
  static constexpr bool kAsksForAll = false;
};
// Its first-level cache takes few lines at once: all are asked for, into the second level.
struct TakesFewLines {
  static constexpr int kLinesOfRow = 4, kLocality = 2;
  static constexpr bool kAsksForAll = true;
};

// What is asked for of what is read next, as data that is read once: beside each row of a page
// lines of the keys and the values, from the first on, and before them all of the sums and scales.
template <class Value, class Processor>
struct Later {
  static constexpr bool kAsksForAll = Processor::kAsksForAll;
  const void *keys = nullptr, *values = nullptr, *sums = nullptr, *scales = nullptr;
  int64_t group = 0;  // heads with sums

  // A function that does nothing but ask is dropped where it is not inlined.
  __attribute__((always_inline)) void ask(int64_t row) const {
    ask<Processor::kLinesOfRow>(keys, row);
    ask<Processor::kLinesOfRow>(values, row);
  }
  // What remains after so many rows.
  __attribute__((always_inline)) Later after(int64_t rows) const {
    const int64_t bytes = rows * Processor::kLinesOfRow * kLineBytes;
    Later rest;
    rest.keys = static_cast<const char*>(keys) + bytes;
    rest.values = static_cast<const char*>(values) + bytes;
    return rest;
  }
  __attribute__((always_inline)) void ask_for_numbers() const {
    for (int64_t h = 0; h < group; ++h) ask<8>(sums, h);
    if constexpr (kHasScales<Value>) ask<8>(scales, 0);
  }

 private:
  static constexpr int64_t kLineBytes = 64;

  template <int kLines>
  __attribute__((always_inline)) static void ask(const void* from, int64_t index) {
    const char* begin = static_cast<const char*>(from) + index * kLines * kLineBytes;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLines; ++i) {
      __builtin_prefetch(begin + i * kLineBytes, 0, Processor::kLocality);
    }
  }
};

// For all but the first head that reads a page, and where its first dimensions asked for enough.
struct NothingLater {
  static constexpr bool kAsksForAll = false;
  void ask(int64_t /*row*/) const {}
  void ask_for_numbers() const {}
};

// Words of a row of values: as they are where all keys are read, or else with zeros for the others,
// which may hold anything.
struct AllOfRow {
  const uint32_t* operator()(const uint32_t* words, int64_t /*row*/) const { return words; }
};
template <class Value>
struct ReadOfRow {
  KeyRange range;
  IntVec operator()(const uint32_t* words, int64_t row) const {
    constexpr int64_t n = kPerWord<Value>, kBits = 32 / n;
    uint32_t mask = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t key = row * n + i;
      const bool is_read = key >= range.begin && key < range.end;
      if (is_read) mask |= (0xffffffffU >> (32 - kBits)) << i * kBits;
    }
    return load_words(words) & static_cast<int32_t>(mask);
  }
};

// sums += words * factors, for a row of them.
template <class Value, int kCount, class Read>
inline void add_row(const uint32_t* words,
                    int64_t row,
                    const typename Factors<Value>::InMemory* factors,
                    Read read,
                    Vec* sums) {
  const Factors<Value> of_row(factors + row * Factors<Value>::kPerWord);
#pragma GCC unroll 16
  for (int v = 0; v < kCount; ++v) {
    of_row.add_products(read(words + v * kLanes, row), sums[v]);
  }
}

// Keys and values as the loop over a page wants them, from a dimension on.
template <class Value>
struct KeyWork {
  const uint32_t* words;  // null: none
  const typename Factors<Value>::InMemory* q;
};
template <class Value>
struct ValueWork {
  const uint32_t* words;  // null: none
  int64_t stride;
  const typename Factors<Value>::InMemory* weights;
};

// Adds kDims dimensions of a page: words of keys times the query to the logits, words of values (of
// the page before) times their weights to out.
template <class Value, int kDims, bool kKeys, bool kValues, class Read, class LaterLines>
inline void add_dims(const KeyWork<Value>& keys,
                     const ValueWork<Value>& values,
                     Read read,
                     const LaterLines& later,
                     Vec (&logits)[kKeyVectors],
                     float* out) {
  constexpr int kVectors = kDims / kLanes;
  constexpr int64_t kRows = kKeysPerPage / kPerWord<Value>, kRowsOfKeyRow = kKeysPerPage / kDims;
  constexpr int64_t kRowsOfSum = Factors<Value>::kRowsOfSum, kUnroll = 4;
  for (int64_t begin = 0; begin < kRows; begin += kRowsOfSum) {
    Vec products[kKeyVectors] = {}, sums[kVectors] = {};
    for (int64_t first = begin; first < begin + kRowsOfSum; first += kUnroll) {
#pragma GCC unroll 4
      for (int64_t row = first; row < first + kUnroll; ++row) {
        later.ask(row);
        if (kKeys && (row - first) % kRowsOfKeyRow == 0) {
          const int64_t key_row = row / kRowsOfKeyRow;
          add_row<Value, kKeyVectors>(
              keys.words + key_row * kKeysPerPage, key_row, keys.q, AllOfRow{}, products);
        }
        if constexpr (kValues) {
          add_row<Value, kVectors>(
              values.words + row * values.stride, row, values.weights, read, sums);
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; kKeys && v < kKeyVectors; ++v) logits[v] += products[v];
#pragma GCC unroll 16
    for (int v = 0; kValues && v < kVectors; ++v) {
      store(out + v * kLanes, load(out + v * kLanes) + sums[v]);
    }
  }
}

// All dimensions of a page.
template <class Value, bool kKeys, bool kValues, class Read, class LaterLines>
inline void add_all_dims(const KeyWork<Value>& keys,
                         const ValueWork<Value>& values,
                         Read read,
                         const LaterLines& later,
                         Vec (&logits)[kKeyVectors],
                         float* out) {
  constexpr int64_t kMany = 64, kFew = 16;
  const auto keys_from = [&](int64_t d) {
    if constexpr (!kKeys) return keys;
    const int64_t row = d / kPerWord<Value>;
    return KeyWork<Value>{keys.words + row * kKeysPerPage, keys.q + row * Factors<Value>::kPerWord};
  };
  const auto values_from = [&](int64_t d) {
    if constexpr (!kValues) return values;
    return ValueWork<Value>{values.words + d, values.stride, values.weights};
  };
  later.ask_for_numbers();
  int64_t d = 0;
  if (values.stride >= kMany) {
    add_dims<Value, kMany, kKeys, kValues>(keys, values, read, later, logits, out);
    d += kMany;
  }
  const auto add_more = [&](const auto& rest) {
    add_dims<Value, kMany, kKeys, kValues>(
        keys_from(d), values_from(d), read, rest, logits, out + d);
  };
  for (; d + kMany <= values.stride; d += kMany) {
    if constexpr (LaterLines::kAsksForAll) {
      add_more(later.after(d / kMany * (kKeysPerPage / kPerWord<Value>)));
    } else {
      add_more(NothingLater{});
    }
  }
  for (; d < values.stride; d += kFew) {
    add_dims<Value, kFew, kKeys, kValues>(
        keys_from(d), values_from(d), read, NothingLater{}, logits, out + d);
  }
}

// The same where some values, or all, are left out: seldom, so not in line with the loop.
template <class Value>
__attribute__((noinline)) void add_part_of_values(const ValueWork<Value>& values,
                                                  KeyRange range,
                                                  float* out) {
  Vec no_logits[kKeyVectors];
  add_all_dims<Value, false, true>(
      KeyWork<Value>(), values, ReadOfRow<Value>{range}, NothingLater{}, no_logits, out);
}

}  // namespace
}  // namespace reynard::attention::cpu
