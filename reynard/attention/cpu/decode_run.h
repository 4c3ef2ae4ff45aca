#pragma once
// One query of each head of a group against a run of cache pages (kernels.h, PageRun). Packed
// 16-bit values are taken apart inside their 32-bit lanes, a shift and a mask each, so that the
// loop reads whole registers of a page and never shuffles; query and output are kept in the order
// of dimensions that this gives. Rows that do not fill whole registers are widened to f32 first.
//
// A page is worked on in blocks of as many keys as a register has lanes, values one block behind
// keys, so that the processor has products to form while it waits for a block's weights, and asks
// for memory at an even rate (decode_ahead.h).

#include "reynard/attention/cpu/decode_ahead.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace reynard::attention::cpu {
namespace {

// A bundle is the register of packed values that one load brings, as kVectors vectors of f32: value
// i of the bundle is lane i / kVectors of vector i % kVectors.
inline void unpack(const float* from, Vec (&x)[1]) {
  x[0] = load_unaligned<Vec>(from);
}
inline void unpack(const BFloat16* from, Vec (&x)[2]) {
  const IntVec pairs = load_unaligned<IntVec>(from);
  x[0] = (Vec)(pairs << 16);
  x[1] = (Vec)(pairs & static_cast<int32_t>(0xffff0000));
}
inline void unpack(const int8_t* from, Vec (&x)[1]) {
#if defined(__AVX512F__)
  x[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_unaligned<__m128i>(from)));
#elif defined(__AVX2__)
  x[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  const __m128i codes = _mm_cvtsi32_si128(load_unaligned<int32_t>(from));
  const __m128i twice = _mm_unpacklo_epi8(codes, codes);
  x[0] = _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24));
#endif
}

template <class Value>
constexpr int kVectors = sizeof(float) / sizeof(Value);
template <>
constexpr int kVectors<int8_t> = 1;  // widened as they are loaded
template <class Value>
constexpr int64_t kBundle = kVectors<Value>* kLanes;

// Place of dimension d in the order that bundles give.
template <class Value>
int64_t place_of(int64_t d) {
  const int64_t i = d % kBundle<Value>;
  return d - i + i % kVectors<Value> * kLanes + i / kVectors<Value>;
}

// Everything one thread needs for a run.
struct DecodeScratch {
  alignas(64) float weights[kKeysPerPage];
  alignas(64) float bias[kKeysPerPage];

  // Then: a page of keys and one of values in f32, q and out of each head, its sum of weights in
  // lanes. All rows padded.
  float* wide_keys() { return reinterpret_cast<float*>(this + 1); }
  float* wide_values(int64_t head_dim) { return wide_keys() + kKeysPerPage * padded(head_dim); }
  float* q(int64_t head_dim) { return wide_values(head_dim) + kKeysPerPage * padded(head_dim); }
  float* out(int64_t head_dim, int64_t group) { return q(head_dim) + group * padded(head_dim); }
  float* totals(int64_t head_dim, int64_t group) {
    return out(head_dim, group) + group * padded(head_dim);
  }

  static int64_t padded(int64_t head_dim) { return round_up(head_dim, 2 * kLanes); }
  static int64_t bytes(int64_t head_dim, int64_t group) {
    return sizeof(DecodeScratch) +
           (2 * (kKeysPerPage + group) * padded(head_dim) + group * kLanes) *
               static_cast<int64_t>(sizeof(float));
  }
};

// Rows of a page. Loops over rows of a length that is known when they are compiled take half of the
// time; kLength 0 is any.
template <class ValueType, int64_t kLength = 0>
struct Rows {
  using Value = ValueType;
  const Value* data = nullptr;
  const float* scales = nullptr;  // of rows of int8
  int64_t any_length = 0;

  int64_t length() const { return kLength > 0 ? kLength : any_length; }  // fills whole bundles
  Rows from(int64_t row) const {
    return {data + row * length(), scales ? scales + row : nullptr, any_length};
  }
  // x, a lane for each of the first rows, times their scales.
  Vec scaled(Vec x) const {
    if constexpr (std::is_same_v<Value, int8_t>) return x * load(scales);
    return x;
  }
};

