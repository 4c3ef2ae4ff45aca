// The row loops for AVX-512 with conversions to bf16.

#define REYNARD_ROW_KERNELS row_kernels_avx512_bf16
#include "reynard/ops/cpu/row_kernels.inl"

static_assert(reynard::ops::cpu::kLanes == 16);
