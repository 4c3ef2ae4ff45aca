#pragma once
// Descriptions of (B, T, heads, D) arrays for the copy engine.

#include "reynard/attention/cuda/problem.h"

#include <cuda.h>

namespace reynard::attention::cuda::sm90 {

// Tiles of 64 dimensions x `rows` positions of one head of an is_tileable() array, swizzled.
// Reading beyond T or D gives zeros; writing there has no effect.
CUtensorMap tensor_map(const Operand& x, int B, int T, int heads, int D, int rows);

}  // namespace reynard::attention::cuda::sm90
