#pragma once
// One query of each head of a group against a run of cache pages (kernels.h, PageRun). A register
// of a page's words (page_words.h) is multiplied as it lies there: words of keys by the query's
// values of their dimensions, words of values by their keys' weights. That takes so few
// instructions that the window of the processor holds enough loads to keep memory busy; what
// little is asked for in advance begins the next page, whose rest the hardware then follows.
//
// Values of a page are read by turns with the keys of the next one, so that there are products to
// form while the weights of a page are waited for.

#include "reynard/attention/cpu/decode_products.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

// Everything one thread needs for a run: the numbers of each head of a group, and pages that came
// as rows.
struct DecodeScratch {
  struct Head {
    alignas(64) float total[kLanes];          // sum of weights, in lanes
    alignas(64) float weights[kKeysPerPage];  // of the page before, as factors
    KeyRange before;                          // keys that it reads of that page
    // Then q, as factors, and out, padded.
    float* q() { return reinterpret_cast<float*>(this + 1); }
    float* out(int64_t width) { return q() + width; }
  };

  alignas(64) float bias[kKeysPerPage];

  static int64_t head_bytes(int64_t width) {
    return sizeof(Head) + 2 * width * static_cast<int64_t>(sizeof(float));
  }
  // keys: one page, values: two, of which one is that of the page before
  static constexpr int64_t kPages = 3;

  Head& head(int64_t h, int64_t width) {
    return *reinterpret_cast<Head*>(reinterpret_cast<char*>(this + 1) + h * head_bytes(width));
  }
  uint32_t* page(int64_t index, int64_t width, int64_t group) {
    char* const pages = reinterpret_cast<char*>(this + 1) + group * head_bytes(width);
    return reinterpret_cast<uint32_t*>(pages) + index * page_words<float>(width);
  }
  static int64_t bytes(int64_t head_dim, int64_t group) {
    return sizeof(DecodeScratch) + group * head_bytes(padded_row(head_dim)) +
           kPages * page_words<float>(head_dim) * static_cast<int64_t>(sizeof(uint32_t));
  }
};

// What belongs to a page's keys and values, 64 of each.
struct Numbers {
  const double* sums = nullptr;                                // of one head, or null: no bias
  const float *key_scales = nullptr, *value_scales = nullptr;  // of rows of int8
};

// Which of a vector of keys are read.
inline IntVec is_read(int v, KeyRange range) {
  IntVec index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  index += v * kLanes;
  return (index >= static_cast<int32_t>(range.begin)) & (index < static_cast<int32_t>(range.end));
}

constexpr KeyRange kWholePage = {.begin = 0, .end = kKeysPerPage};
inline bool is_whole(KeyRange range) {
  return range.begin == kWholePage.begin && range.end == kWholePage.end;
}

// The gate's share of a page's logits: of its 64 keys, for one head.
inline void page_bias(const double* sums, double query_sum, float* bias) {
  for (int64_t t = 0; t < kKeysPerPage; ++t) {
    bias[t] = static_cast<float>((query_sum - sums[t]) * kLog2EExact);
  }
}

// Products of a page's keys become base-2 logits; -inf outside the range, whose keys may be
// anything. Without gates a zero is added: one form, which every compiler fuses alike.
template <class Value>
inline void finish_logits(const PageRun& run,
                          const Numbers& page,
                          double query_sum,
                          KeyRange range,
                          float* bias,
                          Vec (&logits)[kKeyVectors]) {
  const auto scale = static_cast<float>(run.scale * kLog2EExact);
  if (page.sums) {
    page_bias(page.sums, query_sum, bias);
  } else {
    memset(bias, 0, kKeysPerPage * sizeof(float));
  }
#pragma GCC unroll 16
  for (int v = 0; v < kKeyVectors; ++v) {
    if constexpr (kHasScales<Value>) {
      logits[v] *= load_unaligned<Vec>(page.key_scales + v * kLanes);
    }
    logits[v] = logits[v] * scale + load(bias + v * kLanes);
  }
  if (is_whole(range)) return;
  for (int v = 0; v < kKeyVectors; ++v) {
    logits[v] = is_read(v, range) ? logits[v] : splat(-kInfinity);
  }
}

// The largest of all; NaN where any is.
inline float largest_of(const Vec (&logits)[kKeyVectors]) {
  Vec largest = logits[0];
  IntVec has_nan = {};
  for (int v = 0; v < kKeyVectors; ++v) {
    largest = at_least(logits[v], largest);
    has_nan |= logits[v] != logits[v];
  }
  return any(has_nan) ? __builtin_nanf("") : largest_lane(largest);
}

