#pragma once
// What decode asks for in advance. Pages lie anywhere, so the hardware cannot guess where the next
// one is: each load asks for what is read some blocks later, twice. While all of the core's ways to
// memory are taken it drops what is asked for; the second time finds most lines there or on their
// way, and brings the others.

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

constexpr int64_t kKeysPerPage = 64;
constexpr int kBlocks = kKeysPerPage / kLanes;  // of a page's keys, and of its values
constexpr int kSteps = 2 * kBlocks;             // of the work on a page, a block each

constexpr int64_t kLineBytes = 64;

// What is asked for while a block is worked on: the same places of two later blocks. As data that
// is read once: what other parts of a decoded token need again stays in the second-level cache.
// With kFar = 2 the far request goes into the second-level cache first, from where the near one
// fetches it.
template <class Value, int kFar>
struct LaterBlocks {
  const Value *near = nullptr, *far = nullptr;
  // A function that does nothing but ask is dropped where it is not inlined.
  __attribute__((always_inline)) void ask(int64_t place) const {
    if (place * static_cast<int64_t>(sizeof(Value)) % kLineBytes != 0) return;
    __builtin_prefetch(near + place, 0, 0);
    __builtin_prefetch(far + place, 0, kFar);
  }
};
// For the second head of a group and pages in f32, whose rows are in the cache.
struct NothingLater {
  void ask(int64_t /*place*/) const {}
};

// Which step of a page block b of the keys is, and of the values.
constexpr int key_step(int b) {
  return b == 0 ? 0 : 2 * b - 1;
}
constexpr int value_step(int b) {
  return b + 1 == kBlocks ? kSteps - 1 : 2 * b + 2;
}

// Where the blocks of a page and of the next one lie, by step.
template <class Value, int kFar>
class Blocks {
 public:
  template <class PageRows>
  Blocks(PageRows keys, PageRows values, const Value* next_keys, const Value* next_values) {
    constexpr int64_t kFarBytes = 12288;
    const int64_t size = kLanes * keys.length();
    far_ = min_of(max_of(kFarBytes / (size * static_cast<int64_t>(sizeof(Value))), 2), kSteps);
    list(keys.data, values.data, size, data_);
    list(next_keys, next_values, size, data_ + kSteps);
  }
  LaterBlocks<Value, kFar> after(int step) const {
    return {data_[step + far_ / 2], data_[step + far_]};
  }

 private:
  static void list(const Value* keys, const Value* values, int64_t size, const Value** data) {
    if (!values) values = keys;
    for (int b = 0; b < kBlocks; ++b) {
      data[key_step(b)] = keys + b * size;
      data[value_step(b)] = values + b * size;
    }
  }

  const Value* data_[2 * kSteps];
  int64_t far_;  // steps
};

// What is read of a page beside its rows is asked for two pages and one page ahead, too.
template <int kFar>
__attribute__((always_inline)) inline void ask_for(const void* near,
                                                   const void* far,
                                                   int64_t bytes) {
  const LaterBlocks<char, kFar> later = {static_cast<const char*>(near),
                                         static_cast<const char*>(far)};
  for (int64_t i = 0; i < bytes; i += kLineBytes) later.ask(i);
}
template <int kFar>
__attribute__((always_inline)) inline void ask_for_numbers(const PageRun& run,
                                                           int32_t near,
                                                           int32_t far) {
  if (run.sums) {
    const int64_t sums = run.group * kKeysPerPage;
    ask_for<kFar>(run.sums + near * sums, run.sums + far * sums, sums * sizeof(double));
  }
  if (run.scales) {
    constexpr int64_t kScales = 2 * kKeysPerPage;  // of keys and of values
    ask_for<kFar>(run.scales + near * kScales, run.scales + far * kScales, kScales * sizeof(float));
  }
}

}  // namespace
}  // namespace reynard::attention::cpu
