// The row loops for AVX2 and FMA.

#define REYNARD_ROW_KERNELS row_kernels_avx2
#include "reynard/ops/cpu/row_kernels.inl"

static_assert(reynard::ops::cpu::kLanes == 8);
