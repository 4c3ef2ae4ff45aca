#include "reynard/knn/cpu/codes.inl"

namespace reynard::knn::cpu {

namespace {

// vpdpbusd multiplies unsigned bytes, halves of codes, with the query's signed ones: a register has
// four bytes of each of 16 keys, so that no lane is ever summed across. What a byte has in its
// upper half comes out 16 times: 32 times the product of upper halves is 32 first + 2 second.
void upper_products(const uint8_t* keys, const CodeQuery& query, IntVec (&parts)[kParts]) {
  const __m512i half = _mm512_set1_epi8(0x0f);
  __m512i first = _mm512_setzero_si512(), second = first;
  for (int64_t d = 0; d < query.depth; d += kDepth, keys += kSteps * kStepBytes) {
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
  parts[0] =
      (IntVec)_mm512_add_epi32(_mm512_slli_epi32(first, 5), _mm512_add_epi32(second, second));
}

// Two halves of a register become the lower and the upper halves of 32 bytes: 64 dimensions in
// their order.
IntVec add_row_product(IntVec sum, const uint8_t* row, const int8_t* query) {
  const __m256i half = _mm256_set1_epi8(0x0f);
  const __m256i both = load<__m256i>(row);
  const __m512i halves = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(both, half)),
                                            _mm256_and_si256(_mm256_srli_epi16(both, 4), half),
                                            1);
  return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, halves, _mm512_load_si512(query));
}

}  // namespace

CodeKernels avx512_vnni_codes() {
  return {reach_codes, refine};
}

}  // namespace reynard::knn::cpu
