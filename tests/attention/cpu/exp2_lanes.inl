// The body of each exp2_<isa>.cpp, which define REYNARD_EXP2_LANES.

#include "reynard/attention/cpu/vector.h"
#include "tests/attention/cpu/exp2_lanes.h"

namespace reynard::attention::cpu {

void REYNARD_EXP2_LANES(const float* x, float* y, int64_t count, int degree) {
  const FlushDenormals flush;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec in = load_unaligned<Vec>(x + i);
    Vec out = degree == 6 ? exp2<6>(in) : exp2<5>(in);
#if defined(__AVX512DQ__)
    if (degree == 2) out = exp2<2>(in);
#endif
    __builtin_memcpy(y + i, &out, sizeof(out));
  }
}

}  // namespace reynard::attention::cpu
