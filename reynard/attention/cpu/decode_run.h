#pragma once
// One query of each head of a group against a run of cache pages (kernels.h, PageRun). Packed
// 16-bit values are taken apart inside their 32-bit lanes, a shift and a mask each, so that the
// loop reads whole registers of a page and never shuffles; query and output are kept in the order
// of dimensions that this gives. Rows that do not fill whole registers are widened to f32 first.

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

constexpr int64_t kKeysPerPage = 64;

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

template <class Value>
constexpr int kVectors = sizeof(float) / sizeof(Value);
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
  alignas(64) float logits[kKeysPerPage];
  alignas(64) float bias[kKeysPerPage];

  // Then: a page of keys and one of values in f32, q and out of each head. All rows padded.
  float* wide_keys() { return reinterpret_cast<float*>(this + 1); }
  float* wide_values(int64_t head_dim) { return wide_keys() + kKeysPerPage * padded(head_dim); }
  float* q(int64_t head_dim) { return wide_values(head_dim) + kKeysPerPage * padded(head_dim); }
  float* out(int64_t head_dim, int64_t group) { return q(head_dim) + group * padded(head_dim); }

  static int64_t padded(int64_t head_dim) { return round_up(head_dim, 2 * kLanes); }
  static int64_t bytes(int64_t head_dim, int64_t group) {
    return sizeof(DecodeScratch) +
           2 * (kKeysPerPage + group) * padded(head_dim) * static_cast<int64_t>(sizeof(float));
  }
};

// The 64 rows of a page, and the distance to those of the run's next page.
template <class Value>
struct Rows {
  const Value* data = nullptr;
  int64_t stride = 0, ahead = 0;
  Rows from(int64_t row, int64_t dim) const { return {data + row * stride + dim, stride, ahead}; }
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

// Into the first-level cache: what is asked for there while a page is worked on leaves the ways to
// the second-level cache to main memory.
inline void prefetch_page(const void* p) {
  __builtin_prefetch(p, 0, 3);
}

// q . k of kLanes keys, one in each lane. Pages lie anywhere, so the hardware cannot guess where
// the next one is: each load of a page asks for a place of the next, `ahead` values away, in the
// order in which they lie there.
template <class Value>
inline Vec dot_products(Rows<Value> keys, const float* q, int64_t num_bundles) {
  Vec sums[kLanes] = {};
  for (int64_t n = 0; n < num_bundles; ++n) {
    Vec query[kVectors<Value>];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors<Value>; ++v) {
      query[v] = load(q + n * kBundle<Value> + v * kLanes);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kLanes; ++t) {
      prefetch_page(keys.data + keys.ahead + (n * kLanes + t) * kBundle<Value>);
      add_product(sums[t], keys.data + t * keys.stride + n * kBundle<Value>, query);
    }
  }
  return sums_of_lanes(sums);
}