// sum += key * query, for one bundle.
template <class Value>
inline void add_product(Vec& sum, const Value* from, const Vec (&query)[kVectors<Value>]) {
  Vec key[kVectors<Value>];
  unpack(from, key);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors<Value>; ++v) sum += key[v] * query[v];
}
#if defined(__AVX512BF16__)
// The query of a bf16 cache is bf16 too, so its halves lose nothing when they become pairs again;
// the compiler does so once for all keys of a group.
inline void add_product(Vec& sum, const BFloat16* from, const Vec (&query)[2]) {
  typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
  const IntVec pairs = (IntVec)((Words)query[0] >> 16) | ((IntVec)query[1] & ~0xffff);
  sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(from), (__m512bh)pairs);
}
#endif

// q . k of kLanes keys, one in each lane.
template <class Keys, class Later>
inline Vec dot_products(Keys keys, const float* q, Later later) {
  using Value = typename Keys::Value;
  Vec sums[kLanes] = {};
  for (int64_t n = 0; n < keys.length() / kBundle<Value>; ++n) {
    Vec query[kVectors<Value>];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors<Value>; ++v) {
      query[v] = load(q + n * kBundle<Value> + v * kLanes);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kLanes; ++t) {
      later.ask((n * kLanes + t) * kBundle<Value>);  // in the order in which they lie there
      add_product(sums[t], keys.data + t * keys.length() + n * kBundle<Value>, query);
    }
  }
  return sums_of_lanes(sums);
}

// sums += weight * value, for kBundles bundles of one row.
template <int kBundles, class Values, class Later>
inline void add_row(
    Vec* sums, const float* weight, Values values, int64_t row, int64_t dim, Later later) {
  using Value = typename Values::Value;
  const Vec factor = splat(weight[row]);
#pragma GCC unroll 4
  for (int n = 0; n < kBundles; ++n) {
    const int64_t place = row * values.length() + dim + n * kBundle<Value>;
    Vec value[kVectors<Value>];
    later.ask(place);
    unpack(values.data + place, value);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors<Value>; ++v) sums[n * kVectors<Value> + v] += factor * value[v];
  }
}

// out += sum over rows [begin, end) of a block of weight * value, for kBundles bundles of
// dimensions from `dim` on. Even and odd rows are added apart, which hides the latency.
template <int kBundles, class Values, class Later>
inline void add_values(
    Values values, const float* weights, KeyRange rows, int64_t dim, Later later, float* out) {
  constexpr int kSums = kBundles * kVectors<typename Values::Value>;
  Vec even[kSums] = {}, odd[kSums] = {};
  int64_t t = rows.begin;
  for (; t + 2 <= rows.end; t += 2) {
    add_row<kBundles>(even, weights, values, t, dim, later);
    add_row<kBundles>(odd, weights, values, t + 1, dim, later);
  }
  if (t < rows.end) add_row<kBundles>(even, weights, values, t, dim, later);
#pragma GCC unroll 8
  for (int i = 0; i < kSums; ++i) {
    float* to = out + dim + i * kLanes;
    store(to, load(to) + (even[i] + odd[i]));
  }
}

// One head's softmax over the pages so far, and the keys that it reads of this page.
struct HeadSums {
  const float* q;
  float *largest, *out, *total;  // total in lanes
  KeyRange range;
};

// Weights of block b relative to the largest logit, which rises when they exceed it by more than
// 8: sums stay far from overflow and out, of `length`, is seldom rescaled.
inline void weigh_block(Vec logits, int b, int64_t length, const HeadSums& head, DecodeScratch& s) {
  constexpr float kSlack = 8;
  if (any(~(logits <= splat(*head.largest + kSlack)))) {
    const float block_largest = largest_lane(logits);
    const float factor = exp2<6>(splat(*head.largest - block_largest))[0];
    *head.largest = block_largest;
    store(head.total, load(head.total) * factor);
    for (int64_t d = 0; d < length; ++d) head.out[d] *= factor;
    for (int i = 0; i < b * kLanes; ++i) s.weights[i] *= factor;  // the last block's are not in out
  }
  const float largest = *head.largest;
  const float shift = largest == -kInfinity ? 0 : largest;  // keeps -inf and NaN as they are
  const Vec weights = exp2<6>(logits - shift);
  store(s.weights + b * kLanes, weights);
  store(head.total, load(head.total) + weights);
}

