#include "reynard/knn/cpu/reach_codes.inl"

namespace reynard::knn::cpu {

namespace {

// vpdpbusd multiplies unsigned bytes with signed ones: a key's codes + 128 with the query's. What
// that adds, 128 times the sum of the query, is taken off before the first product.
void multiply_codes(const CodeBlock& block, const int8_t* query, int32_t* products) {
  constexpr int64_t kDepth = 64;  // codes of one register
  const __m512i offset = _mm512_set1_epi8(-128);
  __m512i begin = _mm512_setzero_si512();
  for (int64_t d = 0; d < block.depth; d += kDepth) {
    begin = _mm512_dpbusd_epi32(begin, offset, _mm512_load_si512(query + d));
  }
  begin = _mm512_sub_epi32(_mm512_setzero_si512(), begin);
  for (int64_t i = 0; i < block.size; i += kLanes) {
    const int8_t* key = block.codes + i * block.depth;
    IntVec sums[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) sums[r] = (IntVec)begin;
    for (int64_t d = 0; d < block.depth; d += kDepth) {
      const __m512i q = _mm512_load_si512(query + d);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        const int8_t* codes = key + r * block.depth + d;
        prefetch(codes);
        const __m512i shifted = _mm512_xor_si512(_mm512_loadu_si512(codes), offset);
        sums[r] = (IntVec)_mm512_dpbusd_epi32((__m512i)sums[r], shifted, q);
      }
    }
    const IntVec all = sums_of_lanes(sums);
    memcpy(products + i, &all, sizeof(all));
  }
}

}  // namespace

CodeKernels avx512_vnni_codes() {
  return {multiply_codes, reach_codes};
}

}  // namespace reynard::knn::cpu
