// Products of few rows for AVX2 and FMA.

#define REYNARD_PRODUCT_KERNELS product_kernels_avx2
#include "reynard/ops/cpu/product_kernels.inl"
