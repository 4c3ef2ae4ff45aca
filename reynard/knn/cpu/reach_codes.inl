// Which coded keys can reach a threshold, given the products of their codes with a query's.

#include "reynard/knn/cpu/vectors.inl"

namespace reynard::knn::cpu {
namespace {

int64_t reach_codes(const CodeBlock& block,
                    const int32_t* products,
                    const CodeBound& bound,
                    float threshold,
                    int32_t* found) {
  const Vec factor = splat(bound.factor), error = splat(bound.error), limit = splat(threshold);
  int64_t count = 0;
  for (int64_t i = 0; i < block.size; i += kLanes) {
    const Vec product = __builtin_convertvector(load<IntVec>(products + i), Vec);
    const Vec upper = load<Vec>(block.scales + i) * (factor * product + error) + bound.smallest;
    uint32_t reached = lane_mask(~(upper < limit));
    for (; reached != 0; reached &= reached - 1) {
      found[count++] = static_cast<int32_t>(i + __builtin_ctz(reached));
    }
  }
  return count;
}

}  // namespace
}  // namespace reynard::knn::cpu
