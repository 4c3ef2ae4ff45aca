#include "reynard/knn/cpu/scan_kernels.inl"

#include "reynard/knn/cpu/pack_bf16.inl"

namespace reynard::knn::cpu {

namespace {

uint32_t score_one_bf16(const KeyBlock& block, const void* packed, float* scores) {
  const auto* query = static_cast<const uint16_t*>(packed);
  Largest<true> even_rows, odd_rows;
  for (int64_t i = 0; i < block.size; i += kLanes) {
    Vec sums[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      const auto* key = static_cast<const uint16_t*>(block.keys) + (i + r) * block.stride;
      __m512 sum = _mm512_setzero_ps();
      for (int64_t d = 0; d < block.depth; d += 2 * kLanes) {
        prefetch(key + d);
        (r % 2 == 0 ? even_rows : odd_rows).add(key + d);
        sum = _mm512_dpbf16_ps(
            sum, (__m512bh)_mm512_loadu_si512(key + d), (__m512bh)_mm512_loadu_si512(query + d));
      }
      sums[r] = (Vec)sum;
    }
    const Vec products = sums_of_lanes(sums);
    memcpy(scores + i, &products, sizeof(products));
  }
  return std::max(even_rows.result(), odd_rows.result());
}

void score_many_bf16(const KeyBlock& block, const void* packed, float* scores) {
  const auto* queries = static_cast<const uint16_t*>(packed);
  for (int64_t i = 0; i < block.size; i += kKeysAtOnce) {
    const auto* key = static_cast<const uint16_t*>(block.keys) + i * block.stride;
    __m512 sums[kKeysAtOnce] = {};
    for (int64_t d = 0; d < block.depth; d += 2) {
      const auto q = (__m512bh)_mm512_load_si512(queries + d * kQueryLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kKeysAtOnce; ++r) {
        int32_t pair;
        memcpy(&pair, key + r * block.stride + d, sizeof(pair));
        sums[r] = _mm512_dpbf16_ps(sums[r], (__m512bh)_mm512_set1_epi32(pair), q);
      }
    }
    memcpy(scores + i * kQueryLanes, sums, sizeof(sums));
  }
}

}  // namespace

ScanTables avx512_bf16_scan() {
  ScanTables tables = make_tables();
  tables.bf16.widen = nullptr;
  tables.bf16.packs_bf16 = true;
  tables.bf16.flushes_denormals = true;
  tables.bf16.pack_one = pack_one_bf16;
  tables.bf16.pack_many = pack_many_bf16;
  tables.bf16.score_one = score_one_bf16;
  tables.bf16.score_many = score_many_bf16;
  return tables;
}

}  // namespace reynard::knn::cpu