// The largest logit, relative to which a head's sums are: it rises when logits exceed it by more
// than 8, so that sums stay far from overflow and out is seldom rescaled. NaN stays.
inline void raise_largest(const Vec (&logits)[kKeyVectors],
                          int64_t width,
                          float& largest,
                          DecodeScratch::Head& head,
                          float* out) {
  constexpr float kSlack = 8;
  IntVec exceeds = {};
#pragma GCC unroll 16
  for (int v = 0; v < kKeyVectors; ++v) exceeds |= ~(logits[v] <= splat(largest + kSlack));
  // That a run begins is known before its logits are: no wrong guess waits for memory.
  const bool is_first = largest == -kInfinity;
  if (!is_first && !any(exceeds)) return;
  const float of_page = largest_of(logits);
  if (of_page == -kInfinity) return;  // of the first pages: nothing has weight yet
  const Vec factor = exp2<6>(splat(largest - of_page));
  largest = of_page;
  store(head.total, load(head.total) * factor);
  for (int64_t d = 0; d < width; d += kLanes) store(out + d, load(out + d) * factor);
}

// Weights of a page's keys, as factors of its values.
template <class Value>
inline void weigh_page(const Vec (&logits)[kKeyVectors],
                       const Numbers& page,
                       KeyRange range,
                       float largest,
                       DecodeScratch::Head& head) {
  const float shift = largest == -kInfinity ? 0 : largest;  // keeps -inf and NaN as they are
  auto* const factors = reinterpret_cast<typename Factors<Value>::InMemory*>(head.weights);
  Vec total = load(head.total);
#pragma GCC unroll 16
  for (int v = 0; v < kKeyVectors; ++v) {
    Vec weights = exp2<6>(logits[v] - shift);
    total += weights;
    if constexpr (kHasScales<Value>) {
      weights *= load_unaligned<Vec>(page.value_scales + v * kLanes);
      weights = is_read(v, range) ? weights : Vec{};  // scales of other rows may be anything
    }
    Factors<Value>::store(weights, v * kLanes, factors);
  }
  store(head.total, total);
}

// The keys that any head reads.
inline KeyRange union_of_ranges(const PageRun& run) {
  KeyRange all;
  for (int64_t h = 0; h < run.group; ++h) {
    const KeyRange range = run.ranges[h];
    if (range.empty()) continue;
    all =
        all.empty() ? range : KeyRange{min_of(all.begin, range.begin), max_of(all.end, range.end)};
  }
  return all;
}

template <class Value, class Processor>
class RunDecoder {
 public:
  RunDecoder(const PageRun& of_run, const RunSoftmax& to, DecodeScratch& scratch)
      : run(of_run), result(to), s(scratch) {}

  void operator()() {
    begin();
    for (int64_t n = first; n < end; ++n) {
      if (run.as_rows) pack(n);
      bool has_asked = false;
      for (int64_t h = 0; h < run.group; ++h) {
        const KeyRange range = range_of(h, n);
        if (has_asked || range.empty()) {
          add(h, n, range, NothingLater());
        } else {
          add(h, n, range, later(n));
          has_asked = true;
        }
      }
    }
    for (int64_t h = 0; h < run.group; ++h) add(h, end, KeyRange(), NothingLater());
    finish();
  }

 private:
  using InMemory = typename Factors<Value>::InMemory;

  void begin() {
    for (int64_t h = 0; h < run.group; ++h) {
      DecodeScratch::Head& head = s.head(h, width);
      head.before = KeyRange();
      memset(head.total, 0, sizeof(head.total));
      memset(head.out(width), 0, width * sizeof(float));
      result.largest[h] = -kInfinity;
      alignas(64) float q[256];
      for (int64_t d = 0; d < width; ++d) q[d] = d < run.D ? run.q[h * run.D + d] : 0;
      for (int64_t d = 0; d < width; d += kLanes) {
        Factors<Value>::store(load(q + d), d, reinterpret_cast<InMemory*>(head.q()));
      }
    }
  }
  void finish() {
    for (int64_t h = 0; h < run.group; ++h) {
      DecodeScratch::Head& head = s.head(h, width);
      result.total[h] = sum_of_lanes(load(head.total));
      memcpy(result.out + h * run.D, head.out(width), run.D * sizeof(float));
    }
  }

  // Keys of page n that a head reads.
  KeyRange range_of(int64_t h, int64_t n) const {
    return {max_of(run.ranges[h].begin - n * kKeysPerPage, 0),
            min_of(run.ranges[h].end - n * kKeysPerPage, kKeysPerPage)};
  }

