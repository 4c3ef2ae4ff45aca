// Products of few rows for AVX-512 (F, BW, DQ, VL).
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")

#define REYNARD_PRODUCT_KERNELS product_kernels_avx512
#include "reynard/ops/cpu/product_kernels.inl"
