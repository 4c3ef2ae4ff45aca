// Products of few rows for AVX-512 (F, BW, DQ, VL).

#define REYNARD_PRODUCT_KERNELS product_kernels_avx512
#include "reynard/ops/cpu/product_kernels.inl"
