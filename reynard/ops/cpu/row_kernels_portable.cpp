// The row loops for any x86-64 (and, through GCC's vector extensions, other CPUs).

#define REYNARD_ROW_KERNELS row_kernels_portable
#include "reynard/ops/cpu/row_kernels.inl"
