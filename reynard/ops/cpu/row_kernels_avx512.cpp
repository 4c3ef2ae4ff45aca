// The row loops for AVX-512 (F, BW, DQ, VL).
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")

#define REYNARD_ROW_KERNELS row_kernels_avx512
#include "reynard/ops/cpu/row_kernels.inl"
