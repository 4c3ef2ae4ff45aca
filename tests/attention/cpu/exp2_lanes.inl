// The body of each exp2_<isa>.cpp, which define REYNARD_EXP2_LANES.

#include "reynard/attention/cpu/vector.h"
#include "tests/attention/cpu/exp2_lanes.h"

namespace reynard::attention::cpu {

void REYNARD_EXP2_LANES(const float* x, float* y, int64_t count, int degree) {
  const FlushDenormals flush;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec in = load_unaligned<Vec>(x + i);
    const Vec out = degree == 6 ? exp2<6>(in) : exp2<5>(in);
    __builtin_memcpy(y + i, &out, sizeof(out));
  }
}

}  // namespace reynard::attention::cpu
