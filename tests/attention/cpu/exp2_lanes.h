#pragma once
// exp2 of the kernels, compiled for each of their instruction sets (tests.cmake has the options).

#include <cstdint>

namespace reynard::attention::cpu {

// y = 2^x with the polynomial of this degree (5 or 6, with AVX-512 also 2), denormals flushed as in
// the kernels. count is a multiple of 16.
using Exp2Lanes = void (*)(const float* x, float* y, int64_t count, int degree);

void exp2_avx512(const float* x, float* y, int64_t count, int degree);
void exp2_avx2(const float* x, float* y, int64_t count, int degree);
void exp2_portable(const float* x, float* y, int64_t count, int degree);

}  // namespace reynard::attention::cpu