// out += sum over keys [begin, end) of weight * value, for kBundles bundles of dimensions. The sum
// over the page starts from zero, so that rounding does not grow with the number of keys.
template <int kBundles, class Value>
inline void add_values(Rows<Value> values, const float* weights, KeyRange keys, float* out) {
  constexpr int kSums = kBundles * kVectors<Value>;
  Vec sums[kSums] = {};
  for (int64_t t = keys.begin; t < keys.end; ++t) {
    const Vec weight = splat(weights[t]);
#pragma GCC unroll 4
    for (int n = 0; n < kBundles; ++n) {
      Vec value[kVectors<Value>];
      const Value* from = values.data + t * values.stride + n * kBundle<Value>;
      prefetch_page(from + values.ahead);
      unpack(from, value);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<Value>; ++v) {
        sums[n * kVectors<Value> + v] += weight * value[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSums; ++i) store(out + i * kLanes, load(out + i * kLanes) + sums[i]);
}

// Base-2 logits of a page's keys; -inf outside the range. All 64 rows are read: what lies behind
// the last token of a sequence is masked.
template <class Value>
void page_logits(const PageRun& run,
                 int64_t h,
                 int32_t page,
                 Rows<Value> keys,
                 KeyRange range,
                 DecodeScratch& s) {
  if (run.sums) {
    const double* sums = run.sums + (page * run.group + h) * kKeysPerPage;
    const double query_sum = run.query_sums[h];
    for (int64_t t = 0; t < kKeysPerPage; ++t) {
      s.bias[t] = static_cast<float>((query_sum - sums[t]) * kLog2EExact);
    }
  }
  const float* q = s.q(run.D) + h * DecodeScratch::padded(run.D);
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int64_t t = 0; t < kKeysPerPage; t += kLanes) {
    Vec logit = dot_products(keys.from(t, 0), q, div_up(run.D, kBundle<Value>)) *
                static_cast<float>(run.scale * kLog2EExact);
    if (run.sums) logit += load(s.bias + t);
    const IntVec index = lane + static_cast<int32_t>(t);
    const IntVec seen =
        (index >= static_cast<int32_t>(range.begin)) & (index < static_cast<int32_t>(range.end));
    store(s.logits + t, seen ? logit : splat(-kInfinity));
  }
}

// Logits to weights relative to largest, which rises when they exceed it by more than 8: sums stay
// far from overflow and out is seldom rescaled.
inline void weigh_page(
    DecodeScratch& s, float& largest, float& total, float* out, int64_t num_dims) {
  constexpr float kSlack = 8;
  Vec highest = load(s.logits);
  for (int64_t t = kLanes; t < kKeysPerPage; t += kLanes) {
    highest = at_least(highest, load(s.logits + t));
  }
  const float page_largest = largest_lane(highest);
  if (!(page_largest <= largest + kSlack)) {
    const float factor = exp2<6>(splat(largest - page_largest))[0];
    largest = page_largest;
    total *= factor;
    for (int64_t d = 0; d < num_dims; ++d) out[d] *= factor;
  }
  const float shift = largest == -kInfinity ? 0 : largest;  // keeps -inf and NaN as they are
  Vec sum = {};
  for (int64_t t = 0; t < kKeysPerPage; t += kLanes) {
    const Vec weight = exp2<6>(load(s.logits + t) - shift);
    store(s.logits + t, weight);
    sum += weight;
  }
  total += sum_of_lanes(sum);
}

// Adds a page to the softmax of each head that reads some of its keys.
//   first_key: where the page begins in the run
template <class Value>
void add_page(const PageRun& run,
              const RunSoftmax& result,
              int32_t page,
              int64_t first_key,
              Rows<Value> keys,
              Rows<Value> values,
              DecodeScratch& s) {
  constexpr int kWide = 4 / kVectors<Value>;  // bundles that make four sums: hides the latency
  const int64_t num_dims = round_up(run.D, kBundle<Value>);
  for (int64_t h = 0; h < run.group; ++h) {
    const KeyRange range = {max_of(run.ranges[h].begin - first_key, 0),
                            min_of(run.ranges[h].end - first_key, kKeysPerPage)};
    if (range.empty()) continue;
    page_logits(run, h, page, keys, range, s);
    float* out = s.out(run.D, run.group) + h * DecodeScratch::padded(run.D);
    weigh_page(s, result.largest[h], result.total[h], out, num_dims);
    if (!values.data) continue;
    int64_t d = 0;
    for (; d + kWide * kBundle<Value> <= num_dims; d += kWide * kBundle<Value>) {
      add_values<kWide>(values.from(0, d), s.logits, range, out + d);
    }
    for (; d < num_dims; d += kBundle<Value>) {
      add_values<1>(values.from(0, d), s.logits, range, out + d);
    }
  }
}

// Rows that fill whole registers are read where they lie ...
template <class Value>
struct InPlace {
  using Element = Value;
  Rows<Value> operator()(const Value* rows,
                         int64_t head_dim,
                         int64_t ahead,
                         float* /*wide*/) const {
    return {rows, head_dim, ahead};
  }
};
// ... others as f32, padded with zeros.
template <class Value>
struct Widened {
  using Element = float;
  Rows<float> operator()(const Value* rows,
                         int64_t head_dim,
                         int64_t /*ahead*/,
                         float* wide) const {
    const int64_t stride = DecodeScratch::padded(head_dim);
    if (!rows) return {};
    for (int64_t t = 0; t < kKeysPerPage; ++t) {
      float* to = wide + t * stride;
      for (int64_t d = 0; d < head_dim; ++d) to[d] = to_float(rows[t * head_dim + d]);
      for (int64_t d = head_dim; d < stride; ++d) to[d] = 0;
    }
    return {wide, stride, 0};
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

template <class Value, class Access>
void decode_pages(const PageRun& run,
                  const RunSoftmax& result,
                  const Access& access,
                  DecodeScratch& s) {
  const int64_t page_values = kKeysPerPage * run.D, padded = DecodeScratch::padded(run.D);
  const auto place = [](int64_t d) { return place_of<typename Access::Element>(d); };
  float *q = s.q(run.D), *out = s.out(run.D, run.group);
  memset(q, 0, 2 * run.group * padded * sizeof(float));  // and out, which follows it
  for (int64_t h = 0; h < run.group; ++h) {
    result.largest[h] = -kInfinity;
    result.total[h] = 0;
    for (int64_t d = 0; d < run.D; ++d) q[h * padded + place(d)] = run.q[h * run.D + d];
  }
  const auto rows_of = [&](const void* pool, int32_t page, int64_t ahead, float* wide) {
    const auto* first = static_cast<const Value*>(pool);
    return access(first ? first + page * page_values : nullptr, run.D, ahead, wide);
  };
  const KeyRange range = union_of_ranges(run);
  for (int64_t n = range.begin / kKeysPerPage; n * kKeysPerPage < range.end; ++n) {
    const int32_t page = run.pages[n];
    const bool last = (n + 1) * kKeysPerPage >= range.end;
    const int64_t ahead = last ? 0 : (run.pages[n + 1] - page) * page_values;
    if (run.sums && !last) {
      const double* sums = run.sums + run.pages[n + 1] * run.group * kKeysPerPage;
      for (int64_t t = 0; t < run.group * kKeysPerPage; t += 8) prefetch(sums + t);
    }
    add_page(run,
             result,
             page,
             n * kKeysPerPage,
             rows_of(run.keys, page, ahead, s.wide_keys()),
             rows_of(run.values, page, ahead, s.wide_values(run.D)),
             s);
  }
  for (int64_t h = 0; h < run.group; ++h) {
    for (int64_t d = 0; d < run.D; ++d) result.out[h * run.D + d] = out[h * padded + place(d)];
  }
}

inline void decode_run(const PageRun& run, const RunSoftmax& result, char* scratch) {
  const FlushDenormals flush;
  auto& s = *reinterpret_cast<DecodeScratch*>(scratch);
  switch (run.element) {
    case Element::kFloat:
      if (run.D % kBundle<float> == 0) return decode_pages<float>(run, result, InPlace<float>{}, s);
      return decode_pages<float>(run, result, Widened<float>{}, s);
    case Element::kBFloat16:
      if (run.D % kBundle<BFloat16> == 0) {
        return decode_pages<BFloat16>(run, result, InPlace<BFloat16>{}, s);
      }
      return decode_pages<BFloat16>(run, result, Widened<BFloat16>{}, s);
    case Element::kHalf:
      return decode_pages<Half>(run, result, Widened<Half>{}, s);
  }
}

}  // namespace
}  // namespace reynard::attention::cpu
