// Queries as bf16, for instructions that multiply pairs. What comes is representable as bf16.

#include <cstdint>
#include <cstring>

namespace reynard::knn::cpu {
namespace {

inline uint16_t bf16_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

void pack_one_bf16(const float* query, int64_t depth, void* packed) {
  for (int64_t d = 0; d < depth; ++d) static_cast<uint16_t*>(packed)[d] = bf16_bits(query[d]);
}

// (depth / 2, kQueryLanes, 2): pairs along the depth, as vdpbf16ps and AMX read them.
void pack_many_bf16(const float* queries, int64_t depth, void* packed) {
  auto* out = static_cast<uint16_t*>(packed);
  for (int64_t d = 0; d < depth; ++d) {
    for (int64_t i = 0; i < kQueryLanes; ++i) {
      out[(d / 2 * kQueryLanes + i) * 2 + d % 2] = bf16_bits(queries[i * depth + d]);
    }
  }
}

}  // namespace
}  // namespace reynard::knn::cpu
