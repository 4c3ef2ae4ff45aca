#include "reynard/knn/cpu/vectors.inl"

#include <algorithm>

namespace reynard::knn::cpu {

namespace {

constexpr int64_t kDepth = 64;              // dimensions of one pass over a block
constexpr int kSteps = 8;                   // registers that a group of keys takes in a pass
constexpr int64_t kStepBytes = 4 * kLanes;  // four bytes of each key of a group

// As far ahead as the codes of 64 dimensions.
void prefetch_scales(const float* scales) {
  constexpr int64_t kAhead = kPrefetchBytes / (kDepth / 2);
  _mm_prefetch(reinterpret_cast<const char*>(scales + kAhead), _MM_HINT_T1);
}

// vpdpbusd multiplies unsigned bytes, halves of codes, with the query's signed ones: a register has
// four bytes of each of 16 keys, so that no lane is ever summed across. What a byte has in its
// upper half comes out 16 times: 32 times the product of upper halves is 32 first + 2 second. Keys
// are compared as soon as they are multiplied: main memory never waits for a second loop.
int64_t reach_codes(const CodeBlock& block,
                    const CodeQuery& query,
                    const CodeBound& bound,
                    float threshold,
                    int32_t* found,
                    int32_t* products) {
  const __m512i half = _mm512_set1_epi8(0x0f);
  // codes = 16 upper + 7.5 - 128
  const __m512i begin = _mm512_set1_epi32(-241 * query.sum);
  const Vec factor = splat(bound.factor), error = splat(bound.error), limit = splat(threshold);
  int64_t count = 0;
  for (int64_t i = 0; i < block.size; i += kLanes) {
    const uint8_t* keys = block.upper + i * block.depth / 2;
    __m512i first = _mm512_setzero_si512(), second = first;
    prefetch_scales(block.scales + i);
    for (int64_t d = 0; d < block.depth; d += kDepth, keys += kSteps * kStepBytes) {
#pragma GCC unroll 8
      for (int s = 0; s < kSteps; ++s) {
        prefetch(keys + s * kStepBytes);
        const __m512i both = _mm512_loadu_si512(keys + s * kStepBytes);
        const int8_t* q = query.codes + d + 8 * s;
        first = _mm512_dpbusd_epi32(
            first, _mm512_and_si512(both, half), _mm512_set1_epi32(load<int32_t>(q)));
        second = _mm512_dpbusd_epi32(
            second, _mm512_andnot_si512(half, both), _mm512_set1_epi32(load<int32_t>(q + 4)));
      }
    }
    const __m512i sum =
        _mm512_add_epi32(_mm512_slli_epi32(first, 5), _mm512_add_epi32(second, second));
    const auto product = (IntVec)_mm512_add_epi32(begin, sum);
    const Vec scaled = factor * __builtin_convertvector(product, Vec) + error;
    const Vec upper = load<Vec>(block.scales + i) * scaled + bound.smallest;
    uint32_t reached = lane_mask(~(upper < limit));
    for (; reached != 0; reached &= reached - 1) {
      const int lane = __builtin_ctz(reached);
      found[count] = static_cast<int32_t>(i + lane);
      products[count++] = product[lane];
    }
  }
  return count;
}

// Two halves of a register become the lower and the upper halves of 32 bytes: 64 dimensions in
// their order.
void refine(const uint8_t* const* lower, int64_t count, const CodeQuery& query, int32_t* products) {
  const __m256i half = _mm256_set1_epi8(0x0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    IntVec sums[kLanes] = {};
    for (int64_t d = 0; d < query.depth; d += kDepth) {
      const __m512i q = _mm512_load_si512(query.codes + d);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        const uint8_t* row = lower[std::min(i + r, count - 1)] + d / 2;
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
        const __m512i halves =
            _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(both, half)),
                               _mm256_and_si256(_mm256_srli_epi16(both, 4), half),
                               1);
        sums[r] = (IntVec)_mm512_dpbusd_epi32((__m512i)sums[r], halves, q);
      }
    }
    const IntVec all = 2 * sums_of_lanes(sums) - 15 * query.sum;
    const int64_t size = std::min<int64_t>(kLanes, count - i);
    for (int64_t r = 0; r < size; ++r) products[i + r] += all[r];
  }
}

}  // namespace

CodeKernels avx512_vnni_codes() {
  return {reach_codes, refine};
}

}  // namespace reynard::knn::cpu