// Base-2 logits of block b's keys; -inf outside the range. All rows are read: what lies behind the
// last token of a sequence is masked.
template <class Keys, class Later>
inline Vec block_logits(const PageRun& run,
                        Keys keys,
                        int b,
                        Later later,
                        const HeadSums& head,
                        const DecodeScratch& s) {
  const Keys block = keys.from(b * kLanes);
  Vec logits = block.scaled(dot_products(block, head.q, later)) *
               static_cast<float>(run.scale * kLog2EExact);
  if (run.sums) logits += load(s.bias + b * kLanes);
  IntVec index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  index += b * kLanes;
  const IntVec seen = (index >= static_cast<int32_t>(head.range.begin)) &
                      (index < static_cast<int32_t>(head.range.end));
  return seen ? logits : splat(-kInfinity);
}

template <class Values, class Later>
inline void add_block(Values values, int b, Later later, const HeadSums& head, DecodeScratch& s) {
  using Value = typename Values::Value;
  constexpr int kWide = 4 / kVectors<Value>;  // bundles that make four sums
  const KeyRange rows = {max_of(head.range.begin - b * kLanes, 0),
                         min_of(head.range.end - b * kLanes, kLanes)};
  float* weights = s.weights + b * kLanes;
  const Values block = values.from(b * kLanes);
  if constexpr (std::is_same_v<Value, int8_t>) store(weights, block.scaled(load(weights)));
  int64_t d = 0;
  for (; d + kWide * kBundle<Value> <= block.length(); d += kWide * kBundle<Value>) {
    add_values<kWide>(block, weights, rows, d, later, head.out);
  }
  for (; d < block.length(); d += kBundle<Value>) {
    add_values<1>(block, weights, rows, d, later, head.out);
  }
}

// Adds a page to the softmax of one head.
//   later_of: what a step asks for
template <class PageRows, class LaterOf>
void add_page(const PageRun& run,
              PageRows keys,
              PageRows values,
              const LaterOf& later_of,
              const HeadSums& head,
              DecodeScratch& s) {
  for (int b = 0; b <= kBlocks; ++b) {
    if (b < kBlocks) {
      const auto later = later_of(key_step(b));
      const Vec logits = block_logits(run, keys, b, later, head, s);
      weigh_block(logits, b, keys.length(), head, s);
    }
    if (b > 0 && values.data) {
      add_block(values, b - 1, later_of(value_step(b - 1)), head, s);
    }
  }
}

// Rows that fill whole registers are read where they lie ...
template <class Value, int64_t kHeadDim = 0>
struct InPlace {
  using Element = Value;
  static constexpr bool kAsks = true;
  Rows<Value, kHeadDim> operator()(const Value* rows,
                                   const float* scales,
                                   int64_t head_dim,
                                   float* /*wide*/) const {
    return {rows, scales, head_dim};
  }
};
// ... others as f32 (those of int8 times their scales), padded with zeros.
template <class Value>
struct Widened {
  using Element = float;
  static constexpr bool kAsks = false;
  Rows<float> operator()(const Value* rows,
                         const float* scales,
                         int64_t head_dim,
                         float* wide) const {
    const int64_t length = DecodeScratch::padded(head_dim);
    if (!rows) return {nullptr, nullptr, length};
    for (int64_t t = 0; t < kKeysPerPage; ++t) {
      const Value* from = rows + t * head_dim;
      float* to = wide + t * length;
      if constexpr (std::is_same_v<Value, int8_t>) {
        for (int64_t d = 0; d < head_dim; ++d) to[d] = static_cast<float>(from[d]) * scales[t];
      } else {
        for (int64_t d = 0; d < head_dim; ++d) to[d] = to_float(from[d]);
      }
      for (int64_t d = head_dim; d < length; ++d) to[d] = 0;
    }
    return {wide, nullptr, length};
  }
};

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

// The gate's share of a page's logits: of its 64 keys, for one head.
inline void page_bias(const PageRun& run, int64_t h, int32_t page, DecodeScratch& s) {
  const double* sums = run.sums + (page * run.group + h) * kKeysPerPage;
  const double query_sum = run.query_sums[h];
  for (int64_t t = 0; t < kKeysPerPage; ++t) {
    s.bias[t] = static_cast<float>((query_sum - sums[t]) * kLog2EExact);
  }
}

