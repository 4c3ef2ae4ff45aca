#pragma once
// Arrays as the kernels of either device see them: plain pointers and strides, no torch header. The
// bridge is operand_of.h.

#include <cstdint>

namespace reynard::attention {

enum class Element : int { kFloat, kBFloat16, kHalf };

// A (B, T, heads, D) array of which the last dimension is contiguous; strides in elements.
struct Operand {
  void* data = nullptr;
  int64_t batch = 0, time = 0, head = 0;
  Element element = Element::kFloat;
};

}  // namespace reynard::attention
