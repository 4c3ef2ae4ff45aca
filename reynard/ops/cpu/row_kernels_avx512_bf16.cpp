// The row loops for AVX-512 with conversions to bf16.

#define REYNARD_ROW_KERNELS row_kernels_avx512_bf16
#include "reynard/ops/cpu/row_kernels.inl"

// The instruction set comes as options of this file: after a target pragma GCC 12 defines no macro
// that row_vector.inl could ask for.
static_assert(reynard::ops::cpu::kLanes == 16);