template <class Value, int kFar, class Access>
void decode_pages(const PageRun& run,
                  const RunSoftmax& result,
                  const Access& access,
                  DecodeScratch& s) {
  using Element = typename Access::Element;
  const int64_t page_values = kKeysPerPage * run.D, padded = DecodeScratch::padded(run.D);
  float *q = s.q(run.D), *out = s.out(run.D, run.group), *totals = s.totals(run.D, run.group);
  // And out and totals, which follow it.
  memset(q, 0, (2 * padded + kLanes) * run.group * sizeof(float));
  for (int64_t h = 0; h < run.group; ++h) {
    result.largest[h] = -kInfinity;
    for (int64_t d = 0; d < run.D; ++d) q[h * padded + place_of<Element>(d)] = run.q[h * run.D + d];
  }
  const auto rows_of = [&](const void* pool, int32_t page) {
    const auto* first = static_cast<const Value*>(pool);
    return first ? first + page * page_values : nullptr;
  };
  // which: keys 0, values 1
  const auto scales_of = [&](int32_t page, int64_t which) {
    return run.scales ? run.scales + (2 * page + which) * kKeysPerPage : nullptr;
  };
  const KeyRange all = union_of_ranges(run);
  for (int64_t n = all.begin / kKeysPerPage; n * kKeysPerPage < all.end; ++n) {
    const int32_t page = run.pages[n];
    const bool last = (n + 1) * kKeysPerPage >= all.end;
    const int32_t next = !last ? run.pages[n + 1] : run.next_page >= 0 ? run.next_page : page;
    const bool two_left = (n + 2) * kKeysPerPage < all.end;
    ask_for_numbers<kFar>(run, next, two_left ? run.pages[n + 2] : next);
    const auto keys = access(rows_of(run.keys, page), scales_of(page, 0), run.D, s.wide_keys());
    const auto values =
        access(rows_of(run.values, page), scales_of(page, 1), run.D, s.wide_values(run.D));
    bool first = true;
    for (int64_t h = 0; h < run.group; ++h) {
      const KeyRange range = {max_of(run.ranges[h].begin - n * kKeysPerPage, 0),
                              min_of(run.ranges[h].end - n * kKeysPerPage, kKeysPerPage)};
      if (range.empty()) continue;
      if (run.sums) page_bias(run, h, page, s);
      const HeadSums head = {
          q + h * padded, result.largest + h, out + h * padded, totals + h * kLanes, range};
      if constexpr (Access::kAsks) {
        if (std::exchange(first, false)) {
          const Blocks<Value, kFar> blocks(
              keys, values, rows_of(run.keys, next), rows_of(run.values, next));
          const auto later_of = [&](int step) { return blocks.after(step); };
          add_page(run, keys, values, later_of, head, s);
          continue;
        }
      }
      const auto nothing = [](int /*step*/) { return NothingLater{}; };
      add_page(run, keys, values, nothing, head, s);
    }
  }
  for (int64_t h = 0; h < run.group; ++h) {
    result.total[h] = sum_of_lanes(load(totals + h * kLanes));
    for (int64_t d = 0; d < run.D; ++d) {
      result.out[h * run.D + d] = out[h * padded + place_of<Element>(d)];
    }
  }
}

template <class Value, int kFar>
void decode_in_place(const PageRun& run, const RunSoftmax& result, DecodeScratch& s) {
  switch (run.D) {
    case 64:
      return decode_pages<Value, kFar>(run, result, InPlace<Value, 64>{}, s);
    case 128:
      return decode_pages<Value, kFar>(run, result, InPlace<Value, 128>{}, s);
    default:
      return decode_pages<Value, kFar>(run, result, InPlace<Value>{}, s);
  }
}

// kFar: the locality of __builtin_prefetch for what is read much later, 0 or 2 (LaterBlocks).
template <int kFar>
void decode_run(const PageRun& run, const RunSoftmax& result, char* scratch) {
  const FlushDenormals flush;
  auto& s = *reinterpret_cast<DecodeScratch*>(scratch);
  if (run.scales) {
    if (run.D % kBundle<int8_t> == 0) return decode_in_place<int8_t, kFar>(run, result, s);
    return decode_pages<int8_t, kFar>(run, result, Widened<int8_t>{}, s);
  }
  switch (run.element) {
    case Element::kFloat:
      if (run.D % kBundle<float> == 0) return decode_in_place<float, kFar>(run, result, s);
      return decode_pages<float, kFar>(run, result, Widened<float>{}, s);
    case Element::kBFloat16:
      if (run.D % kBundle<BFloat16> == 0) return decode_in_place<BFloat16, kFar>(run, result, s);
      return decode_pages<BFloat16, kFar>(run, result, Widened<BFloat16>{}, s);
    case Element::kHalf:
      return decode_pages<Half, kFar>(run, result, Widened<Half>{}, s);
  }
}

}  // namespace
}  // namespace reynard::attention::cpu
