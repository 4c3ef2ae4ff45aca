// Loops over coded keys, for an instruction set that says how to multiply a row of lower halves
// (add_row_product) and a group of upper halves (upper_products), in an unnamed namespace.

#include "reynard/knn/cpu/vectors.inl"

#include <algorithm>

namespace reynard::knn::cpu {
namespace {

constexpr int64_t kDepth = 64;      // dimensions of one pass over a block
constexpr int kSteps = 8;           // of a pass: eight dimensions each
constexpr int64_t kGroupKeys = 16;  // whose upper halves lie together, four bytes each a step
constexpr int64_t kStepBytes = 4 * kGroupKeys;
constexpr int kParts = kGroupKeys / kLanes;  // vectors of a group

// parts[p] gets the products of a group's keys with a query, upper halves counted 32 times.
void upper_products(const uint8_t* keys, const CodeQuery& query, IntVec (&parts)[kParts]);
// sum += 64 dimensions of a row of lower halves times a query's, in any lanes.
IntVec add_row_product(IntVec sum, const uint8_t* row, const int8_t* query);

// As far ahead as the codes of 64 dimensions.
void prefetch_scales(const float* scales) {
  constexpr int64_t kAhead = kPrefetchBytes / (kDepth / 2);
  _mm_prefetch(reinterpret_cast<const char*>(scales + kAhead), _MM_HINT_T1);
}

// Keys are compared as soon as they are multiplied: main memory never waits for a second loop.
int64_t reach_codes(const CodeBlock& block,
                    const CodeQuery& query,
                    const CodeBound& bound,
                    float threshold,
                    int32_t* found,
                    int32_t* products) {
  const int32_t begin = -241 * query.sum;  // codes = 16 upper + 7.5 - 128
  const Vec factor = splat(bound.factor), error = splat(bound.error), limit = splat(threshold);
  int64_t count = 0;
  for (int64_t i = 0; i < block.size; i += kGroupKeys) {
    prefetch_scales(block.scales + i);
    IntVec parts[kParts];
    upper_products(block.upper + i * block.depth / 2, query, parts);
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
      const int64_t first = i + p * kLanes;
      const IntVec product = parts[p] + begin;
      const Vec scaled = factor * __builtin_convertvector(product, Vec) + error;
      const Vec upper = load<Vec>(block.scales + first) * scaled + bound.smallest;
      uint32_t reached = lane_mask(~(upper < limit));
      for (; reached != 0; reached &= reached - 1) {
        const int lane = __builtin_ctz(reached);
        found[count] = static_cast<int32_t>(first + lane);
        products[count++] = product[lane];
      }
    }
  }
  return count;
}

void refine(const uint8_t* const* lower, int64_t count, const CodeQuery& query, int32_t* products) {
  for (int64_t i = 0; i < count; i += kLanes) {
    IntVec sums[kLanes] = {};
    for (int64_t d = 0; d < query.depth; d += kDepth) {
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        const uint8_t* row = lower[std::min(i + r, count - 1)] + d / 2;
        sums[r] = add_row_product(sums[r], row, query.codes + d);
      }
    }
    const IntVec all = 2 * sums_of_lanes(sums) - 15 * query.sum;
    const int64_t size = std::min<int64_t>(kLanes, count - i);
    for (int64_t r = 0; r < size; ++r) products[i + r] += all[r];
  }
}

}  // namespace
}  // namespace reynard::knn::cpu
