// Products of few rows for any x86-64 (and, through GCC's vector extensions, other CPUs).

#define REYNARD_PRODUCT_KERNELS product_kernels_portable
#include "reynard/ops/cpu/product_kernels.inl"
