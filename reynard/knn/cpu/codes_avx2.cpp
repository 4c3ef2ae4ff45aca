#include "reynard/knn/cpu/codes.inl"

namespace reynard::knn::cpu {

namespace {

// Bytes of codes' halves, 0 ... 15, times signed ones, in pairs: at most 2 * 15 * 127 in 16 bits.
inline __m256i pairs(__m256i halves, __m256i query) {
  return _mm256_maddubs_epi16(halves, query);
}
inline __m256i sums_of_pairs(__m256i x) {
  return _mm256_madd_epi16(x, _mm256_set1_epi16(1));
}

// A register has four bytes of each of eight keys. Eight steps of pairs fit into 16 bits.
void upper_products(const uint8_t* keys, const CodeQuery& query, IntVec (&parts)[kParts]) {
  static_assert(kSteps * 2 * 15 * 127 < 1 << 15);
  const __m256i half = _mm256_set1_epi8(0x0f);
  __m256i sums[kParts] = {};
  for (int64_t d = 0; d < query.depth; d += kDepth, keys += kSteps * kStepBytes) {
    __m256i first[kParts] = {}, second[kParts] = {};
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      prefetch(keys + s * kStepBytes);
      const int8_t* q = query.codes + d + 8 * s;
      const __m256i q_first = _mm256_set1_epi32(load<int32_t>(q));
      const __m256i q_second = _mm256_set1_epi32(load<int32_t>(q + 4));
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) {
        const auto both = load<__m256i>(keys + s * kStepBytes + p * sizeof(__m256i));
        const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), half);
        first[p] = _mm256_add_epi16(first[p], pairs(_mm256_and_si256(both, half), q_first));
        second[p] = _mm256_add_epi16(second[p], pairs(upper, q_second));
      }
    }
    for (int p = 0; p < kParts; ++p) {
      const __m256i both = _mm256_add_epi32(sums_of_pairs(first[p]), sums_of_pairs(second[p]));
      sums[p] = _mm256_add_epi32(sums[p], both);
    }
  }
  for (int p = 0; p < kParts; ++p) parts[p] = (IntVec)_mm256_slli_epi32(sums[p], 5);
}

IntVec add_row_product(IntVec sum, const uint8_t* row, const int8_t* query) {
  const __m256i half = _mm256_set1_epi8(0x0f);
  const auto both = load<__m256i>(row);
  const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), half);
  const __m256i all = _mm256_add_epi16(pairs(_mm256_and_si256(both, half), load<__m256i>(query)),
                                       pairs(upper, load<__m256i>(query + sizeof(__m256i))));
  return sum + (IntVec)sums_of_pairs(all);
}

}  // namespace

CodeKernels avx2_codes() {
  return {reach_codes, refine};
}

}  // namespace reynard::knn::cpu
