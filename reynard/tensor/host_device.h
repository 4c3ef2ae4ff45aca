#pragma once
// Marks plain arithmetic that kernels call and the host checks.

#ifdef __CUDACC__
#define REYNARD_HOST_DEVICE __host__ __device__
#else
#define REYNARD_HOST_DEVICE
#endif
