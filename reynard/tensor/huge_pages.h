#pragma once
// Huge pages for memory that is read in random order or touched for the first time in each step:
// a 2 MB page is one fault and one entry of the processor's table of pages where small ones are
// 512.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::tensor {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Asks for huge pages wherever they lie whole in [data, data + bytes), before it is first written.
// Advice only: without them the memory works all the same.
void advise_huge_pages(void* data, int64_t bytes);

// Tensors that live as long as each other, such as a model's weights, one behind the other in huge
// pages: most of a layer's are shorter than one.
class HugePageArena {
 public:
  // Uninitialised, on the CPU.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  at::Tensor block_;  // bytes
  int64_t used_ = 0;
};

}  // namespace reynard::tensor
