// The row loops for AVX-512 (F, BW, DQ, VL).

#define REYNARD_ROW_KERNELS row_kernels_avx512
#include "reynard/ops/cpu/row_kernels.inl"

static_assert(reynard::ops::cpu::kLanes == 16);