  // Where page n of the run lies. Nothing of a page is carried on to the next one: copies of
  // structures are vectorised, and what is loaded of a store of another size has to wait until
  // every earlier load is done.
  const uint32_t* keys_of(int64_t n) const {
    if (run.as_rows) return s.page(0, width, run.group);
    return static_cast<const uint32_t*>(run.keys) + run.pages[n] * words;
  }
  const uint32_t* values_of(int64_t n) const {
    if (run.as_rows) return s.page(1 + n % 2, width, run.group);
    return static_cast<const uint32_t*>(run.values) + run.pages[n] * words;
  }
  // Page n from its rows; its values are in use until the next page was worked on.
  void pack(int64_t n) const {
    const int64_t first_row = run.pages[n] * kKeysPerPage;
    uint32_t *const keys = s.page(0, width, run.group), *const values =
                                                            s.page(1 + n % 2, width, run.group);
    for (int64_t t = 0; t < kKeysPerPage; ++t) {
      const int64_t row = (first_row + t) * run.D;
      write_key(static_cast<const Value*>(run.keys) + row, run.D, t, keys);
      if (run.values) write_value(static_cast<const Value*>(run.values) + row, run.D, t, values);
    }
  }
  // Beside page n: its values, which are read with the keys of the next page, and that page.
  Later<Value, Processor> later(int64_t n) const {
    int32_t next = n + 1 < end ? run.pages[n + 1] : run.next_page;
    if (next < 0) next = run.pages[n];
    Later<Value, Processor> later;
    later.keys = static_cast<const uint32_t*>(run.keys) + next * words;
    later.values = run.values ? values_of(n) : later.keys;
    if (run.sums) {
      later.sums = run.sums + next * run.group * kKeysPerPage;
      later.group = run.group;
    }
    if constexpr (kHasScales<Value>) later.scales = run.scales + next * 2 * kKeysPerPage;
    return later;
  }

  // Adds to one head: keys of page n, of which it reads `range`, and values of the page before.
  template <class LaterLines>
  void add(int64_t h, int64_t n, KeyRange range, const LaterLines& later) {
    DecodeScratch::Head& head = s.head(h, width);
    float* const out = head.out(width);
    const bool has_keys = !range.empty();
    bool has_values = run.values && !head.before.empty();
    const KeyWork<Value> keys = {has_keys ? keys_of(n) : nullptr,
                                 reinterpret_cast<const InMemory*>(head.q())};
    const ValueWork<Value> values = {has_values ? values_of(n - 1) : nullptr,
                                     width,
                                     reinterpret_cast<const InMemory*>(head.weights)};
    if (has_values && !is_whole(head.before)) {
      add_part_of_values<Value>(values, head.before, out);
      has_values = false;
    }
    Vec logits[kKeyVectors] = {};
    if (has_keys && has_values) {
      add_all_dims<Value, true, true>(keys, values, AllOfRow{}, later, logits, out);
    } else if (has_keys) {
      add_all_dims<Value, true, false>(keys, values, AllOfRow{}, later, logits, out);
    } else if (has_values) {
      add_all_dims<Value, false, true>(keys, values, AllOfRow{}, later, logits, out);
    }
    head.before = range;
    if (!has_keys) return;
    const Numbers numbers = numbers_of(n, h);
    finish_logits<Value>(run, numbers, run.query_sums[h], range, s.bias, logits);
    raise_largest(logits, width, result.largest[h], head, out);
    weigh_page<Value>(logits, numbers, range, result.largest[h], head);
  }
  // Of page n and a head.
  Numbers numbers_of(int64_t n, int64_t h) const {
    const int64_t page = run.pages[n];
    Numbers numbers;
    if (run.sums) numbers.sums = run.sums + (page * run.group + h) * kKeysPerPage;
    if constexpr (kHasScales<Value>) {
      numbers.key_scales = run.scales + 2 * page * kKeysPerPage;
      numbers.value_scales = numbers.key_scales + kKeysPerPage;
    }
    return numbers;
  }

  const PageRun& run;
  const RunSoftmax& result;
  DecodeScratch& s;
  const int64_t width = padded_row(run.D);
  const int64_t words = page_words<Value>(run.D);
  const KeyRange all = union_of_ranges(run);
  const int64_t first = all.begin / kKeysPerPage;  // pages
  const int64_t end = all.empty() ? first : div_up(all.end, kKeysPerPage);
};

template <class Processor>
void decode_run(const PageRun& run, const RunSoftmax& result, char* scratch) {
  const FlushDenormals flush;
  auto& s = *reinterpret_cast<DecodeScratch*>(scratch);
  if (run.scales) return RunDecoder<int8_t, Processor>(run, result, s)();
  switch (run.element) {
    case Element::kFloat:
      return RunDecoder<float, Processor>(run, result, s)();
    case Element::kBFloat16:
      return RunDecoder<BFloat16, Processor>(run, result, s)();
    case Element::kHalf:
      return RunDecoder<Half, Processor>(run, result, s)();
  }
}

}  // namespace
}  // namespace reynard::attention::cpu
