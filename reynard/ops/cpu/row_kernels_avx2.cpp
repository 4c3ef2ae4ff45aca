// The row loops for AVX2 and FMA.
#pragma GCC target("avx2,fma")

#define REYNARD_ROW_KERNELS row_kernels_avx2
#include "reynard/ops/cpu/row_kernels.inl"
